"""The energy phase, from trial to result: a tiny suite on the CPU with fake GPUs' meters."""

import os
import re
from dataclasses import replace

import pytest

from bench.phases.energy import stream as measuring
from bench.results.records import Progress
from bench.spec.errors import UnsupportedError
from bench.spec.placement import Placement
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import Now, install_gpus, result_of, run_phase, shorten_energy
from tests.processes import together

NO_COUNTER = {"nvmlDeviceGetTotalEnergyConsumption": fake.NOT_SUPPORTED}


@pytest.fixture
def run(monkeypatch, tiny_trial, cpu):
    """Run a short energy trial with GPUs, or without a driver where none is given."""
    shorten_energy(monkeypatch)

    def go(*gpus, uuid="GPU-a"):
        if gpus:
            install_gpus(monkeypatch, *gpus)
        else:
            fake.without_driver(monkeypatch)
        device = replace(cpu, kind="cuda" if gpus else "cpu", uuid=uuid)
        return result_of(run_phase(tiny_trial, device, "energy", "amp-bf16"))

    return go


@pytest.mark.parametrize(("source", "errors"), [("counter", {}), ("power", NO_COUNTER)])
def test_a_trial_gives_the_energy_of_a_step_from_either_source(run, source, errors):
    result = run(FakeGpu("GPU-a", power_w=100.0, energy_tick_s=0.01, errors=errors))
    figures = result.row
    assert result.status == "ok"
    assert figures.energy_source == source
    assert result.switches.autocast == "bfloat16"
    assert figures.energy_window_s >= measuring.STRETCH_S
    assert figures.energy_steps >= measuring.FEWEST_STEPS
    step_s = figures.energy_window_s / figures.energy_steps
    assert figures.energy_j_per_step == pytest.approx(figures.mean_power_w * step_s)
    assert figures.alone_samples_per_s == pytest.approx(4 / step_s)
    if source == "power":  # a counter's ticks are only as exact as this machine is quiet
        assert figures.mean_power_w == figures.idle_power_w == pytest.approx(100)


def test_a_counter_that_does_not_fit_the_power_makes_the_row_doubtful(run):
    result = run(FakeGpu("GPU-a", power_w=200.0, counter_power_w=100.0, energy_tick_s=0.01))
    assert result.status == "ok"
    assert result.detail.startswith(
        "the GPU's energy is doubtful: while steps ran its counter rose by"
    )
    assert "its power read 200 W; idle its counter" in result.detail


def test_another_process_that_computes_makes_the_energy_doubtful(run):
    work = Now([(os.getpid(), 60), (123, 40)])
    result = run(FakeGpu("GPU-a", power_w=200.0, errors=NO_COUNTER, work=work))
    assert result.status == "ok"
    assert result.row.mean_power_w == pytest.approx(200)
    assert result.row.alone_samples_per_s is None  # it was not alone
    assert re.fullmatch(
        r"the GPU's energy is doubtful: while steps ran another process used the GPU "
        r"\(pid 123, \d+% of the time\)",
        result.detail,
    )


@pytest.mark.parametrize(
    ("gpus", "uuid", "why"),
    [
        ([], "GPU-a", "NVML does not start"),
        (
            [FakeGpu("GPU-a")],
            None,
            "^of 1 devices that train, 0 can be asked for energy from here$",
        ),
        (
            [FakeGpu("GPU-a", power_w=0.0, errors=NO_COUNTER)],
            "GPU-a",
            r"energy: Not Supported; power: .* not with a",
        ),
    ],
)
def test_where_nothing_can_be_read_the_row_says_why(run, gpus, uuid, why):
    with pytest.raises(UnsupportedError, match=why):
        run(*gpus, uuid=uuid)


def measure(rank, trial, device, second):
    """Run a short energy trial in one of two processes; the second has no driver to ask."""
    with pytest.MonkeyPatch.context() as patched:
        shorten_energy(patched)
        if rank == 0:
            first = FakeGpu("GPU-a", power_w=100.0, energy_tick_s=0.01)
            second = FakeGpu("GPU-b", energy_tick_s=0.013, **second)
            install_gpus(patched, first, second)
        else:
            fake.without_driver(patched)
        try:
            return run_phase(trial, device, "energy", "fp32")
        except UnsupportedError as error:
            return str(error)


@pytest.fixture
def both(tiny_trial, cpu):
    """A trial on two devices, and the device that they are together."""
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"))
    trial = replace(tiny_trial, cell=cell)
    device = replace(cpu, placement="cpu+cpu", uuids=("GPU-a", "GPU-b"))
    return trial, device


@pytest.mark.slow
def test_the_first_process_reads_both_gpus_while_all_take_the_same_steps(both, tmp_path):
    first, others = together(tmp_path, measure, *both, {"power_w": 200.0})
    result = result_of(first)
    figures = result.row
    assert result.status == "ok"
    assert figures.energy_source == "counter"
    assert all(isinstance(message, Progress) for message in others)
    assert figures.energy_steps >= measuring.FEWEST_STEPS
    # Ticks are only as exact as this machine is quiet.
    assert figures.mean_power_w == pytest.approx(300, rel=0.1)
    step_s = figures.energy_window_s / figures.energy_steps
    assert figures.idle_power_w == pytest.approx(300, rel=0.2)
    assert figures.alone_samples_per_s == pytest.approx(4 / step_s)


@pytest.mark.slow
def test_where_one_gpu_tells_nothing_the_row_is_empty_and_says_which(both, tmp_path):
    first, others = together(tmp_path, measure, *both, {"power_w": 0.0, "errors": NO_COUNTER})
    assert first == others
    assert "GPU-b: the GPU tells neither energy nor power" in first
