"""The launcher of a cluster without one: code that is sent, an actor, and a launcher on a fake of
Ray's module.
"""

import importlib.util
import sys
from concurrent.futures import CancelledError
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from bench.ray import launcher
from bench.ray.launcher import AcceleratorActor, RayLauncher, connect, stage
from bench.results.endings import Ending
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
        self.messages, self.given = messages, []
        self.locate = method(lambda: (node, f"host {node}"))
        self.cancel = method(lambda: None)
        self.meeting_place = method(lambda: (f"10.0.0.{node}", 29400))
        self.stream = method(self.take)

    def take(self, trial, *given):
        self.given.append((trial, *given))
        for message in self.messages:
            if hasattr(message, "trial"):
                yield replace(message, trial=trial.id)
            else:
                yield message


class Ray:
    """As much of Ray's module as a launcher uses."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, *actors, nodes=()):
        self.actors = actors
        self.util = mock.Mock()
        self.options = mock.Mock()
        self.shutdown = mock.Mock()
        self.options.side_effect = [method(lambda *_, actor=actor: actor) for actor in actors]
        self.nodes = lambda: nodes

    def remote(self, _class):
        return SimpleNamespace(options=self.options)

    def get(self, values):
        if isinstance(values, Exception):
            raise values
        return values

    def wait(self, references, **_):
        return references, []


def node(**resources):
    return {"Alive": True, "Resources": {"accelerator_type:V100": 1.0, **resources}}


def on_v100(trial, count=1):
    placement = Placement(name="+".join(["V100"] * count))
    return replace(trial, cell=replace(trial.cell, placement=placement))


@pytest.fixture
def opened(monkeypatch, tiny_file):
    """Opens a launcher on a fake of Ray's module."""

    def make(ray, *accelerators):
        monkeypatch.setattr(launcher, "stage", lambda *_: {str(tiny_file): "own/0/tiny.py"})
        monkeypatch.setattr(launcher, "connect", lambda *_: ray)
        return RayLauncher(None, accelerators, [])

    return make


def test_each_rank_sees_its_gpu_alone_and_ranks_of_a_node_follow_each_other(
    opened, tiny_trial, cpu
):
    gpu = replace(cpu, kind="cuda")
    nodes = [node(GPU=1.0, CPU=4.0), node(GPU=2.0, CPU=4.0)]
    ray = Ray(Actor("2"), Actor("1"), Actor("2"), nodes=nodes)
    cluster = opened(ray, "V100", "V100+V100+V100")
    assert cluster.run(on_v100(tiny_trial, 3), gpu, lambda _message: None) == DONE
    assert [call.kwargs["num_gpus"] for call in ray.options.mock_calls] == [1, 1, 1]
    lone = Rendezvous(rank=0, world=3, local_world=1, address="10.0.0.1", port=29400)
    second = replace(lone, rank=1, local_world=2)
    third = replace(lone, rank=2, local_world=2)
    assert [actor.given[0][2] for actor in ray.actors] == [second, lone, third]
    assert cluster.run(on_v100(tiny_trial), gpu, lambda _message: None) == DONE
    assert [len(actor.given) for actor in ray.actors] == [1, 2, 1]  # the same group
    cluster.close()
    ray.util.remove_placement_group.assert_called_once_with(ray.util.placement_group())


@pytest.mark.parametrize(
    ("nodes", "room"), [([node(GPU=4.0), node(GPU=2.0)], 6), ([node(), node()], 2)]
)
def test_there_is_room_on_each_gpu_and_on_nodes_of_cpus_for_what_they_declare(opened, nodes, room):
    ray = Ray(*(Actor("1") for _ in range(room)), nodes=nodes)
    fits = "+".join(["V100"] * room)
    opened(ray, fits)
    message = rf"takes {room + 1} V100, and the cluster has {room}\. Its types are: V100"
    with pytest.raises(UsageError, match=message):
        opened(ray, f"{fits}+V100")
    ray.shutdown.assert_called_once()


def test_a_trial_runs_on_its_nodes_device_and_its_records_have_its_own_id(opened, tiny_trial, cpu):
    trial = on_v100(tiny_trial)
    actor = Actor("1", [Progress(text="working"), Numeric(trial="", **LOSS), DONE])
    cluster = opened(Ray(actor, nodes=[node()]), "V100")
    sent = []
    assert cluster.run(trial, cpu, sent.append) == DONE
    ((there, device, meeting),) = actor.given
    assert there.cell.placement.name == device.placement == "cpu"
    assert meeting is None
    assert sent == [Progress(text="working"), Numeric(trial=trial.id, **LOSS)]
    assert there.id != trial.id


def test_a_trial_on_a_lost_node_ends_with_the_reason(opened, tiny_trial, cpu):
    actor = Actor("1")
    cluster = opened(Ray(actor, nodes=[node()]), "V100")
    actor.meeting_place = method(lambda: OSError("the actor is dead"))
    ending = cluster.run(on_v100(tiny_trial), cpu, print)
    text = "V100 on host 1 was lost (OSError: the actor is dead)"
    assert ending == Ending(kind="lost", text=text)


def test_what_was_killed_because_the_run_was_stopped_is_no_failed_trial(opened, tiny_trial, cpu):
    actor = Actor("1", [Progress(text="working"), Ending(kind="died", text="by signal 9")])
    cluster = opened(Ray(actor, nodes=[node()]), "V100")
    with pytest.raises(CancelledError):
        cluster.run(on_v100(tiny_trial), cpu, lambda _message: cluster.cancel())


def test_a_run_that_is_stopped_while_it_waits_for_accelerators_gives_them_back(opened):
    ray = Ray(Actor("1"), nodes=[node()])
    ray.wait = mock.Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        opened(ray, "V100")
    ray.util.remove_placement_group.assert_called_once_with(ray.util.placement_group())
    ray.shutdown.assert_called_once()


def test_what_is_sent_to_the_nodes_is_the_code_and_the_suite_file_with_its_neighbours(
    tmp_path, tiny_file
):
    for name in ("helper.py", "secret.txt"):
        (tiny_file.parent / name).write_text("")
    folder = tmp_path / "stage"
    own = folder / stage(folder, [str(tiny_file)])[str(tiny_file)]
    assert own.read_text() == tiny_file.read_text()
    assert {path.name for path in own.parent.iterdir()} == {"tiny.py", "helper.py"}
    assert {path.name for path in folder.iterdir()} == {"bench", "suites", "own"}


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    with pytest.raises(UsageError, match=r"pip install 'ampmeter\[ray\]'"):
        connect(None, tmp_path)


def test_a_head_that_does_not_answer_is_told(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=r"No Ray cluster answers at '127.0.0.1:9'"):
        connect("127.0.0.1:9", tmp_path)


def test_a_node_runs_a_trial_without_the_script_it_was_started_by(monkeypatch, tiny_trial, cpu):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    main = vars(sys.modules["__main__"])
    with mock.patch.dict(main, __file__=tiny_trial.cell.suite.file) as script:
        worker = AcceleratorActor(threads="1")
        assert "__file__" not in script
        *messages, ending = worker.stream(tiny_trial, cpu, None)
    assert ending == DONE
    (result,) = (message for message in messages if isinstance(message, TrialResult))
    assert result.status == "ok"
    worker.run_rank = mock.Mock(side_effect=UsageError("Process 7 does not end"))
    (ending,) = worker.stream(tiny_trial, cpu, None)
    assert ending == Ending(kind="lost", text="Process 7 does not end")
