"""The energy phase, from trial to result: a tiny suite on the CPU beside a fake GPU's meter."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from bench.measure import energy as measuring
from bench.phases import energy
from bench.results.records import Device, TrialResult
from bench.spec.trial import Trial
from bench.worker.worker import run_trial
from tests.arms import arms
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu

NO_COUNTER = {"nvmlDeviceGetTotalEnergyConsumption": fake.NOT_SUPPORTED}


@pytest.fixture
def run(monkeypatch, tiny_trial: Trial, cpu: Device):
    """Run an energy trial, of a tenth of the usual length, beside a GPU whose clock is the real one."""
    for name in ("WINDOW_S", "IDLE_S", "LEAD_IN_S"):
        monkeypatch.setattr(measuring, name, getattr(measuring, name) / 20)
    monkeypatch.setattr(energy, "WARM_UP_S", 0.1)

    def go(*gpus: FakeGpu, uuid: str | None = "GPU-a", precision: str = "amp-bf16") -> TrialResult:
        start, sent = time.monotonic(), []
        FakeDriver(gpus, clock=lambda: time.monotonic() - start).install(monkeypatch)
        trial = replace(tiny_trial, phase="energy", arms=arms(precision))
        energy.run(trial, replace(cpu, uuid=uuid), sent.append)
        (result,) = [message for message in sent if isinstance(message, TrialResult)]
        return result

    return go


@pytest.mark.parametrize("source", ["counter", "power"])
def test_a_trial_gives_the_energy_of_a_step_from_either_source(run, source):
    result = run(FakeGpu("GPU-a", power_w=100.0, energy_tick_s=0.01, errors={} if source == "counter" else NO_COUNTER))
    found = result.energy
    assert (result.precision, result.status, found.energy_source) == ("amp-bf16", "ok", source)
    assert result.switches.autocast == "bfloat16"
    assert found.energy_window_s >= measuring.WINDOW_S
    assert found.energy_steps >= measuring.FEWEST_STEPS
    assert found.energy_j_per_step * found.energy_steps == pytest.approx(
        found.mean_power_w * found.energy_window_s, rel=0.1
    )
    assert found.energy_net_j_per_step < found.energy_j_per_step
    if source == "power":  # a counter's ticks are only as exact as this machine is quiet
        assert (found.mean_power_w, found.idle_power_w) == (pytest.approx(100), pytest.approx(100))


def test_without_a_driver_the_trial_is_unsupported(run, monkeypatch, tiny_trial, cpu):
    sent = []
    fake.without_driver(monkeypatch)
    energy.run(replace(tiny_trial, phase="energy"), replace(cpu, uuid="GPU-a"), sent.append)
    (result,) = sent
    assert (result.status, result.energy) == ("unsupported", None)
    assert "NVML does not start" in result.detail


def test_a_cpu_is_unsupported(run):
    result = run(FakeGpu("GPU-a"), uuid=None)
    assert (result.status, result.energy, result.detail) == ("unsupported", None, energy.CPU_REASON)


@pytest.mark.parametrize(
    ("gpu", "uuid", "why"),
    [
        (FakeGpu("GPU-a", power_w=0.0, errors=NO_COUNTER), "GPU-a", r"energy: Not Supported; power: .* not with a"),
        (FakeGpu("GPU-a", slices=[FakeGpu("MIG-s")]), "MIG-s", "MIG slice shares its board's power"),
        (FakeGpu("GPU-a"), "GPU-other", "NVML knows no GPU GPU-other"),
    ],
)
def test_where_nothing_can_be_read_the_row_says_why(run, gpu, uuid, why):
    result = run(gpu, uuid=uuid)
    assert (result.status, result.energy) == ("unsupported", None)
    assert re.search(why, result.detail)


def test_the_worker_knows_the_phase(monkeypatch, tiny_trial, cpu):
    fake.without_driver(monkeypatch)
    sent = []
    run_trial(replace(tiny_trial, phase="energy"), cpu, None, None, sent.append)
    assert [message.status for message in sent] == ["unsupported"]
    assert sent[0].wall_s is not None
