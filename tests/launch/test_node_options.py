"""Several nodes: torchrun's options, and the names of what trains on all of them."""

import pytest

from bench.cli.parser import parse
from bench.launch.asked import asked, differing
from bench.nodes import Nodes
from bench.spec.errors import UsageError
from bench.spec.trial import Placement, members
from bench.training.rank_launcher import alone

JOB = ("--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "node0:29400")
SUITE = ("--suite", "mlp")


def test_what_trains_together_is_on_all_nodes_and_one_device_on_node_0():
    command = parse([*SUITE, "--gpus", "0,0+1", *JOB, "--rdzv-id", "job7", "--rdzv-backend", "c10d"])
    assert command.gpus == ("0", "0+1@2")
    assert command.nodes == Nodes(count=2, rank=1, host="node0", port=29400, id="job7")
    assert parse([*SUITE, "--gpus", "0@2", *JOB]).gpus == ("0@2",)
    assert parse([*SUITE, "--gpus", "0+1", "--nnodes", "1"]).gpus == ("0+1",)


def test_options_may_be_written_as_torchrun_also_takes_them():
    words = ["--nnodes=2", "--node_rank=0", "--rdzv_endpoint=10.0.0.1:1", "--rdzv_conf", "join_timeout=30"]
    nodes = parse([*SUITE, "--gpus", "cpu+cpu", *words]).nodes
    assert (nodes.rank, nodes.endpoint, nodes.join_s) == (0, "10.0.0.1:1", 30.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "0+1", "--nnodes", "2", "--node-rank", "0"), "needs --rdzv-endpoint HOST:PORT"),
        (("--gpus", "0+1", *JOB, "--rdzv-endpoint", "node0"), "HOST:PORT, such as node0:29400, not 'node0'"),
        (("--gpus", "0+1", *JOB, "--rdzv-endpoint", "node0:99999"), "not 'node0:99999'"),
        (("--gpus", "0+1", *JOB, "--node-rank", "2"), "from 0 to 1, another on each node .* not '2'"),
        (("--gpus", "0+1", "--nnodes", "2", "--rdzv-endpoint", "a:1"), "--node-rank takes a whole number from 0 to 1"),
        (("--gpus", "0+1", *JOB, "--nnodes", "1:4"), "how many nodes there are, such as 2, not '1:4'"),
        (("--gpus", "0+1", *JOB, "--rdzv-backend", "etcd"), "takes c10d, not 'etcd'"),
        (("--gpus", "0+1", *JOB, "--rdzv-conf", "timeout=3"), "takes join_timeout=SECONDS"),
        (("--gpus", "0,1", *JOB), "--gpus 0@2 for one on each node"),
        (JOB, "for devices that train together"),
        (("--gpus", "0+1@4", *JOB), "on other than the 2 nodes"),
        (("--gpus", "0+1", "--node-rank", "1"), "--node-rank is for several nodes: add --nnodes"),
        (("--gpus", "0+1@2"), "add --nnodes 2"),
        (("--on", "ray", *JOB), "with --on ray leave it out"),
    ],
)
def test_what_several_nodes_cannot_be_is_a_sentence(words, said):
    with pytest.raises(UsageError, match=said):
        parse([*SUITE, *words])


@pytest.mark.parametrize("name", ["0+1@", "0+1@1", "0+1@x", "@2", "0+0@2", "0+1@2@2", "cpu@-1"])
def test_odd_numbers_of_nodes_are_refused(name):
    with pytest.raises(UsageError, match="--gpus"):
        Placement(name=name)


def test_a_placement_on_two_nodes_has_the_devices_of_both_in_the_order_of_ranks():
    place = Placement(name="2+3@2")
    assert (place.local, place.nodes, place.index) == ("2+3", 2, 2)
    assert [place.device_of(rank) for rank in range(4)] == [2, 3, 2, 3]
    assert members("cpu+cpu@3") == ("cpu",) * 6
    assert (Placement(name="cpu@2").members, Placement(name="0").nodes) == (("cpu", "cpu"), 1)


def test_ranks_are_counted_from_node_to_node():
    nodes = Nodes(count=3, rank=0, host="node0", port=1)
    shares = [nodes.share(rank, 6, 555) for rank in range(3)]
    assert [(share.first, share.local, share.world) for share in shares] == [(0, 2, 6), (2, 2, 6), (4, 2, 6)]
    assert {(share.address, share.port) for share in shares} == {("node0", 555)}
    one = alone(2)
    assert (one.first, one.local, one.world, one.address) == (0, 2, 2, "127.0.0.1")


def test_what_nodes_are_asked_may_differ_in_paths_and_in_what_is_node_0s_alone(tmp_path):
    homes = [tmp_path / name for name in ("a", "b")]
    for home in homes:
        home.mkdir()
        (home / "mine.py").write_text("same")
    words = ("--gpus", "0,0+1", "--precisions", "fp32", *JOB)
    mine = asked(parse(["--suite", str(homes[0] / "mine.py"), *words, "--out", str(tmp_path / "new")]))
    others = asked(parse(["--suite", str(homes[1] / "mine.py"), *words, "--data-dir", "x", "--gpus", "1,0+1"]))
    assert differing(mine, others) == []
    (homes[1] / "mine.py").write_text("other")
    others = asked(parse(["--suite", str(homes[1] / "mine.py"), *words, "--set", "width=3", "--gpus", "0+2"]))
    assert set(differing(mine, others)) == {"--suite", "--set or --weights", "--gpus"}
