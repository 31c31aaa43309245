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
from bench.results.records import Progress, TrialResult
from bench.spec.errors import UsageError
from bench.spec.placement import Placement, Rendezvous
from tests.report.builders import block

DONE = Ending(kind="done")
WORKING = Progress(text="working")


def method(function):
    """A method of an actor."""
    called = SimpleNamespace(remote=function)
    called.options = lambda **_: called
    return called


class Actor:
    def __init__(self, node="1", messages=(DONE,)):
        self.messages = messages
        self.given = []
        self.locate = method(lambda: (node, f"host {node}"))
        self.cancel = method(lambda: None)
        self.meeting_place = method(lambda: (f"10.0.0.{node}", 29400))
        self.stream = method(self.take)

    def take(self, *given):
        self.given.append(given)
        return iter(self.messages)


class Ray:
    """As much of Ray's module as a launcher uses; its nodes have one V100 each."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, *actors, nodes=({},)):
        self.util = mock.Mock()
        self.shutdown = mock.Mock()
        remotes = [method(lambda *_, actor=actor: actor) for actor in actors]
        self.options = mock.Mock(side_effect=remotes)
        self.resources = nodes

    def nodes(self):
        nodes = []
        for resources in self.resources:
            of_node = {"accelerator_type:V100": 1.0, **resources}
            nodes.append({"Alive": True, "Resources": of_node})
        return nodes

    def remote(self, _class):
        return SimpleNamespace(options=self.options)

    def get(self, values):
        if isinstance(values, Exception):
            raise values
        return values

    def wait(self, references, **_):
        return references, []


def on(placement, trial):
    cell = replace(trial.cell, placement=Placement(name=placement))
    return replace(trial, cell=cell)


@pytest.fixture
def trial(tiny_trial):
    return on("V100", tiny_trial)


@pytest.fixture
def opened(monkeypatch, tiny_file):
    """Opens a launcher on a fake of Ray's module."""

    def opened(ray, *accelerators):
        monkeypatch.setattr(launcher, "stage", lambda *_: {str(tiny_file): "own/0/tiny.py"})
        monkeypatch.setattr(launcher, "connect", lambda *_: ray)
        return RayLauncher(None, accelerators or ["V100"], [])

    return opened


@pytest.fixture
def gpus(cpu):
    """Three GPUs, two of which are of one node: actors, Ray, and a GPU as a device."""
    actors = [Actor("2"), Actor("1"), Actor("2")]
    ray = Ray(*actors, nodes=[{"GPU": 1.0}, {"GPU": 2.0}])
    return actors, ray, replace(cpu, kind="cuda")


def test_each_rank_sees_its_gpu_alone_and_ranks_of_a_node_follow_each_other(opened, trial, gpus):
    actors, ray, gpu = gpus
    cluster = opened(ray, "V100+V100+V100")
    for call in ray.options.mock_calls:
        assert call.kwargs["num_gpus"] == 1
    joint = on("V100+V100+V100", trial)
    assert cluster.run(joint, gpu, print) == DONE
    meetings = []
    for actor in actors:
        ((_, _, meeting),) = actor.given
        meetings.append(meeting)
    lone = Rendezvous(
        rank=0,
        world=3,
        local_world=1,
        address="10.0.0.1",
        port=29400,
    )
    second = replace(lone, rank=1, local_world=2)
    third = replace(lone, rank=2, local_world=2)
    assert meetings == [second, lone, third]


def test_smaller_placements_share_the_accelerators_of_larger_ones(opened, trial, gpus):
    actors, ray, gpu = gpus
    cluster = opened(ray, "V100", "V100+V100+V100")
    assert cluster.run(trial, gpu, print) == DONE
    assert [len(actor.given) for actor in actors] == [0, 1, 0]
    cluster.close()
    ray.util.remove_placement_group.assert_called_once_with(ray.util.placement_group())


@pytest.mark.parametrize(
    ("nodes", "room"),
    [
        ([{"GPU": 4.0}, {"GPU": 2.0}], 6),
        ([{}, {}], 2),
    ],
)
def test_there_is_room_on_each_gpu_and_on_nodes_of_cpus_for_what_they_declare(opened, nodes, room):
    actors = [Actor()] * room
    ray = Ray(*actors, nodes=nodes)
    fits = "+".join(["V100"] * room)
    opened(ray, fits)
    message = rf"takes {room + 1} V100, and the cluster has {room}\. Its types are: V100"
    with pytest.raises(UsageError, match=message):
        opened(ray, f"{fits}+V100")
    ray.shutdown.assert_called_once()


def test_a_trial_runs_on_its_nodes_device_and_its_records_have_its_own_id(opened, trial, cpu):
    actor = Actor(messages=[WORKING, block("the node's"), DONE])
    cluster = opened(Ray(actor))
    sent = []
    assert cluster.run(trial, cpu, sent.append) == DONE
    ((there, device, meeting),) = actor.given
    assert there.cell.placement.name == "cpu"
    assert device.placement == "cpu"
    assert meeting is None
    assert sent == [WORKING, block(trial.id)]


def test_a_trial_on_a_lost_node_ends_with_the_reason(opened, trial, cpu):
    actor = Actor()
    cluster = opened(Ray(actor))
    actor.meeting_place = method(lambda: OSError("the actor is dead"))
    ending = cluster.run(trial, cpu, print)
    assert ending.kind == "lost"
    assert ending.text == "V100 on host 1 was lost (OSError: the actor is dead)"


def test_what_was_killed_because_the_run_was_stopped_is_no_failed_trial(opened, trial, cpu):
    killed = Ending(kind="died", text="by signal 9")
    actor = Actor(messages=[WORKING, killed])
    cluster = opened(Ray(actor))

    def stop(_message):
        cluster.cancel()

    with pytest.raises(CancelledError):
        cluster.run(trial, cpu, stop)


def test_a_run_that_is_stopped_while_it_waits_for_accelerators_gives_them_back(opened):
    ray = Ray(Actor())
    ray.wait = mock.Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        opened(ray)
    ray.util.remove_placement_group.assert_called_once_with(ray.util.placement_group())
    ray.shutdown.assert_called_once()


def test_what_is_sent_to_the_nodes_is_the_code_and_the_suite_file_with_its_neighbours(
    tmp_path, tiny_file
):
    for name in ("helper.py", "secret.txt"):
        tiny_file.with_name(name).touch()
    folder = tmp_path / "stage"
    names = stage(folder, [str(tiny_file)])
    own = folder / names[str(tiny_file)]
    assert own.read_text() == tiny_file.read_text()
    assert {path.name for path in own.parent.iterdir()} == {"tiny.py", "helper.py"}
    assert {path.name for path in folder.iterdir()} == {"bench", "suites", "own"}


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
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
    result = messages[-1]
    assert isinstance(result, TrialResult)
    assert result.status == "ok"


def test_a_process_that_does_not_end_loses_its_node(monkeypatch, tiny_trial, cpu):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    worker = AcceleratorActor(threads="1")
    worker.run_rank = mock.Mock(side_effect=UsageError("Process 7 does not end"))
    (ending,) = worker.stream(tiny_trial, cpu, None)
    assert ending == Ending(kind="lost", text="Process 7 does not end")
