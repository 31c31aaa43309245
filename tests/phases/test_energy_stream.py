"""Energy of simulated steps on a simulated clock, read from one GPU of a fake driver, or from
several.
"""

import math
from types import SimpleNamespace

import pytest

from bench.devices.monitor import GpuMeter, meters, open_monitor
from bench.phases.energy import stream
from bench.phases.energy.stream import AHEAD, BURST_S, doubt, measure, rest
from bench.results.records import Device
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu

NO_COUNTER = {"nvmlDeviceGetTotalEnergyConsumption": fake.NOT_SUPPORTED}
NO_POWER = {
    "nvmlDeviceGetPowerUsage": fake.NOT_SUPPORTED,
    "nvmlDeviceGetFieldValues": fake.NOT_SUPPORTED,
}
SOURCES = pytest.mark.parametrize("errors", [{}, NO_COUNTER], ids=["counter", "power"])


class SimulatedLoad:
    """Steps of a fixed length, one after the other; queueing may wait for each step."""

    def __init__(self, clock, step_s, waits=False):
        self.clock = clock
        self.step_s = step_s
        self.waits = waits
        self.busy_until_s = clock()
        self.idle_s = 0.0
        self.most_queued_s = 0.0

    def __call__(self, steps):
        for _ in range(steps):
            start_s = max(self.clock(), self.busy_until_s)
            self.idle_s += start_s - self.busy_until_s
            self.busy_until_s = start_s + self.step_s
            if self.waits:
                self.clock.advance(self.busy_until_s - self.clock())
        queued_s = self.busy_until_s - self.clock()
        self.most_queued_s = max(self.most_queued_s, queued_s)
        until_s = self.busy_until_s
        return lambda: self.clock() >= until_s


@pytest.fixture
def clock(monkeypatch):
    """The time that steps and meters go by."""
    clock = FakeClock()
    time = SimpleNamespace(monotonic=clock, time=clock, sleep=clock.advance)
    monkeypatch.setattr(stream, "time", time)
    return clock


@pytest.fixture
def meters_of(monkeypatch, clock):
    """Return a function that makes a machine of some GPUs, and returns their meters."""

    def install(*gpus):
        FakeDriver(gpus, clock=clock).install(monkeypatch)
        joint = Device(
            placement="0",
            kind="cuda",
            name="GPU",
            architecture="Hopper",
            uuids=tuple(gpu.uuid for gpu in gpus),
        )
        return meters(open_monitor(), joint)

    return install


@pytest.fixture
def window_of(clock, meters_of):
    """Return a function that measures the steps of some GPUs."""

    def run(*gpus, step_s=0.007, waits=False):
        load = SimulatedLoad(clock, step_s, waits)
        burst = math.ceil(BURST_S / step_s)
        return measure(load, meters_of(*gpus), 5.0, burst)

    return run


@pytest.mark.parametrize(
    ("step_s", "errors", "steps"),
    [
        (0.0003, {}, None),
        (2.3, {}, 8),
        (2.3, NO_COUNTER, 8),
    ],
)
def test_each_steps_energy_is_known_from_enough_of_them(window_of, step_s, errors, steps):
    gpu = FakeGpu("GPU-a", power_w=300.0, energy_start_j=12345.0, errors=errors)
    window = window_of(gpu, step_s=step_s)
    if steps is None:
        assert 5.0 <= window.seconds < 5.1
    else:
        assert window.steps == steps
    assert window.step_s == pytest.approx(step_s, rel=0.005)
    assert window.power_w == pytest.approx(300, rel=0.005)


@pytest.mark.parametrize(
    ("step_s", "errors", "cause"),
    [
        (0.08, NO_COUNTER, ""),
        (0.37, {}, ""),
        (0.37, NO_COUNTER, "its power was read a few times in each step"),
    ],
)
def test_where_the_host_waits_for_each_step_the_energy_is_right_or_doubtful(
    window_of, step_s, errors, cause
):
    def reading_w(now_s):
        renewed_s = now_s // 0.1 * 0.1  # every 100 ms
        return 400.0 if renewed_s % step_s < 0.7 * step_s else 200.0

    gpu = FakeGpu("GPU-a", power_w=reading_w, counter_power_w=340.0, errors=errors)
    window = window_of(gpu, step_s=step_s, waits=True)
    is_right = window.power_w == pytest.approx(340, rel=0.1)
    answer = doubt(window, None, name="T4", limit_w=None)
    assert bool(answer) == bool(cause)
    assert cause in answer
    assert is_right == (cause == "")


@SOURCES
def test_reading_a_meter_slows_no_step_of_the_window(window_of, clock, monkeypatch, errors):
    def slow(read):
        def slowly(meter):
            clock.advance(0.004)
            return read(meter)

        return slowly

    monkeypatch.setattr(GpuMeter, "energy_j", slow(GpuMeter.energy_j))
    monkeypatch.setattr(GpuMeter, "power_w", slow(GpuMeter.power_w))
    gpu = FakeGpu("GPU-a", power_w=300.0, errors=errors)
    window = window_of(gpu, step_s=0.021, waits=True)
    assert window.step_s == pytest.approx(0.021, rel=0.003)
    assert window.power_w == pytest.approx(300, rel=0.01)


@SOURCES
def test_the_device_never_waits_and_the_queue_does_not_run_away(clock, meters_of, errors):
    gpu = FakeGpu("GPU-a", errors=errors)
    load = SimulatedLoad(clock, 0.003)
    measure(load, meters_of(gpu), 5.0, burst=7)
    assert load.idle_s == 0.0
    assert load.most_queued_s <= AHEAD * (BURST_S + load.step_s)


@pytest.mark.parametrize(
    "faults",
    [
        {"errors": NO_COUNTER},
        {"energy_tick_s": 1e6},
        {"energy_wraps_at_j": 2000.0},
    ],
    ids=["not supported", "never ticks", "wraps"],
)
def test_without_a_sound_counter_power_is_the_source(window_of, clock, faults):
    window = window_of(FakeGpu("GPU-a", power_w=250.0, **faults))
    assert window.source == "power"
    assert window.power_w == pytest.approx(250)
    assert clock() < 13.5  # no stretch is run twice


def test_power_that_goes_silent_half_way_is_unknown(window_of):
    def power_w(now_s):
        return 250.0 if now_s < 2.0 else 0.0

    assert window_of(FakeGpu("GPU-a", power_w=power_w, errors=NO_COUNTER)) is None


def test_idle_power_is_that_of_a_device_that_does_nothing(clock, meters_of):
    def power_w(now_s):
        return 400.0 if now_s < 0.5 else 80.0

    gpu = FakeGpu("GPU-a", power_w=power_w)
    window = measure(rest, meters_of(gpu), 0.5)
    assert window.power_w == pytest.approx(80, rel=0.01)
    assert window.sampled_w == pytest.approx(80)
    assert clock() < 2.5


@SOURCES
@pytest.mark.parametrize(
    ("name", "limit_w", "cause"),
    [
        ("GPU", None, ""),
        ("GPU", 600.0, ""),
        # github.com/NVIDIA/open-gpu-kernel-modules/issues/1237: an RTX 2000 Ada laptop of 35 W
        # reads 588 W all the time.
        ("GPU", 35.0, "588 W is more than its power limit of 35 W"),
        # github.com/ml-energy/zeus/pull/172: there the counter is that of the module, not of the
        # GPU; arXiv 2312.02741: and so is the instantaneous power.
        ("NVIDIA GH200 480GB", None, "its module's, CPU and memory included"),
    ],
)
def test_energy_is_doubtful_where_counter_and_power_agree_on_what_cannot_be(
    window_of, errors, name, limit_w, cause
):
    window = window_of(FakeGpu("GPU-a", power_w=588.0, errors=errors))
    answer = doubt(window, None, name=name, limit_w=limit_w)
    assert bool(answer) == bool(cause)
    assert cause in answer


def test_without_power_the_counter_stands_alone(window_of):
    # github.com/msminhas93/nviwatch/pull/28: an RTX 4060 that does not support power readings.
    window = window_of(FakeGpu("GPU-a", power_w=115.0, errors=NO_POWER))
    assert window.source == "counter"
    assert window.sampled_w is None
    assert doubt(window, None, name="GPU", limit_w=None) == ""


@pytest.mark.parametrize(("errors", "source"), [({}, "counter"), (NO_COUNTER, "power")])
def test_the_powers_of_several_gpus_are_added(window_of, errors, source):
    # Counters start apart and tick at periods of their own.
    first = FakeGpu("GPU-a", power_w=300.0, energy_start_j=5000.0)
    second = FakeGpu("GPU-b", power_w=500.0, energy_tick_s=0.07, errors=errors)
    window = window_of(first, second)
    assert window.source == source
    assert window.power_w == pytest.approx(800, rel=0.003)


def test_the_power_of_several_gpus_is_unknown_where_one_has_none(window_of):
    second = FakeGpu("GPU-b", power_w=0.0, errors=NO_COUNTER)
    assert window_of(FakeGpu("GPU-a"), second) is None
