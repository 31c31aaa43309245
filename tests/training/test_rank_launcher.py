"""A trial of several ranks of which one fails: the row names it and its cause, and no process is left."""

import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from torch.distributed import DistBackendError

from bench.launch.local import LocalLauncher
from bench.spec.trial import Placement
from bench.training import failures, rank_launcher
from bench.training.failures import is_secondary

SUITE = """
import os
from pathlib import Path

from bench.spec import Data, Suite


def suite(fail: str = "", folder: str = "") -> Suite:
    def model(data):
        from torch import nn

        rank = int(os.environ.get("RANK", 0))
        if fail == "raise" and rank == 1:
            print("a word before")
            raise RuntimeError("the model broke\\nin its second line")
        if fail == "oom" and rank == 1:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")
        if fail == "die" and rank == 1:
            os._exit(7)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, 2))
        if fail == "wait":
            note = Path(folder) / f"{rank}.pid"
            layers.register_forward_pre_hook(lambda *_: note.write_text(str(os.getpid())) and None)
        if fail == "unused":
            layers.idle = nn.Linear(3, 3)
            layers.forward = lambda inputs: layers[2](layers[1](layers[0](inputs)))
        return layers

    def optimizer(parameters):
        from torch import optim

        return optim.SGD(parameters, lr=0.01)

    return Suite(
        name="failing",
        title="fails on its second device",
        data=Data(input_shape=(3, 8, 8), classes=2, steps_per_epoch=3),
        model=model,
        optimizer=optimizer,
        batch_size=4,
    )
"""


@pytest.fixture
def trial(tiny_trial, tmp_path):
    """Make a memory trial on two CPUs, of which the second fails in some way."""
    file = tmp_path / "failing.py"
    file.write_text(SUITE)

    def make(fail, **changed):
        parameters = (("fail", fail), ("folder", str(tmp_path)))
        ref = replace(tiny_trial.cell.suite, name="failing", file=str(file), parameters=parameters)
        cell = replace(tiny_trial.cell, suite=ref, placement=Placement(name="cpu+cpu"))
        return replace(tiny_trial, cell=cell, **changed)

    return make


@pytest.fixture(scope="module")
def launcher():
    return LocalLauncher()


@pytest.mark.slow
def test_a_model_that_raises_is_reported_with_its_device_and_its_own_line(launcher, trial, cpu):
    ending = launcher.run(trial("raise"), cpu, lambda _message: None)
    assert ending.kind == "error"
    assert re.fullmatch(r"device 2 of 2 \(CPU\): RuntimeError: the model broke \(.*/failing\.py:\d+\)", ending.text)
    assert ending.log.rstrip().endswith("RuntimeError: the model broke\nin its second line")
    assert "rank_launcher.run" not in ending.log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "kind", "text"),
    [
        ("oom", "oom", "device 2 of 2 (CPU)"),
        ("die", "error", "device 2 of 2 (CPU) ended without a message, by exit code 7"),
        ("unused", "unsupported", "some of the model's parameters take no part in a step's loss"),
    ],
)
def test_the_kind_of_a_ranks_failure_is_the_trials(launcher, trial, cpu, *, fail, kind, text):
    ending = launcher.run(trial(fail), cpu, lambda _message: None)
    assert ending.kind == kind
    assert ending.text.startswith(text)


def kill_in_mid_trial(folder, rank):
    notes = [folder / f"{one}.pid" for one in (0, 1)]
    while not all(note.exists() and note.read_text() for note in notes):
        time.sleep(0.02)
    os.kill(int(notes[rank].read_text()), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_in_mid_trial_is_named_and_the_others_are_ended(launcher, trial, cpu, tmp_path, rank):
    killer = threading.Thread(target=kill_in_mid_trial, args=(tmp_path, rank), daemon=True)
    killer.start()
    long = trial("wait", phase="train", epochs=10**6)
    ending = launcher.run(long, cpu, lambda _message: None)
    assert ending.kind == "error"
    assert ending.text.startswith(f"device {rank + 1} of 2 (CPU) ended without a message, by SIGKILL")
    pids = [int((tmp_path / f"{one}.pid").read_text()) for one in (0, 1)]
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize(("kills", "kind"), [((3, 4), "oom"), ((3, 3), "error"), ((None, None), "error")])
def test_a_rank_that_the_out_of_memory_killer_took_is_oom(monkeypatch, kills, kind):
    monkeypatch.setattr(failures, "oom_kills", lambda: kills[1])
    process = rank_launcher.subprocess.Popen([sys.executable, "-c", "input()"], stdin=rank_launcher.subprocess.PIPE)
    process.kill()
    assert rank_launcher._lost(process, kills[0], "device 1 of 2 (CPU)").failed.kind == kind


def stand_in(monkeypatch, code):
    """Let ranks run ``code`` instead; return the list of their processes."""
    started, popen = [], rank_launcher.subprocess.Popen

    def start(command, **options):
        started.append(popen([sys.executable, "-c", code, command[-1]], **options))
        return started[-1]

    monkeypatch.setattr(rank_launcher.subprocess, "Popen", start)
    return started


ENDING = """
import os, sys, time
from multiprocessing.connection import Connection
from bench.training.failures import ErrorReport
from bench.results.records import Failed
connection = Connection(int(sys.argv[1]))
connection.recv()
if os.environ["RANK"] == "1":
    time.sleep({seconds})
    os._exit(7)
connection.send(ErrorReport(failed=Failed(kind="error", text="lost the other"), output="", secondary=True))
"""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.3, "device 2 of 2 (CPU) ended without a message, by exit code 7"),
        (60, "device 1 of 2 (CPU): lost the other"),
    ],
)
def test_a_lost_peer_is_the_cause_only_if_that_peer_reports_none(trial, cpu, monkeypatch, seconds, text):
    stand_in(monkeypatch, ENDING.format(seconds=seconds))
    monkeypatch.setattr(rank_launcher, "GRACE_S", 20.0 if seconds < 1 else 0.5)
    with pytest.raises(rank_launcher.RankError) as raised:
        rank_launcher.run(trial(""), cpu, lambda _message: None, 2)
    assert raised.value.failed.text == text


def test_errors_of_a_lost_peer_are_secondary_and_the_models_own_are_not():
    closed = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [::1]")
    assert is_secondary(closed)
    assert is_secondary(DistBackendError("NCCL communicator was aborted on rank 0."))
    assert not is_secondary(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_secondary(ValueError("Connection closed by peer"))


STAND_IN = """
import os, sys, time
from multiprocessing.connection import Connection
from bench.results.records import Done, MemoryPeak, TrialResult
rank, connection = int(os.environ["RANK"]), Connection(int(sys.argv[1]))
connection.recv()
peak = MemoryPeak(peak_resident_bytes=(10, 30, 20)[rank], first_peak_bytes=(7, 5, 6)[rank])
connection.send(TrialResult(precision="fp32", status="ok", memory=peak))
connection.send(Done())
if rank:
    time.sleep(20)
"""


def test_memory_is_the_largest_and_the_sum_and_no_process_is_left(trial, cpu, monkeypatch):
    started, sent = stand_in(monkeypatch, STAND_IN), []
    placed = trial("")
    placed = replace(placed, cell=replace(placed.cell, placement=Placement(name="cpu+cpu+cpu")))
    rank_launcher.run(placed, cpu, sent.append, 3)
    (result,) = sent
    memory = result.memory
    assert (memory.peak_resident_bytes, memory.first_peak_bytes, memory.all_devices_bytes) == (30, 7, 60)
    assert [process.returncode for process in started[1:]] == [-signal.SIGKILL] * 2
