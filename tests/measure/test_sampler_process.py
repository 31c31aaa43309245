"""The sampler as a process of its own."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from bench.measure import sampler
from bench.measure.sampler import Sampler
from bench.results.records import Sample

PATIENCE_S = 60
"""Long enough for a machine that is busy; only a test that fails waits for it."""

STAND_IN = """
import sys
from tests.devices.fake_nvml import FakeGpu
from tests.devices.fake_nvml import FakeDriver

FakeDriver([FakeGpu("GPU-b", power_w=150.0), FakeGpu("GPU-a", power_w=250.0, processes={1: None})]).load()
"""
"""A pynvml.py for processes that inherit no monkeypatch."""


@pytest.fixture
def fake_pynvml(tmp_path, monkeypatch):
    """Let processes that this one spawns import a fake pynvml."""
    (tmp_path / "pynvml.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.syspath_prepend(str(tmp_path))


def drain_until(running: Sampler, count: int) -> list[Sample]:
    samples: list[Sample] = []
    while len(samples) < count and running.connection is not None:
        assert wait([running.connection], PATIENCE_S), "nothing came"
        samples += running.drain()
    return samples


def test_a_real_process_samples_until_it_is_stopped(fake_pynvml):
    with Sampler((("0", "GPU-a"), ("1", "GPU-b"))) as running:
        running.own({os.getpid()})
        samples = drain_until(running, 6)
    assert {(one.placement, one.uuid, one.power_w) for one in samples} == {("0", "GPU-a", 250.0), ("1", "GPU-b", 150.0)}
    assert samples[-1].foreign_processes is not None
    assert running.lost == {}
    assert running.stop() == []


def test_a_real_process_notes_a_gpu_that_is_not_there(fake_pynvml):
    with Sampler((("0", "GPU-a"), ("1", "GPU-z"))) as running:
        drain_until(running, 2)
    assert list(running.lost) == ["1"]
    assert "GPU-z" in running.lost["1"]


def test_a_real_process_outlives_an_interrupt(fake_pynvml):
    # Whoever started the tests may ignore the signal, and the child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with Sampler((("0", "GPU-a"),)) as running:
        os.kill(running._process.pid, signal.SIGINT)  # Perhaps while it still imports.
        assert len(drain_until(running, 2)) >= 2
        os.kill(running._process.pid, signal.SIGINT)
        assert len(drain_until(running, 2)) >= 2
    signal.signal(signal.SIGINT, before)


def test_a_real_process_without_a_driver_ends_by_itself(monkeypatch, tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError('no NVML here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    running = Sampler((("0", "GPU-a"),))
    running.start()
    process = running._process
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    running.own({1})
    assert running.drain() == []
    assert running.connection is None
    assert running.stop() == []


def test_a_process_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(sampler, "PATIENCE_S", 0.1)
    monkeypatch.setattr(sampler, "sample_forever", deaf)
    running = Sampler((("0", "GPU-a"),))
    running.start()
    process = running._process
    assert wait([running.connection], PATIENCE_S)
    running.stop()
    assert process.exitcode == -signal.SIGKILL


def deaf(gpus, connection, period_s):
    connection.send([])
    time.sleep(PATIENCE_S)
