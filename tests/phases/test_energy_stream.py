"""Energy of simulated steps on a simulated clock, read from one GPU of a fake driver, or from
several.
"""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import pytest

from bench.devices.monitor import DeviceLostError, GpuMeter, meters, open_monitor
from bench.phases.energy import stream
from bench.phases.energy.stream import AHEAD, BURST_S, doubt, measure, rest
from bench.results.records import Device
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"
NO_COUNTER = {COUNTER: fake.NOT_SUPPORTED}


class SimulatedLoad:
    """Steps of a fixed length, one after the other; queueing may wait for each step."""

    def __init__(self, clock: FakeClock, step_s: float, *, waits: bool = False) -> None:
        self.clock, self.step_s, self.waits = clock, step_s, waits
        self.busy_until_s, self.idle_s, self.most_queued_s = clock(), 0.0, 0.0

    def __call__(self, steps: int):
        for _ in range(steps):
            start_s = max(self.clock(), self.busy_until_s)
            self.idle_s += start_s - self.busy_until_s
            self.busy_until_s = start_s + self.step_s
            if self.waits:
                self.clock.advance(self.busy_until_s - self.clock())
        self.most_queued_s = max(self.most_queued_s, self.busy_until_s - self.clock())
        until_s = self.busy_until_s
        return lambda: self.clock() >= until_s


class Bench:
    """GPUs, their meters and a clock; at a given moment something happens to the first."""

    def __init__(self, monkeypatch, *gpus: FakeGpu, at_s=math.inf, happens=None) -> None:
        self.clock, self.gpu = FakeClock(), gpus[0]
        self.at_s, self.happens = at_s, happens
        FakeDriver(gpus, clock=self.clock).install(monkeypatch)
        uuids = tuple(gpu.uuid for gpu in gpus)
        joint = Device(placement="0", kind="cuda", name="GPU", architecture="Hopper", uuids=uuids)
        self.meters = meters(open_monitor(), joint)
        time = SimpleNamespace(monotonic=self.clock, time=self.clock, sleep=self.sleep)
        monkeypatch.setattr(stream, "time", time)

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.clock() >= self.at_s:
            self.happens(self.gpu)

    def measure(self, load=None):
        load = load or SimulatedLoad(self.clock, 0.007)
        return measure(load, self.meters, 5.0, math.ceil(BURST_S / load.step_s))


@pytest.fixture
def bench(monkeypatch):
    return partial(Bench, monkeypatch)


@pytest.mark.parametrize(
    ("step_s", "errors", "steps"), [(0.0003, {}, None), (2.3, {}, 8), (2.3, NO_COUNTER, 8)]
)
def test_each_steps_energy_is_known_from_enough_of_them(bench, step_s, errors, steps):
    gpu = FakeGpu("GPU-a", power_w=300.0, energy_start_j=12345.0, errors=errors)
    machine = bench(gpu)
    window = machine.measure(SimulatedLoad(machine.clock, step_s))
    if steps is None:
        assert 5.0 <= window.seconds < 5.1
    else:
        assert window.steps == steps
    assert window.step_s == pytest.approx(step_s, rel=0.005)
    assert window.power_w == pytest.approx(300, rel=0.005)


@pytest.mark.parametrize(("step_s", "errors"), [(0.08, NO_COUNTER), (0.37, {}), (0.37, NO_COUNTER)])
def test_where_the_host_waits_for_each_step_the_energy_is_right_or_doubtful(bench, step_s, errors):
    def power_w(now_s: float) -> float:
        renewed_s = now_s // 0.1 * 0.1  # every 100 ms
        return 400.0 if renewed_s % step_s < 0.7 * step_s else 200.0

    machine = bench(FakeGpu("GPU-a", power_w=power_w, counter_power_w=340.0, errors=errors))
    window = machine.measure(SimulatedLoad(machine.clock, step_s, waits=True))
    answer = doubt(window, None, name="T4", limit_w=None)
    if window.power_w == pytest.approx(340, rel=0.1):
        assert answer == ""
    else:
        assert (step_s, errors) == (0.37, NO_COUNTER)
        assert "its power was read a few times in each step" in answer


@pytest.mark.parametrize("errors", [{}, NO_COUNTER])
def test_reading_a_meter_slows_no_step_of_the_window(bench, monkeypatch, errors):
    machine = bench(FakeGpu("GPU-a", power_w=300.0, errors=errors))

    def slow(read):
        def slowly(meter):
            machine.clock.advance(0.004)
            return read(meter)

        return slowly

    monkeypatch.setattr(GpuMeter, "energy_j", slow(GpuMeter.energy_j))
    monkeypatch.setattr(GpuMeter, "power_w", slow(GpuMeter.power_w))
    window = machine.measure(SimulatedLoad(machine.clock, 0.021, waits=True))
    assert window.step_s == pytest.approx(0.021, rel=0.003)
    assert window.power_w == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize("errors", [{}, NO_COUNTER])
def test_the_device_never_waits_and_the_queue_does_not_run_away(bench, errors):
    machine = bench(FakeGpu("GPU-a", errors=errors))
    load = SimulatedLoad(machine.clock, 0.003)
    machine.measure(load)
    assert load.idle_s == 0.0
    assert load.most_queued_s <= AHEAD * (BURST_S + load.step_s)


def stop_counting(gpu: FakeGpu) -> None:
    gpu.errors[COUNTER] = fake.UNKNOWN


@pytest.mark.parametrize(
    ("gpu", "at_s"),
    [
        ({"errors": NO_COUNTER}, math.inf),
        ({"energy_tick_s": 1e6}, math.inf),
        ({"energy_wraps_at_j": 2000.0}, math.inf),
        ({}, 8.0),
    ],
    ids=["not supported", "never ticks", "wraps", "stops answering"],
)
def test_without_a_sound_counter_power_is_the_source(bench, gpu, at_s):
    machine = bench(FakeGpu("GPU-a", power_w=250.0, **gpu), at_s=at_s, happens=stop_counting)
    window = machine.measure()
    assert window.source == "power"
    assert window.seconds >= 5.0
    assert machine.clock() < 13.5  # no stretch is run twice
    assert window.power_w == pytest.approx(250)
    assert window.step_s == pytest.approx(0.007, rel=0.003)


def test_zero_power_is_unknown_and_not_free_energy(bench):
    assert bench(FakeGpu("GPU-a", power_w=0.0, errors=NO_COUNTER)).measure() is None
    machine = bench(FakeGpu("GPU-a", power_w=0.0, average_power_w=120.0, errors=NO_COUNTER))
    assert machine.measure().power_w == pytest.approx(120)


def test_power_that_goes_silent_half_way_is_unknown(bench):
    gpu = FakeGpu("GPU-a", power_w=lambda now_s: 250.0 if now_s < 2.0 else 0.0, errors=NO_COUNTER)
    assert bench(gpu).measure() is None


def test_a_gpu_lost_in_mid_run_is_a_failure(bench):
    def lose(gpu):
        gpu.lost = True

    with pytest.raises(DeviceLostError, match="lost"):
        bench(FakeGpu("GPU-a"), at_s=3.0, happens=lose).measure()


def test_idle_power_is_that_of_a_device_that_does_nothing(bench):
    machine = bench(FakeGpu("GPU-a", power_w=lambda now_s: 400.0 if now_s < 0.5 else 80.0))
    window = measure(rest, machine.meters, 0.5)
    assert window.power_w == pytest.approx(80, rel=0.01)
    assert window.sampled_w == pytest.approx(80)
    assert machine.clock() < 2.5


@pytest.mark.parametrize("errors", [{}, NO_COUNTER])
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
    bench, errors, name, limit_w, cause
):
    window = bench(FakeGpu("GPU-a", power_w=588.0, errors=errors)).measure()
    answer = doubt(window, None, name=name, limit_w=limit_w)
    assert bool(answer) == bool(cause)
    assert cause in answer


def test_without_power_the_counter_stands_alone(bench):
    # github.com/msminhas93/nviwatch/pull/28: an RTX 4060 that does not support power readings.
    no_power = dict.fromkeys(
        ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"), fake.NOT_SUPPORTED
    )
    window = bench(FakeGpu("GPU-a", power_w=115.0, errors=no_power)).measure()
    assert (window.source, window.sampled_w) == ("counter", None)
    assert doubt(window, None, name="GPU", limit_w=None) == ""


@pytest.mark.parametrize(("errors", "source"), [({}, "counter"), (NO_COUNTER, "power")])
def test_the_powers_of_several_gpus_are_added(bench, errors, source):
    # Counters start apart and tick at periods of their own.
    first = FakeGpu("GPU-a", power_w=300.0, energy_start_j=5000.0, energy_tick_s=0.1)
    second = FakeGpu("GPU-b", power_w=500.0, energy_start_j=70.0, energy_tick_s=0.07, errors=errors)
    window = bench(first, second).measure()
    assert window.source == source
    assert window.power_w == pytest.approx(800, rel=0.003)


def test_the_power_of_several_gpus_is_unknown_where_one_has_none(bench):
    second = FakeGpu("GPU-b", power_w=0.0, errors=NO_COUNTER)
    assert bench(FakeGpu("GPU-a"), second).measure() is None
