"""A trial of several ranks: its records are the first one's, and a failure of any is the trial's,
with its cause.
"""

import os
import re
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from torch.distributed import DistBackendError

from bench.launch import local
from bench.launch.local import LocalLauncher
from bench.launch.ranks import Rank, run_ranks
from bench.phases.memory import MemoryPeak
from bench.results.endings import Ending
from bench.results.records import EpochResult, Progress, TrialResult
from bench.spec.placement import Placement
from bench.worker.failures import failure

DONE = Ending(kind="done")


def rank(*messages, name="here"):
    """A rank that sends all of it at once; the last is its ending, or an error."""

    *sent, last = messages

    def run(on_message):
        for message in sent:
            on_message(message)
        if isinstance(last, Exception):
            raise last
        return last

    return Rank(name=name, run=run, halt=lambda: None)


def waiting(*messages):
    """A rank that waits for the others, and ends when it is halted."""
    halted = threading.Event()

    def run(on_message):
        for message in messages:
            on_message(message)
        assert halted.wait(10)
        return Ending(kind="died", text="killed")

    return Rank(name="there", run=run, halt=halted.set)


def peak(**figures):
    return TrialResult(arm="fp32", status="ok", row=MemoryPeak(**figures))


def test_records_are_the_first_ranks_with_the_memory_of_all():
    heard = []
    progress = Progress(text="a")
    first = rank(progress, peak(peak_resident_bytes=10), DONE)
    second = rank(Progress(text="b"), peak(peak_resident_bytes=30), DONE)
    assert run_ranks([first, second], heard.append) == DONE
    joint = peak(peak_resident_bytes=30, all_devices_bytes=40)
    assert heard == [progress, joint]


CLOSED = Ending(kind="error", text="connection closed", secondary=True)


@pytest.mark.parametrize(
    ("ranks", "kind", "text"),
    [
        (
            [waiting(), rank(Ending(kind="oom", text="too big"), name="other")],
            "oom",
            "other: too big",
        ),
        ([waiting(), rank(Ending(kind="unsupported", text="no bf16"))], "unsupported", "no bf16"),
        (
            [rank(CLOSED), rank(Ending(kind="died", text="by SIGKILL"), name="other")],
            "died",
            "other: by SIGKILL",
        ),
        ([rank(CLOSED), waiting()], "error", "here: connection closed"),
    ],
)
def test_a_failure_ends_the_other_ranks_and_a_lost_peer_is_the_cause_only_if_that_peer_reports_none(
    ranks, kind, text
):
    ending = run_ranks(ranks, lambda _: None, grace_s=0.2)
    assert (ending.kind, ending.text) == (kind, text)


def test_what_a_rank_raises_ends_the_others_and_their_results_are_none():
    heard = []
    memory = peak(model_bytes=3)
    lost = rank(memory, ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        run_ranks([waiting(memory), lost], heard.append)
    assert not heard


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        (RuntimeError("[pair.cc:561] Connection closed by peer [::1]"), True),
        (DistBackendError("NCCL communicator was aborted on rank 0."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_errors_of_a_lost_peer_are_secondary_and_the_models_own_are_not(error, secondary):
    assert failure(error).secondary is secondary


# In processes.

SUITE = """
import os
from pathlib import Path

from bench.spec import Data, Suite


def suite(fail: str = "", folder: str = "") -> Suite:
    def model(data):
        from torch import nn

        layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.Linear(16, 2))
        rank = os.environ.get("RANK")
        if fail == "wait":
            note = Path(folder) / f"{rank}.pid"

            def note_process(*_):
                if not note.exists():
                    note.write_text(str(os.getpid()))

            layers.register_forward_pre_hook(note_process)
        if fail == "unused":
            layers.idle = nn.Linear(3, 3)
            layers.forward = lambda inputs: layers[2](layers[1](layers[0](inputs)))
        if fail == "raise" and rank == "1":
            raise RuntimeError("the model broke")
        if fail == "die" and rank == "1":
            os._exit(7)
        if fail == "oom" and rank == "1":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return layers

    def optimizer(parameters):
        from torch import optim

        return optim.SGD(parameters, lr=0.01)

    return Suite(
        name="tiny",
        title="",
        data=Data(input_shape=(3, 8, 8), classes=2, steps_per_epoch=3),
        model=model,
        optimizer=optimizer,
        batch_size=4,
    )
"""
"""A suite that fails on its second device."""


@pytest.fixture
def trial(tiny_trial, tmp_path):
    """Make a memory trial on two CPUs, of which the second fails in some way."""
    file = Path(tiny_trial.cell.suite.file)
    file.write_text(SUITE)

    def make(fail, **changed):
        ref = replace(tiny_trial.cell.suite, parameters=(("fail", fail), ("folder", str(tmp_path))))
        cell = replace(tiny_trial.cell, suite=ref, placement=Placement(name="cpu+cpu"))
        return replace(tiny_trial, cell=cell, **changed)

    return make


@pytest.fixture(scope="module")
def launcher():
    return LocalLauncher()


def test_two_ranks_train_as_one_does(launcher, trial, cpu):
    def losses(trained):
        records = []
        assert launcher.run(trained, cpu, records.append) == DONE
        return [record.train_loss for record in records if isinstance(record, EpochResult)]

    both = trial("", phase="train", epochs=2)
    alone = replace(both, cell=replace(both.cell, placement=Placement(name="cpu")))
    assert losses(both) == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.parametrize(
    ("fail", "kind", "text"),
    [
        (
            "raise",
            "error",
            r"device 2 of 2 \(CPU\): RuntimeError: the model broke \(.*/tiny\.py:\d+\)",
        ),
        ("oom", "oom", r"device 2 of 2 \(CPU\): .*can't allocate memory.*"),
        (
            "die",
            "died",
            r"device 2 of 2 \(CPU\): the process ended without a message, by exit code 7.*",
        ),
        ("unused", "unsupported", "some of the model's parameters take no part in a step's loss.*"),
    ],
)
def test_the_kind_of_a_ranks_failure_is_the_trials(launcher, trial, cpu, *, fail, kind, text):
    ending = launcher.run(trial(fail), cpu, lambda _message: None)
    assert ending.kind == kind
    assert re.fullmatch(text, ending.text)


def working(folder):
    """The processes of both ranks, once both compute."""
    pids = []
    for path in sorted(folder.glob("*.pid")):
        pids += map(int, path.read_text().split())
    return pids if len(pids) == 2 else []


@pytest.mark.parametrize(("rank", "oom_kills", "kind"), [(0, 3, "died"), (1, 4, "oom")])
def test_a_rank_that_is_killed_in_mid_trial_is_named_and_the_others_are_ended(
    launcher, trial, cpu, tmp_path, monkeypatch, *, rank, oom_kills, kind
):
    def kill(_message):
        pids = working(tmp_path)
        if pids:
            with suppress(ProcessLookupError):
                os.kill(pids[rank], signal.SIGKILL)

    monkeypatch.setattr(local, "oom_kills", lambda: 3)
    monkeypatch.setattr("bench.worker.failures.oom_kills", lambda: oom_kills)
    ending = launcher.run(trial("wait", phase="train", epochs=10**6), cpu, kill)
    assert ending.kind == kind
    assert ending.text.startswith(
        f"device {rank + 1} of 2 (CPU): the process ended without a message, by "
    )
    assert not any(map(psutil.pid_exists, working(tmp_path)))


def test_ctrl_c_ends_all_ranks_at_once(launcher, trial, cpu, tmp_path):
    def stop(_message):
        if working(tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launcher.run(trial("wait", phase="train", epochs=10**6), cpu, stop)
    assert not any(map(psutil.pid_exists, working(tmp_path)))
