"""A Ray cluster on this machine: nodes that declare accelerators they have not, and CPUs that stand in for them."""

import json
from collections import Counter

import pytest

ray = pytest.importorskip("ray")

from tests.conftest import TINY, call  # noqa: E402
from tests.test_store import rows  # noqa: E402

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Loopback addresses; Ray takes 127.0.0.1 for the machine's own address on its network."""
STORE_BYTES = 80 * 2**20
QUICK = ("--batch-sizes", "4", "--precisions", "fp32,amp-fp16-noscale", "--data", "synthetic", "--time-budget", "0.2")


class Nodes:
    """A head without accelerators, and nodes that come and go."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self.cluster = Cluster(initialize_head=True, head_node_args={**head, "node_ip_address": HEAD})
        self.address = self.cluster.address

    def add(self, accelerator):
        return self.cluster.add_node(
            num_cpus=1,
            resources={f"accelerator_type:{accelerator}": 1},
            object_store_memory=STORE_BYTES,
            node_ip_address=OTHER,
        )

    def lose(self, node):
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def nodes():
    found = Nodes()
    yield found
    ray.shutdown()
    found.cluster.shutdown()


@pytest.fixture
def suite(tmp_path):
    """The tiny suite, of which a part comes from another file of its folder."""
    (tmp_path / "width.py").write_text("WIDTH = 16\n")
    path = tmp_path / "tiny.py"
    path.write_text(
        TINY.replace("width: int = 16", "width: int = WIDTH").replace(
            "from bench", "from width import WIDTH\nfrom bench", 1
        )
    )
    return path


def run(nodes, suite, *words):
    folder = suite.parent / "run"
    done = call("--suite", suite, "--on", f"ray://{nodes.address}", "--out", folder, *QUICK, *words, cwd=suite.parent)
    return folder, done


def test_a_plan_over_two_accelerators_is_run_and_every_trial_is_accounted_for(nodes, suite):
    nodes.add("V100")
    nodes.add("A100")
    folder, done = run(nodes, suite, "--phases", "memory,train", "--epochs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    found = Counter(
        (row["placement"], row["phase"], row["precision"], row["status"]) for row in rows(folder, "trials.csv")
    )
    arms = ("fp32", "amp-fp16-noscale")
    wanted = [(place, phase, arm) for place in ("V100", "A100") for phase in ("memory", "train") for arm in arms]
    assert found == Counter({(*key, "ok"): 1 for key in wanted})
    trials = {row["trial"] for row in rows(folder, "trials.csv") if row["phase"] == "train"}
    assert Counter(row["trial"] for row in rows(folder, "epochs.csv")) == dict.fromkeys(trials, 2)
    environment = json.loads((folder / "run.json").read_text())["environment"]
    assert [(node["accelerator"], bool(node["host"]), bool(node["torch"])) for node in environment["nodes"]] == [
        ("A100", True, True),
        ("V100", True, True),
    ]
