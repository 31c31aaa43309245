"""A placement group whose bundles Ray, of which there is none here, has put on nodes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.launch.launcher import Ending
from bench.launch.multi_node import CancelledError, NodeLostError, Part
from bench.launch.ray.actor import interface
from bench.launch.ray.pool import AcceleratorPool, GroupNode, PlacementGroup, Ranks
from bench.results.records import Numeric, Progress
from bench.spec.trial import Placement


class Method:
    def __init__(self, function):
        self.remote = function


class Actor:
    def __init__(self, node, gpus):
        self.shared = None
        self.whereabouts = Method(lambda: (node, f"host {node}", f"10.0.0.{node}"))
        self.visible = Method(lambda: gpus)
        self.share = Method(self.take)
        self.stop = Method(lambda: None)

    def take(self, *shared):
        self.shared = shared


class Options:
    def __init__(self, actors):
        self.actors, self.asked = actors, []

    def options(self, **asked):
        self.asked.append(asked)
        return Method(lambda *_, **__: self.actors[len(self.asked) - 1])


class Ray:
    """As much of Ray's module as a group uses."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, *places, nodes=()):
        self.actors = [Actor(node, gpus) for node, gpus in places]
        self.groups, self.removed, self.killed = [], [], []
        self.options = Options(self.actors)
        strategies = SimpleNamespace(PlacementGroupSchedulingStrategy=lambda **asked: asked)
        self.util = SimpleNamespace(
            placement_group=self.group, remove_placement_group=self.removed.append, scheduling_strategies=strategies
        )
        self.remote = lambda _class: self.options
        self.kill = self.killed.append
        self.get = lambda values: values
        self.nodes = lambda: nodes

    def group(self, bundles, **asked):
        self.groups.append((bundles, asked))
        return SimpleNamespace(wait=lambda _s: True)

    def wait(self, references, **_):
        return references, []


LOSS = {"precision": "fp32", "kind": "step", "step": 0, "layer": "", "name": "loss", "value": 1.0}
BUNDLE = {"GPU": 1, "CPU": 1, "accelerator_type:V100": 0.001}


def placed(*places):
    ray = Ray(*places)
    group = PlacementGroup(ray, BUNDLE, len(places))
    group.place(lambda: None)
    return ray, group


def test_bundles_of_one_node_are_one_part_that_sees_all_their_gpus():
    ray, group = placed(("1", "3"), ("1", "5"))
    assert ray.groups == [([BUNDLE, BUNDLE], {"strategy": "PACK"})]
    assert [asked["num_gpus"] for asked in ray.options.asked] == [1, 1]
    (share,) = group.divide(2)
    assert (share.first, share.local, share.placement(2, on_gpu=True)) == (0, 2, "0+1")
    assert [actor.shared for actor in ray.actors] == [("3,5", False), None]
    (alone,) = group.divide(1)
    assert alone.placement(1, on_gpu=True) == "0"


def test_over_several_nodes_each_rank_has_a_gpu_of_its_own_node():
    ray, group = placed(("1", "0"), ("2", "4"), ("2", "6"))
    first, second = group.divide(3)
    assert [(share.node.id, share.first, share.local) for share in (first, second)] == [("2", 0, 2), ("1", 2, 1)]
    names = [Placement(name=share.placement(3, on_gpu=True)) for share in (first, second)]
    assert [names[0].device_of(rank) for rank in (0, 1)] == [0, 1]
    assert names[1].device_of(2) == 0
    assert first.placement(3, on_gpu=False) == "cpu+cpu+cpu"
    assert [actor.shared for actor in ray.actors] == [("0", True), ("4,6", True), None]
    assert len(group.divide(2)) == 1


def test_a_group_that_is_removed_leaves_nothing():
    ray, group = placed(("1", "0"), ("2", "0"))
    group.remove()
    assert ray.killed == ray.actors
    assert len(ray.removed) == 1


def test_nodes_to_avoid_are_named():
    ray = Ray()
    PlacementGroup(ray, BUNDLE, 1, ["a", "b"])
    assert ray.groups[0][1]["bundle_label_selector"] == [{"ray.io/node-id": "!in(a,b)"}]


def node(name, **resources):
    return {"Alive": True, "NodeID": name, "Resources": {"accelerator_type:V100": 1.0, **resources}}


def test_there_is_room_for_a_bundle_on_each_gpu_and_for_one_on_a_node_of_cpus():
    assert AcceleratorPool(Ray(nodes=[node("a", GPU=4.0, CPU=8.0), node("b", GPU=2.0, CPU=1.0)]), "V100", 5).room == 5
    assert AcceleratorPool(Ray(nodes=[node("a", CPU=8.0), node("b", CPU=8.0)]), "V100", 2).room == 2
    with pytest.raises(NodeLostError, match="only 1 V100 left, and 2 are to train together"):
        AcceleratorPool(Ray(nodes=[node("a", CPU=8.0)]), "V100", 2)._open(2)
    with pytest.raises(NodeLostError, match="no other node with V100"):
        AcceleratorPool(Ray(), "V100", 2)._open(1)


def on_v100(trial, count=1):
    return replace(trial, cell=replace(trial.cell, placement=Placement(name="+".join(["V100"] * count))))


@pytest.mark.parametrize("says", [[Ending(kind="done")], []])
def test_a_trial_runs_on_its_nodes_device_and_its_records_have_its_own_id(monkeypatch, tiny_trial, cpu, says):
    there, sent = [], []

    def run(*given):
        there.extend(given)
        return [Progress(text="working"), Numeric(trial=given[0].id, **LOSS), *says]

    actor = SimpleNamespace(run=SimpleNamespace(options=lambda **_: Method(run)))
    node = GroupNode(actor=actor, id="1", host="box", address="10.0.0.1", size=1)
    pool, trial = AcceleratorPool(Ray(), "V100", 1), on_v100(tiny_trial)
    division = [Ranks(node=node, first=0, local=1)]
    monkeypatch.setattr(pool, "_open", lambda _: SimpleNamespace(divide=lambda _: division))
    if says:
        assert pool.run(trial, cpu, sent.append) == says[0]
    else:
        with pytest.raises(NodeLostError, match="V100 on box ended without a message"):
            pool.run(trial, cpu, sent.append)
    assert (there[0].cell.placement.name, there[1].placement, there[2]) == ("cpu", "cpu", None)
    assert sent == [Progress(text="working"), Numeric(trial=trial.id, **LOSS)]
    assert there[0].id != trial.id


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_was_killed_because_the_run_was_stopped_is_no_failed_trial(monkeypatch, tiny_trial, cpu, nodes):
    pool = AcceleratorPool(Ray(), "V100", nodes)
    trial = on_v100(tiny_trial, nodes)
    died = Ending(kind="died", text="by signal 9")

    def start(*_):
        pool.closed.set()
        return died

    part = Part(name="V100 on host", run=start, halt=lambda: None)
    monkeypatch.setattr(pool, "_open", lambda _count: SimpleNamespace(divide=lambda count: ("a part",) * count))
    monkeypatch.setattr(pool, "_start", start)
    monkeypatch.setattr(pool, "_parts", lambda *_: [part] * nodes)
    with pytest.raises(CancelledError):
        pool.run(trial, cpu, lambda _message: None)


def test_the_interface_of_an_address_is_found():
    assert interface("127.0.0.1")
    assert interface("192.0.2.1") is None
