"""The sampler: its loop in a thread on a fake machine, and as a process of its own."""

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from bench.measure import sampler
from bench.measure.sampler import Lost, Sampler, sample_forever
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu

PATIENCE_S = 60
"""Long enough for a machine that is busy; only a test that fails waits for it."""
MANY = 1000
"""Batches within which everything happens."""


@pytest.fixture
def serve(monkeypatch):
    """Return a function that runs sample_forever in a thread on a fake machine, and returns our
    end of its connection.

    After the test nobody listens, and it must end and shut NVML down.
    """
    ours, theirs = Pipe()
    running = []

    def start(*gpus):
        driver = FakeDriver(gpus).install(monkeypatch)
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # which only a main thread may call
        asked = tuple((gpu.uuid, gpu.uuid) for gpu in gpus)
        thread = threading.Thread(
            target=sample_forever,
            args=(asked, theirs, 0.005),
            daemon=True,
        )
        thread.start()
        running.append((thread, driver))
        return ours

    yield start
    ours.close()
    for thread, driver in running:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert driver.running == 0


def receive(connection):
    assert connection.poll(PATIENCE_S), "nothing came"
    return connection.recv()


def ended(connection):
    """Whether the other end hangs up, after whatever it still sends."""
    try:
        for _ in range(MANY):
            receive(connection)
    except EOFError:
        return True
    return False


def test_what_is_sampled_while_nobody_receives_is_not_missing(serve):
    readings = []
    enough = threading.Event()

    def power_w(now_s):
        readings.append(len(readings) + 1)
        if len(readings) == 100:
            enough.set()
        return readings[-1]

    # Many GPUs, so that the pipe is full long before.
    gpus = [FakeGpu(f"GPU-{index}") for index in range(16)]
    gpus[0].power_w = power_w
    connection = serve(*gpus)
    assert enough.wait(PATIENCE_S)
    received = []
    while len(received) < 100:
        for sample in receive(connection):
            if sample.uuid == "GPU-0":
                received.append(sample.power_w)
    assert received == readings[: len(received)]


def test_it_ends_when_stopped(serve):
    connection = serve(FakeGpu("GPU-a"))
    receive(connection)
    connection.send("stop")
    assert ended(connection)


def test_it_ends_when_its_parent_has(serve, monkeypatch):
    connection = serve(FakeGpu("GPU-a"))
    receive(connection)
    monkeypatch.setattr(sampler.os, "getppid", lambda: 0)  # not 1, which may have started the tests
    assert ended(connection)


def test_a_gpu_lost_in_mid_run_is_reported_once_and_the_others_go_on_until_none_is_left(serve):
    bad = FakeGpu("GPU-a")
    good = FakeGpu("GPU-b")
    connection = serve(bad, good)
    assert len(receive(connection)) == 2
    bad.lost = True
    for _ in range(MANY):
        batch = receive(connection)
        if isinstance(batch[0], Lost):
            break
    lost, other = batch
    assert lost.placement == "GPU-a"
    assert "lost" in lost.reason
    assert other.uuid == "GPU-b"
    for _ in range(3):
        (sample,) = receive(connection)
        assert sample.uuid == "GPU-b"
    good.lost = True
    assert ended(connection)


def test_without_a_driver_it_ends_at_once_and_from_the_first_ignores_interrupts(monkeypatch):
    fake.without_driver(monkeypatch)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ours, theirs = Pipe()
    sample_forever((("0", "GPU-a"),), theirs, 0.1)
    assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN
    with pytest.raises(EOFError):
        ours.recv()


def test_it_imports_nothing_heavy():
    heavy = {"torch", "numpy", "pandas", "rich", "gpustat", "pynvml", "matplotlib"}
    code = f"import sys, bench.measure.sampler; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


STAND_IN = """
import sys
from tests.devices.fake_nvml import FakeGpu
from tests.devices.fake_nvml import FakeDriver

first, second = FakeGpu("GPU-b", power_w=150.0), FakeGpu("GPU-a", power_w=250.0)
second.processes = {1: None}
FakeDriver([first, second]).load()
"""
"""A pynvml.py for processes that inherit no monkeypatch."""


@pytest.fixture
def fake_pynvml(tmp_path, monkeypatch):
    """Let processes that this one spawns import a fake pynvml."""
    (tmp_path / "pynvml.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.syspath_prepend(str(tmp_path))


def drain_until(running, count):
    samples = []
    while len(samples) < count:
        assert wait([running.connection], PATIENCE_S), "nothing came"
        samples += running.drain()
    return samples


def test_a_real_process_outlives_interrupts_and_reports_a_gpu_that_is_not_there(fake_pynvml):
    with Sampler((("0", "GPU-a"), ("1", "GPU-b"), ("2", "GPU-z"))) as running:
        os.kill(running._process.pid, signal.SIGINT)  # Perhaps while it still imports.
        samples = drain_until(running, 6)
        os.kill(running._process.pid, signal.SIGINT)
        drain_until(running, 2)
    powers = {}
    for sample in samples:
        powers[sample.placement, sample.uuid] = sample.power_w
    assert powers == {("0", "GPU-a"): 250.0, ("1", "GPU-b"): 150.0}
    assert list(running.lost) == ["2"]
    assert "GPU-z" in running.lost["2"]
    assert running.stop() == []


def test_a_process_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(sampler, "PATIENCE_S", 0.1)
    monkeypatch.setattr(sampler, "sample_forever", deaf)
    with Sampler((("0", "GPU-a"),)) as running:
        process = running._process
        assert wait([running.connection], PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL


def deaf(gpus, connection, period_s):
    connection.send([])
    time.sleep(PATIENCE_S)
