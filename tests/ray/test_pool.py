"""The launcher of a cluster without one: code that is sent, an actor, and a pool on a fake of Ray's module."""

import importlib.util
import sys
from concurrent.futures import CancelledError
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from bench.launch import Ending
from bench.ray.launcher import Accelerator, AcceleratorActor, AcceleratorPool, connect, stage
from bench.results.records import Numeric, Progress, TrialResult
from bench.spec.errors import UsageError
from bench.spec.placement import Placement, Rendezvous

DONE = Ending(kind="done")
LOSS = {"precision": "fp32", "kind": "step", "step": 0, "layer": "", "name": "loss", "value": 1.0}


def method(function):
    """A method of an actor."""
    called = SimpleNamespace(remote=function)
    called.options = lambda **_: called
    return called


class Actor:
    def __init__(self, node, messages=(DONE,)):
        self.messages, self.given, self.called = messages, [], []
        self.locate = method(lambda: (node, f"host {node}"))
        self.cancel = method(lambda: None)
        self.meeting_place = method(lambda: (f"10.0.0.{node}", 29400))
        self.stream = method(self.take)
        self.call = method(lambda *given: self.called.append(given))

    def take(self, trial, *given):
        self.given.append((trial, *given))
        return [replace(message, trial=trial.id) if hasattr(message, "trial") else message for message in self.messages]


class Ray:
    """As much of Ray's module as a pool uses."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, *places, nodes=()):
        self.actors = [Actor(node) for node in places]
        self.util, self.options = mock.Mock(), mock.Mock()
        self.options.side_effect = [method(lambda *_, actor=actor: actor) for actor in self.actors]
        self.nodes = lambda: nodes

    def remote(self, _class):
        return SimpleNamespace(options=self.options)

    def get(self, values):
        return values

    def wait(self, references, **_):
        return references, []


def node(**resources):
    return {"Alive": True, "Resources": {"accelerator_type:V100": 1.0, **resources}}


def on_v100(trial, count=1):
    return replace(trial, cell=replace(trial.cell, placement=Placement(name="+".join(["V100"] * count))))


def test_each_rank_sees_its_gpu_alone_and_ranks_of_a_node_follow_each_other(tiny_trial, cpu):
    gpu, trial = replace(cpu, kind="cuda"), on_v100(tiny_trial, 3)
    ray = Ray("2", "1", "2", nodes=[node(GPU=1.0, CPU=4.0), node(GPU=2.0, CPU=4.0)])
    pool = AcceleratorPool(ray, "V100", 3, [])
    assert pool.run(trial, gpu, lambda _message: None) == DONE
    assert [call.kwargs["num_gpus"] for call in ray.options.mock_calls] == [1, 1, 1]
    meeting = {"world": 3, "address": "10.0.0.1", "port": 29400}
    meetings = [Rendezvous(rank=rank, local_world=local, **meeting) for rank, local in ((1, 2), (0, 1), (2, 2))]
    assert [actor.given[0][2] for actor in ray.actors] == meetings
    assert pool.run(on_v100(tiny_trial), gpu, lambda _message: None) == DONE
    assert [len(actor.given) for actor in ray.actors] == [1, 2, 1]  # the same group
    pool.close()
    ray.util.remove_placement_group.assert_called_once_with(ray.util.placement_group())


def test_a_node_that_comes_later_makes_the_calls_before(tiny_trial, cpu):
    ray = Ray("1", nodes=[node(CPU=4.0)])
    AcceleratorPool(ray, "V100", 1, [("module:function", 3)]).run(on_v100(tiny_trial), cpu, print)
    assert ray.actors[0].called == [("module:function", 3)]


@pytest.mark.parametrize(("nodes", "room"), [([node(GPU=4.0), node(GPU=2.0)], 6), ([node(), node()], 2)])
def test_there_is_room_on_each_gpu_and_on_nodes_of_cpus_for_what_they_declare(nodes, room):
    assert AcceleratorPool(Ray(nodes=nodes), "V100", 2, []).room == room


def test_too_few_accelerators_are_told_without_waiting(tiny_trial, cpu):
    with pytest.raises(UsageError, match="2 V100 are needed, and the cluster has 1 left"):
        AcceleratorPool(Ray(nodes=[node(CPU=8.0)]), "V100", 2, []).run(on_v100(tiny_trial, 2), cpu, print)


@pytest.fixture
def alone():
    """A pool that holds one accelerator, whose actor sends some messages."""

    def make(*messages):
        actor = Actor("1", messages)
        pool = AcceleratorPool(Ray(), "V100", 1, [])
        pool._held = [Accelerator(type="V100", actor=actor, node="1", name="V100 on box")]
        return pool

    return make


def test_a_trial_runs_on_its_nodes_device_and_its_records_have_its_own_id(alone, tiny_trial, cpu):
    sent, trial = [], on_v100(tiny_trial)
    pool = alone(Progress(text="working"), Numeric(trial="", **LOSS), DONE)
    assert pool.run(trial, cpu, sent.append) == DONE
    ((there, device, meeting),) = pool._held[0].actor.given
    assert (there.cell.placement.name, device.placement, meeting) == ("cpu", "cpu", None)
    assert sent == [Progress(text="working"), Numeric(trial=trial.id, **LOSS)]
    assert there.id != trial.id


def test_what_was_killed_because_the_run_was_stopped_is_no_failed_trial(alone, tiny_trial, cpu):
    pool = alone(Progress(text="working"), Ending(kind="died", text="by signal 9"))
    with pytest.raises(CancelledError):
        pool.run(on_v100(tiny_trial), cpu, lambda _message: pool.closed.set())


@pytest.mark.parametrize("is_taking", [False, True])
def test_a_run_that_was_stopped_takes_no_accelerators_or_gives_them_back(tiny_trial, cpu, is_taking):
    ray = Ray("1", nodes=[node(GPU=1.0, CPU=4.0)])
    pool = AcceleratorPool(ray, "V100", 1, [])
    if is_taking:  # Ctrl-C comes before there is a group to release
        ray.util.placement_group.side_effect = lambda *_, **__: pool.close() or mock.DEFAULT
    else:
        pool.close()
    with pytest.raises(CancelledError):
        pool.run(on_v100(tiny_trial), cpu, print)
    assert ray.util.placement_group.call_count == ray.util.remove_placement_group.call_count == is_taking
    assert ray.actors[0].given == []


def test_what_is_sent_to_the_nodes_is_the_code_and_the_suite_file_with_its_neighbours(tmp_path, tiny_file):
    for name in ("helper.py", "secret.txt"):
        (tiny_file.parent / name).write_text("")
    folder = tmp_path / "stage"
    own = folder / stage(folder, [str(tiny_file)])[str(tiny_file)]
    assert own.read_text() == tiny_file.read_text()
    assert {path.name for path in own.parent.iterdir()} == {"tiny.py", "helper.py"}
    assert {path.name for path in folder.iterdir()} == {"bench", "suites", "own"}


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    with pytest.raises(UsageError, match=r"pip install 'ampmeter\[ray\]'"):
        connect(None, tmp_path)


def test_a_head_that_does_not_answer_is_told(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=r"No Ray cluster answers at '127.0.0.1:9'"):
        connect("127.0.0.1:9", tmp_path)


def test_a_node_runs_a_trial_without_the_script_it_was_started_by(monkeypatch, tiny_trial, cpu):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    with mock.patch.dict(vars(sys.modules["__main__"]), __file__=tiny_trial.cell.suite.file) as script:
        worker = AcceleratorActor(threads="1")
        assert "__file__" not in script
        *messages, ending = worker.stream(tiny_trial, cpu, None)
    assert ending == Ending(kind="done")
    assert [message.status for message in messages if isinstance(message, TrialResult)] == ["ok"]
    worker.run_rank = mock.Mock(side_effect=UsageError("Process 7 does not end"))
    assert [*worker.stream(tiny_trial, cpu, None)] == [Ending(kind="lost", text="Process 7 does not end")]
