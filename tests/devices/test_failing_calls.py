"""Each of the calls of NVML fails in turn: what is measured is right or known to be unknown, and
NVML is shut down.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from bench.devices import monitor as monitors
from bench.devices import processes
from bench.devices.monitor import DeviceLostError, GpuMeter, open_monitor
from bench.measure.disturbance import open_watch
from bench.phases.energy import stream
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB
from tests.measure.test_disturbance import gpu_device
from tests.phases.test_energy_stream import SimulatedLoad


class FailingDriver(FakeDriver):
    """A driver whose Nth call fails once, after it has done what it was called for."""

    calls = 0

    def answer(self, name, *arguments):
        self.calls += 1
        answer = super().answer(name, *arguments)
        return self.code if self.calls == self.fail_at else answer


MOST = 60
"""Of the calls that one use makes, so many are made to fail: later ones are the same in a loop."""


def each_call(monkeypatch, code, use, *, ends=True):
    """Call ``use`` with a driver whose first call fails, then its second, until it makes fewer.

    Returns how many failed.

    Unless ``ends`` is false, it must shut down what it has initialised.
    """
    pid = os.getpid()
    gpu = FakeGpu("GPU-a", power_w=300.0, processes={pid: GiB}, work=[(10, pid, 50)])
    driver = FailingDriver([gpu]).install(monkeypatch)
    driver.code = code
    for number in range(1, MOST + 1):
        driver.fail_at = number
        driver.calls = 0
        driver.running = 0
        use(driver.clock)
        # An initialisation that failed is not ended.
        assert driver.running == 0 or number == 1 or not ends
        if driver.calls < number:
            return number - 1
    return MOST


LOST = (fake.GPU_IS_LOST, fake.DRIVER_NOT_LOADED)
CODES = pytest.mark.parametrize("code", [fake.UNKNOWN, fake.NOT_SUPPORTED, *LOST])


def with_monitor(function):
    """Return a use that calls the function with the monitor and the clock, where the monitor starts
    and is not lost.
    """

    def use(clock):
        monitor = open_monitor()
        if monitor is not None:
            with monitor, suppress(DeviceLostError):
                function(monitor, clock)

    return use


@CODES
def test_a_gpu_is_described_without_what_failed_or_is_left_out(monkeypatch, code):
    def describe(monitor, clock):
        timed = SimpleNamespace(monotonic=clock, sleep=clock.advance)
        monkeypatch.setattr(monitors, "time", timed)
        assert monitor.describe("GPU-a")["uuid"] == "GPU-a"

    assert each_call(monkeypatch, code, with_monitor(describe)) > 5


@CODES
def test_energy_is_right_or_the_gpu_is_said_to_be_lost(monkeypatch, code):
    known = []

    def measure_energy(monitor, clock):
        load = SimulatedLoad(clock, 0.5)
        meter = GpuMeter(monitor, "GPU-a")
        timed = SimpleNamespace(monotonic=clock, time=clock, sleep=clock.advance)
        monkeypatch.setattr(stream, "time", timed)
        window = stream.measure(load, [meter], 2.0)
        known.append(window.power_w)

    assert each_call(monkeypatch, code, with_monitor(measure_energy)) > 5
    assert known == pytest.approx([300] * len(known), rel=0.01)
    assert known or code in LOST


@CODES
def test_a_watch_names_a_gpu_that_is_lost_and_claims_nothing_else(monkeypatch, code):
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)

    def use(clock):
        with open_watch(gpu_device("GPU-a"), clock) as watch:
            for _ in range(4):
                clock.advance(0.2)
                watch.poll()
            named = watch.disturbance()
        assert named == "" or (code in LOST and "lost" in named)

    assert each_call(monkeypatch, code, use) > 5


@CODES
def test_processes_are_listed_or_unknown(monkeypatch, code):
    # In which gpustat measures the processes' use of the CPU.
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)

    def use(_clock):
        assert set(processes.gpu_processes()) <= {"GPU-a"}

    # gpustat does not shut down after an error.
    assert each_call(monkeypatch, code, use, ends=False) > 2
