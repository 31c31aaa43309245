"""Figures that other figures of a run contradict are refused in a row, and said of rows and files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bench.report.reading.load import load
from bench.results.columns import COLUMNS
from bench.results.records import Energy, MemoryPeak, TrialResult
from bench.spec.errors import UsageError
from tests.report import fleet
from tests.report.builders import RunBuilder

MEASURED = Path(__file__).parents[3] / "results" / "resnet20-cpu-epyc-parity"
GIB = 2**30


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A copy of a run that was measured."""
    return shutil.copytree(MEASURED, tmp_path / "run")


def scale(folder: Path, phase: str, column: str, factor: float, *, precision: str = "amp-bf16", name="trials.csv"):
    """Scale a figure in one row: the first of a phase, or of a file, in a precision."""
    done = []

    def change(row: dict[str, str]) -> None:
        if row.get("phase", phase) == phase and row["precision"] == precision and row[column] and not done:
            done.append(row)
            figure = float(row[column]) * factor
            row[column] = repr(round(figure) if COLUMNS[name][column].whole else figure)

    fleet.edit_rows(folder, change, name)
    assert done


def noticed(folder: Path) -> str:
    """Return what is said of a run: why it is refused, or all that is odd."""
    try:
        return " ".join(load([folder]).runs[0].remarks)
    except UsageError as error:
        return str(error)


def test_what_was_measured_contradicts_nothing(measured):
    assert load([measured]).runs[0].remarks == ()


@pytest.mark.parametrize(
    ("phase", "column", "factor", "source"),
    [
        ("train", "epochs", 0.8, "by epochs.csv"),
        ("train", "time_per_epoch_s", 1.2, "by epochs.csv"),
        ("train", "total_s", 0.5, "by epochs.csv"),
        ("train", "train_samples_per_s", 2, "by epochs.csv"),
        ("train", "data_wait_pct", 3, "by epochs.csv"),
        ("train", "train_loss", 0.5, "by epochs.csv"),
        ("train", "test_loss", 1.2, "by epochs.csv"),
        ("train", "test_accuracy_pct", 1.2, "by epochs.csv"),
        ("train", "test_accuracy_fp32_pct", 1.2, "by epochs.csv"),
        ("train", "checkpoint_bytes", 1.2, "in other rows of the same model"),
        ("memory", "peak_resident_bytes", 3, "in the first step"),
        ("memory", "tracked_peak_bytes", 1.2, "is not the sum of its kinds"),
        ("memory", "activation_bytes", 1.2, "is not the sum of its kinds"),
        ("memory", "batch_size", 2, "in its trial's name"),
        ("speed", "speedup_low", 0.7, "by blocks.csv"),
        ("speed", "speedup_high", 1.5, "by blocks.csv"),
        ("speed", "rounds", 1.2, "blocks that count"),
        ("speed", "block_steps", 2, "by blocks.csv"),
        ("speed", "step_ms", 1.2, "is not batch_size over step_ms"),
        ("speed", "tflops", 1.2, "is not flops_per_step over step_ms"),
        ("speed", "peak_tflops", 1.2, "is not tflops over peak_tflops"),
        ("speed", "foreign_load_pct", 1.2, "in another row of its trial"),
        ("speed", "matmul_error", 2, "in other rows of the same device"),
    ],
)
def test_a_figure_that_others_contradict_is_noticed_with_its_line(measured, phase, column, factor, source):
    scale(measured, phase, column, factor)
    said = noticed(measured)
    assert re.search(r"line \d+", said), said
    assert source in said


def test_an_edited_epoch_is_said_with_the_line_of_its_file(measured):
    scale(measured, "", "elapsed_s", 1.2, name="epochs.csv")
    assert "epochs.csv, line 7: elapsed_s of resnet20-cpu-b128-train-amp-bf16-s0 in amp-bf16 is" in noticed(measured)


def test_the_sentence_has_both_figures_and_how_many_more_there_are(measured):
    scale(measured, "train", "train_loss", 2)
    scale(measured, "train", "test_loss", 2)
    (remark,) = load([measured]).runs[0].remarks
    assert remark.startswith("trials.csv, line 11: train_loss of resnet20-cpu-b128-train-amp-bf16-s0 in amp-bf16 is ")
    assert " 3.0528, but 1.5264 by epochs.csv, and 1 more figure is like it. " in remark


def test_a_row_whose_seed_is_not_that_of_its_name_is_said(measured):
    fleet.edit_rows(measured, lambda row: row["trial"].endswith("fp32-s4") and row.update(seed="5"))
    assert "seed of resnet20-cpu-b128-train-fp32-s4 in fp32 is 5, but 4 in its trial's name" in noticed(measured)


def test_a_plan_that_names_another_seed_is_said(measured):
    fleet.edit_run(measured, lambda run: run["planned"][-1].update(seed=9))
    assert "seed of " in noticed(measured)
    assert "in run.json's plan" in noticed(measured)


@pytest.mark.parametrize(
    ("figures", "noticed_as"),
    [
        ({}, None),
        ({"peak_allocated_bytes": 3 * GIB}, "peak_allocated_bytes '3.22123e+09' is above peak_active_bytes"),
        ({"peak_reserved_bytes": GIB // 2}, "is above peak_reserved_bytes"),
        ({"all_devices_bytes": GIB // 2}, "is above all_devices_bytes"),
    ],
)
def test_a_gpus_peaks_contain_each_other(tmp_path, figures, noticed_as):
    peaks = {"peak_allocated_bytes": GIB, "peak_active_bytes": GIB, "peak_reserved_bytes": 2 * GIB} | figures
    run = RunBuilder(tmp_path / "run")
    result = TrialResult(precision="fp32", status="ok", memory=MemoryPeak(**peaks))
    run.add(run.trial("memory", ["fp32"], 128), result)
    said = noticed(run.folder)
    assert (said == "") if noticed_as is None else (noticed_as in said)


@pytest.mark.parametrize("column", ["energy_j_per_step", "energy_net_j_per_step", "mean_power_w", "idle_power_w"])
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_energy_is_power_times_time_of_a_step(tmp_path, column, factor):
    figures = {"energy_j_per_step": 3.0, "energy_net_j_per_step": 2.5, "mean_power_w": 300.0, "idle_power_w": 50.0}
    figures[column] *= factor
    energy = Energy(energy_source="counter", energy_window_s=5.0, energy_steps=500, **figures)
    run = RunBuilder(tmp_path / "run")
    run.add(run.trial("energy", ["fp32"], 128), TrialResult(precision="fp32", status="ok", energy=energy))
    assert ("energy_window_s over energy_steps" in noticed(run.folder)) == (factor != 1.0)
