"""Counters of a fake driver: what has come since the last time."""

from __future__ import annotations

import pytest

from bench.devices.monitor import DeviceLostError
from bench.devices.nvidia import ProcessLoads, ThrottleTimes, open_nvml
from tests.devices import fake_nvml as fake
from tests.devices.fake_gpu import FakeGpu
from tests.devices.fake_nvml import FakeDriver

POWER, THERMAL = 74, 75
"""Numbers of nvml.h's fields."""
MS = 1_000_000


@pytest.fixture
def nvml(monkeypatch):
    opened = []

    def open_on(gpu: FakeGpu):
        FakeDriver([gpu]).install(monkeypatch)
        opened.append(open_nvml())
        return opened[-1]

    yield open_on
    for one in opened:
        one.close()


def test_times_are_those_since_the_last_call(nvml):
    gpu = FakeGpu("GPU-a", fields={POWER: 7000 * MS, THERMAL: 9000 * MS})
    times = ThrottleTimes(nvml(gpu), "GPU-a")
    assert times.told == {"sw_power_cap", "sw_thermal"}
    gpu.fields = {POWER: 7250 * MS, THERMAL: 9000 * MS}
    assert times.since(1.0) == {"sw_power_cap": 0.25}
    assert times.since(1.0) == {}


def test_where_nothing_is_counted_nothing_is_told(nvml):
    times = ThrottleTimes(nvml(FakeGpu("GPU-a")), "GPU-a")
    assert (times.told, times.since(1.0)) == (frozenset(), {})


def test_a_field_that_grows_faster_than_time_is_dropped(nvml):
    gpu = FakeGpu("GPU-a", fields={POWER: 0, THERMAL: 0})
    times = ThrottleTimes(nvml(gpu), "GPU-a")
    gpu.fields = {POWER: 60_000 * MS, THERMAL: 10 * MS}
    assert times.since(0.2) == {"sw_thermal": 0.01}
    gpu.fields = {POWER: 60_001 * MS, THERMAL: 10 * MS}
    assert times.since(0.2) == {}
    assert times.told == {"sw_thermal"}


def test_a_counter_that_was_reset_goes_on_from_there(nvml):
    gpu = FakeGpu("GPU-a", fields={THERMAL: 500 * MS})
    times = ThrottleTimes(nvml(gpu), "GPU-a")
    gpu.fields[THERMAL] = 0
    assert times.since(0.2) == {}
    gpu.fields[THERMAL] = 20 * MS
    assert times.since(0.2) == {"sw_thermal": 0.02}


def test_a_field_that_says_the_gpu_is_lost_is_a_failure(nvml):
    gpu = FakeGpu("GPU-a", fields={THERMAL: 0})
    times = ThrottleTimes(nvml(gpu), "GPU-a")
    gpu.fields, gpu.field_code = {}, fake.GPU_IS_LOST
    with pytest.raises(DeviceLostError, match="lost"):
        times.since(0.2)


@pytest.mark.parametrize(
    ("code", "loads"), [(None, {}), (fake.SUCCESS, {}), (fake.NOT_SUPPORTED, None), (fake.NO_PERMISSION, None)]
)
def test_no_work_is_told_from_work_that_is_not_told(nvml, code, loads):
    errors = {} if code is None else {"nvmlDeviceGetProcessUtilization": code}
    assert ProcessLoads(nvml(FakeGpu("GPU-a", errors=errors)), "GPU-a").read() == loads


def test_a_process_has_the_largest_of_its_samples(nvml):
    gpu = FakeGpu("GPU-a", work=[(1000, 5, 99)])
    loads = ProcessLoads(nvml(gpu), "GPU-a")
    gpu.work += [(2000, 5, 10), (3000, 5, 30), (4000, 5, 20), (4000, 6, 0)]
    assert loads.read() == {5: 30.0}
    assert loads.read() == {}
