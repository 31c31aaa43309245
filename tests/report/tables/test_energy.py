"""Energy by precision: what counts, and what it is compared with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.report.analysis.speed import KEY
from bench.report.analysis.summary import energies
from bench.report.reading.load import load
from bench.report.tables.memory import energy
from bench.results.records import Energy, TrialResult
from tests.report.builders import RunBuilder


class EnergyRun(RunBuilder):
    """A run with energy trials."""

    def drew(self, precision: str, joules: float, *, batch: int = 128, source: str = "counter", **more) -> EnergyRun:
        found = Energy(
            energy_source=source,
            energy_j_per_step=joules,
            mean_power_w=312.4,
            energy_window_s=5.1,
            energy_steps=100,
            **{"energy_net_j_per_step": joules - 0.5, "idle_power_w": 71.2} | more,
        )
        self.add(self.trial("energy", [precision], batch), TrialResult(precision=precision, status="ok", energy=found))
        return self


@pytest.fixture
def run(tmp_path: Path) -> EnergyRun:
    return EnergyRun(tmp_path / "run", suite="resnet50")


def trials(run: EnergyRun):
    return load([run.folder]).trials


def change(run: EnergyRun, precision: str, batch: int = 128) -> float:
    found = energies(trials(run)).reset_index()
    (row,) = found[(found["precision"] == precision) & (found["batch_size"] == batch)].to_dict("records")
    return row["energy_change"]


def test_a_run_without_energy_has_no_table(run: EnergyRun) -> None:
    run.speed().memory("fp32", 10)
    assert energy(trials(run)) is None
    assert energies(trials(run)).empty


def test_energy_is_compared_with_fp32_of_the_same_cell(run: EnergyRun) -> None:
    run.drew("fp32", 4.0).drew("amp-bf16", 1.0).drew("fp32", 8.0, batch=256).drew("amp-bf16", 6.0, batch=256)
    run.drew("tf32", 3.0, batch=64)
    assert change(run, "amp-bf16") == pytest.approx(-0.75)
    assert change(run, "amp-bf16", 256) == pytest.approx(-0.25)
    assert math.isnan(change(run, "fp32"))
    assert math.isnan(change(run, "tf32", 64))


def test_figures_of_different_sources_are_not_compared(run: EnergyRun) -> None:
    run.drew("fp32", 4.0).drew("amp-bf16", 1.0, source="power")
    assert math.isnan(change(run, "amp-bf16"))
    assert energy(trials(run)).rows[1][-1] == "–"


def test_the_rows_can_be_joined_by_the_arms_of_cells(run: EnergyRun) -> None:
    run.drew("fp32", 4.0).drew("amp-bf16", 1.0).speed().memory("fp32", 10)
    found = energies(trials(run))
    assert list(found.index.names) == KEY
    assert found["energy_j_per_step"].tolist() == [4.0, 1.0]


def test_the_table_says_what_was_read_and_from_where(run: EnergyRun) -> None:
    table = energy(trials(run.drew("amp-bf16", 1.6).drew("fp32", 4.0)))
    told = [dict(zip(table.headers, row, strict=True)) for row in table.rows]
    assert [row["precision"] for row in told] == ["fp32", "amp-bf16"]
    assert told[1] == {
        "suite": "resnet50",
        "device": "NVIDIA Test 1",
        "batch size": "128",
        "precision": "amp-bf16",
        "source": "counter",
        "energy/step (J)": "1.600",
        "above idle (J)": "1.100",
        "samples/J": "80.00",
        "mean power (W)": "312",
        "idle power (W)": "71.2",
        "energy ÷ fp32": "0.400",
    }
    assert told[0]["energy ÷ fp32"] == "baseline"


def test_what_is_unknown_is_a_dash_and_what_failed_is_its_word(run: EnergyRun) -> None:
    run.drew("fp32", 4.0, idle_power_w=None, energy_net_j_per_step=None).lost("energy", "amp-bf16", "unsupported")
    first, second = energy(trials(run)).rows
    assert (first[6], first[9]) == ("–", "–")
    assert second[4:] == ["–", "unsupported", "–", "–", "–", "–", "–"]


def test_figures_of_a_trial_that_does_not_count_are_not_shown(run: EnergyRun) -> None:
    run.drew("fp32", 4.0)
    bad = TrialResult(
        precision="amp-bf16", status="nonfinite", energy=Energy(energy_source="power", energy_j_per_step=1.0)
    )
    run.add(run.trial("energy", ["amp-bf16"], 128), bad)
    assert math.isnan(change(run, "amp-bf16"))
    assert energy(trials(run)).rows[1][5] == "nonfinite"
