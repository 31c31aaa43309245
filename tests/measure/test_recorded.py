"""Answers of drivers on machines of others: judged right, or said to be doubtful or unknown.

The figures are those of the source that stands with them; the fake driver gives them back under the
real nvidia-ml-py.
"""

from __future__ import annotations

import pytest

from bench.phases.energy.stream import Window, doubt, rest
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeGpu
from tests.phases.test_energy_stream import NO_COUNTER, Bench, SimulatedLoad

POWER = "nvmlDeviceGetPowerUsage"
NO_POWER = {POWER: fake.NOT_SUPPORTED, "nvmlDeviceGetFieldValues": fake.NOT_SUPPORTED}


@pytest.fixture
def record(monkeypatch):
    """Return a function that measures a GPU for five seconds, idle or in steps of some length."""

    def make(gpu: FakeGpu, *, idle: bool = False, step_s: float = 0.007) -> Window | None:
        bench = Bench(monkeypatch, gpu)
        return bench.measure(rest if idle else SimulatedLoad(bench.clock, step_s))

    return make


def judged(window: Window, idle: Window | None = None, **about) -> str:
    return doubt(window, idle, **{"name": "GPU", "limit_w": None, **about})


def test_an_idle_counter_that_does_not_fit_the_power_makes_the_energy_doubtful(record):
    # github.com/ml-energy/zeus/issues/181: 187.443 J in 5.0045 s.
    idle = record(FakeGpu("GPU-a", power_w=65.3, counter_power_w=37.5), idle=True)
    steps = Window(
        source="counter", power_w=300.0, seconds=5.0, steps=100, start_s=0.0, sampled_w=299.0
    )
    assert "idle its counter rose by 37.5 W and its power read 65.3 W" in judged(steps, idle)


def test_a_counter_and_power_that_differ_by_2_per_cent_are_believed(record):
    # github.com/powerapi-ng/pyJoules/issues/23, TITAN RTX: 16,522 J in 60 s.
    window = record(FakeGpu("GPU-a", power_w=280.0, counter_power_w=275.4))
    assert (window.source, window.power_w) == ("counter", pytest.approx(275.4, rel=0.01))
    assert window.sampled_w == pytest.approx(280, rel=0.01)
    assert judged(window) == ""


@pytest.mark.parametrize("errors", [{}, NO_COUNTER])
def test_the_energy_of_a_grace_hopper_is_doubtful_even_if_counter_and_power_agree(record, errors):
    # github.com/ml-energy/zeus/pull/172: there the counter is that of the module, not of the GPU;
    # arXiv 2312.02741: and so is the instantaneous power.
    window = record(FakeGpu("GPU-a", power_w=400.0, errors=errors))
    assert judged(window) == ""
    assert "its module's, CPU and memory included" in judged(window, name="NVIDIA GH200 480GB")


@pytest.mark.parametrize("errors", [{}, NO_COUNTER])
def test_power_that_stands_far_above_the_limit_is_doubtful(record, errors):
    # github.com/NVIDIA/open-gpu-kernel-modules/issues/1237: an RTX 2000 Ada laptop of 35 W reads
    # 588 W all the time.
    window = record(FakeGpu("GPU-a", power_w=588.0, errors=errors))
    assert "588 W is more than its power limit of 35 W" in judged(window, limit_w=35.0)
    assert judged(window, limit_w=600.0) == ""


def test_without_power_the_counter_stands_alone(record):
    # github.com/msminhas93/nviwatch/pull/28: an RTX 4060 that does not support power readings.
    window = record(FakeGpu("GPU-a", power_w=115.0, errors=NO_POWER))
    assert (window.source, window.sampled_w, judged(window)) == ("counter", None, "")
