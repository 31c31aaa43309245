"""The energy phase of two processes that train together, beside a fake driver that has both of their GPUs."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from bench.devices.survey import _device
from bench.measure import energy as measuring
from bench.phases import energy, train
from bench.planning.plan import refusal_reason
from bench.results.records import Device, TrialResult
from bench.spec.trial import Placement
from bench.training import distributed
from tests.arms import arms
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu
from tests.processes import together

MUTE = {"nvmlDeviceGetTotalEnergyConsumption": fake.NOT_SUPPORTED}


def measure(rank, trial, device, errors):
    """Run an energy trial of a tenth of the usual length; the second process has no driver to ask."""
    for name in ("WINDOW_S", "IDLE_S", "LEAD_IN_S"):
        setattr(measuring, name, getattr(measuring, name) / 20)
    energy.WARM_UP_S = 0.1
    start, sent = time.monotonic(), []
    with pytest.MonkeyPatch.context() as patched:
        if rank == 0:
            second = FakeGpu("GPU-b", power_w=0.0 if errors else 200.0, energy_tick_s=0.013, errors=errors)
            both = [FakeGpu("GPU-a", power_w=100.0, energy_tick_s=0.01), second]
            FakeDriver(both, clock=lambda: time.monotonic() - start).install(patched)
        else:
            fake.without_driver(patched)
        energy.run(trial, device, sent.append)
    return [message for message in sent if isinstance(message, TrialResult)]


@pytest.fixture
def both(tiny_trial, cpu):
    """A trial on two devices, and the device that they are together."""
    trial = replace(tiny_trial, phase="energy", cell=replace(tiny_trial.cell, placement=Placement(name="cpu+cpu")))
    device = replace(cpu, placement="cpu+cpu", energy="counter", uuids=("GPU-a", "GPU-b"))
    return replace(trial, arms=arms("fp32")), device


@pytest.mark.slow
def test_the_first_process_reads_both_gpus_while_all_take_the_same_steps(both, tmp_path):
    (result,), others = together(tmp_path, measure, *both, {})
    found = result.energy
    assert (result.status, found.energy_source, others) == ("ok", "counter", [])
    assert found.energy_steps >= measuring.FEWEST_STEPS
    # Ticks are only as exact as this machine is quiet.
    assert found.mean_power_w == pytest.approx(300, rel=0.1)
    step_s = found.energy_window_s / found.energy_steps
    assert found.energy_j_per_step == pytest.approx(found.mean_power_w * step_s, rel=0.1)
    assert found.energy_net_j_per_step == pytest.approx(found.energy_j_per_step - found.idle_power_w * step_s, rel=0.1)
    assert found.idle_power_w == pytest.approx(300, rel=0.2)


@pytest.mark.slow
def test_where_one_gpu_tells_nothing_the_row_is_empty_and_says_which(both, tmp_path):
    (result,), others = together(tmp_path, measure, *both, MUTE)
    assert (result.status, result.energy, others) == ("unsupported", None, [])
    assert "GPU-b: the GPU tells neither energy nor power" in result.detail


def test_meters_of_some_of_the_devices_are_not_taken_for_all(both, monkeypatch):
    FakeDriver([FakeGpu("GPU-a"), FakeGpu("GPU-b")], clock=time.monotonic).install(monkeypatch)
    monkeypatch.setattr(distributed, "ranks", lambda: 3)
    with ExitStack() as stack:
        assert energy._open_meters(both[1], stack) == ((), "of 3 devices that train together, 2 can be asked from here")
    assert train._energy_counter(both[1])() is None
    monkeypatch.setattr(distributed, "ranks", lambda: 2)
    with ExitStack() as stack:
        meters, _ = energy._open_meters(both[1], stack)
    assert [meter.uuid for meter in meters] == ["GPU-a", "GPU-b"]
    assert train._energy_counter(both[1])() > 0


def test_energy_is_measured_on_devices_that_train_together(both):
    assert refusal_reason(*both) is None


def test_devices_that_train_together_have_the_uuids_of_all_and_the_source_that_all_have(monkeypatch):
    def gpu(index, nvml):
        return Device(
            placement=str(index), kind="cuda", name="A", architecture="B", uuid=f"GPU-{index}", energy=sources[index]
        )

    monkeypatch.setattr("bench.devices.survey._gpu", gpu)
    sources = ["counter", "power", "counter"]
    joint = _device(Placement(name="2+0"), None)
    assert (joint.uuid, joint.uuids, joint.energy) == (None, ("GPU-2", "GPU-0"), "counter")
    assert _device(Placement(name="0+1"), None).energy == "power"
