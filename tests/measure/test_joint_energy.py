"""Energy of GPUs that train together, each with a meter of its own: simulated steps beside a fake driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.devices.monitor import joint_source, meters, open_monitor
from bench.measure.energy import measure, total
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu
from tests.measure.test_energy import SimulatedLoad

NO_COUNTER = {"nvmlDeviceGetTotalEnergyConsumption": fake.NOT_SUPPORTED}


def gpus(**second):
    """Two GPUs whose counters start apart and tick at periods of their own."""
    return [
        FakeGpu("GPU-a", power_w=300.0, energy_start_j=5000.0, energy_tick_s=0.1),
        FakeGpu("GPU-b", **{"power_w": 500.0, "energy_start_j": 70.0, "energy_tick_s": 0.07, **second}),
    ]


@pytest.fixture
def window(monkeypatch, cpu):
    """Measure steps of 7 ms on the GPUs of a driver, in the order of their UUIDs."""

    def go(boards, *uuids, step_s=0.007):
        clock = FakeClock()
        FakeDriver(boards, clock=clock).install(monkeypatch)
        device = replace(cpu, uuids=uuids)
        return measure(
            SimulatedLoad(clock, step_s),
            *meters(open_monitor(), device),
            burst=3,
            clock=clock,
            sleep=clock.advance,
        )

    return go


@pytest.mark.parametrize("uuids", [("GPU-a", "GPU-b"), ("GPU-b", "GPU-a")])
def test_all_counters_are_read_over_one_window(window, uuids):
    found = window(gpus(), *uuids)
    assert found.source == "counter"
    assert found.seconds >= 5.0
    assert found.energy_j / found.steps == pytest.approx(800 * 0.007, rel=0.003)


def test_a_change_of_power_is_in_each_counters_own_share_of_the_window(window):
    boards = gpus(power_w=lambda now_s: 500.0 if now_s < 3.0 else 100.0)
    found = window(boards, "GPU-a", "GPU-b")
    begin_s = 1.1  # the lead-in, and the first ticks after it
    expected_j = 300 * found.seconds + 500 * (3.0 - begin_s) + 100 * (found.seconds - 3.0 + begin_s)
    assert found.energy_j == pytest.approx(expected_j, rel=0.02)


def test_a_gpu_that_is_named_twice_is_counted_once(window):
    assert window(gpus(), "GPU-a", "GPU-a").power_w == pytest.approx(300, rel=0.003)


def test_where_one_has_no_counter_the_power_of_all_is_integrated(window):
    found = window(gpus(errors=NO_COUNTER), "GPU-a", "GPU-b")
    assert (found.source, found.power_w) == ("power", pytest.approx(800, rel=0.003))


def test_where_one_tells_nothing_the_energy_of_all_is_unknown(window):
    assert window(gpus(power_w=0.0, errors=NO_COUNTER), "GPU-a", "GPU-b") is None


def test_a_sum_is_known_where_every_part_is():
    assert total([1.0, 0.0]) == 1.0
    assert total([1.0, None]) is total([]) is None


@pytest.mark.parametrize(
    ("sources", "joint"),
    [
        ({"counter"}, "counter"),
        ({"counter", "power"}, "power"),
        ({"counter", None}, "power"),
        ({None}, None),
    ],
)
def test_the_source_is_one_that_all_have(sources, joint):
    assert joint_source(sources) == joint
