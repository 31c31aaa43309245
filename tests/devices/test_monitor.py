"""NVML's readings and counters, on the machines that a fake driver makes."""

from __future__ import annotations

import time

import pytest

from bench.devices.monitor import (
    DeviceLostError,
    Monitor,
    ThrottleTimes,
    monitor_problem,
    open_monitor,
)
from bench.results.records import Sample
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB

# Numbers of nvml.h's fields.
POWER = 74
THERMAL = 75
MS = 1_000_000


@pytest.fixture
def machine(monkeypatch):
    """Make a machine of GPUs and open its NVML."""

    def make(*gpus, **options):
        FakeDriver(gpus, **options).install(monkeypatch)
        return Monitor()

    return make


def test_where_nvml_does_not_start_there_is_none_and_the_problem_is_known(monkeypatch):
    fake.without_driver(monkeypatch)
    assert open_monitor() is None
    assert "Shared Library Not Found" in monitor_problem()
    FakeDriver(init_code=fake.DRIVER_NOT_LOADED).install(monkeypatch)
    assert open_monitor() is None
    assert "NVML does not start: " in monitor_problem()


def test_a_gpu_is_found_by_uuid_with_or_without_its_prefix_whatever_the_order(machine):
    nvml = machine(FakeGpu("GPU-b", power_w=2.0), FakeGpu("GPU-a", power_w=1.0))
    assert nvml.power_w("GPU-a") == 1.0
    assert nvml.power_w("b") == 2.0
    message = r"GPU-z: Not Found\. Slices of GPUs \(MIG\) are not read"
    with pytest.raises(DeviceLostError, match=message):
        nvml.power_w("GPU-z")


def test_neither_used_nor_free_memory_has_the_drivers_reserve(machine):
    gpu = FakeGpu("GPU-a", memory_used=5 * GiB)
    memory = machine(gpu).memory("GPU-a")
    assert memory.used == 5 * GiB
    assert memory.free == 74 * GiB


@pytest.mark.parametrize(
    ("options", "power_w"),
    [
        ({"power_w": 650.0}, 650.0),
        ({"errors": {"nvmlDeviceGetFieldValues": 3}}, 120.0),
        ({"power_w": 0.0}, 120.0),
        ({"power_w": 0.0, "average_power_w": 0.0}, None),
    ],
)
def test_power_is_instantaneous_where_known_else_the_average_and_zero_is_unknown(
    machine, options, power_w
):
    gpu = FakeGpu("GPU-a", **{"average_power_w": 120.0, **options})
    assert machine(gpu).power_w("GPU-a") == power_w


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (None, None),
        (0x0, "none"),
        (0x45, "idle+sw_power_cap+hw_thermal"),
        (0x1AA, "applications_clocks+hw_slowdown+sw_thermal+hw_power_brake+display_clock"),
        (0x8004, "sw_power_cap"),
    ],
)
def test_clock_event_reasons_have_names_and_none_is_told_from_unknown(machine, bits, names):
    gpu = FakeGpu("GPU-a")
    if bits is None:
        gpu.errors = {"nvmlDeviceGetCurrentClocksThrottleReasons": fake.NOT_SUPPORTED}
    else:
        gpu.reasons = bits
    assert machine(gpu).sample("GPU-a", "0").throttle_reasons == names


@pytest.mark.parametrize(("missing", "used"), [((), 10 * GiB), (fake.DRIVER_470, 11 * GiB)])
def test_a_sample_holds_every_reading_also_of_an_old_driver(machine, missing, used):
    gpu = FakeGpu("GPU-a", power_w=321.5, reasons=0x24)
    before = time.time()
    sample = machine(gpu, missing=missing).sample("GPU-a", "3")
    assert before <= sample.time_s <= time.time()
    assert sample == Sample(
        time_s=sample.time_s,
        placement="3",
        uuid="GPU-a",
        utilization_pct=90.0,
        memory_used_bytes=used,  # an old driver counts its own reserve
        power_w=321.5,
        temperature_c=50.0,
        sm_clock_mhz=1500,
        memory_clock_mhz=2600,
        throttle_reasons="sw_power_cap+sw_thermal",
    )


def test_a_throttle_counter_faster_than_time_is_dropped_and_one_that_begins_anew_counts_on(machine):
    gpu = FakeGpu("GPU-a", fields={POWER: 0, THERMAL: 500 * MS})
    times = ThrottleTimes(machine(gpu), "GPU-a")
    gpu.fields[POWER] = 60_000 * MS
    gpu.fields[THERMAL] = 0
    assert times.since(0.3) == {}
    gpu.fields[POWER] += MS
    gpu.fields[THERMAL] = 20 * MS
    assert times.since(0.3) == pytest.approx({"sw_thermal": 0.02})
