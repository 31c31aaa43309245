"""Runs as typed frames: the public way to a run's figures from Python.

The columns of ``trials``, ``blocks``, ``epochs`` and ``numerics`` are those of the CSVs; the columns of ``summary`` are
declared here. Each column has the dtype that ``DTYPES`` says, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from bench.report.analysis.summary import summarise
from bench.report.reading import load as reading
from bench.report.reading.load import CELL, Runs
from bench.results.columns import COLUMNS, Field

Dtype = Literal["string", "category", "Int64", "float64", "boolean"]
"""Words, words that many rows repeat, whole numbers, other numbers, and yes or no. What is unknown is missing; an
unknown word is empty."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of the summary."""

    dtype: Dtype
    meaning: str
    source: str = ""
    """Its name in ``summarise``, where that is another."""
    percent: bool = False
    """Whether ``summarise`` has it as a share."""


def _words(meaning: str, source: str = "") -> Figure:
    return Figure("string", meaning, source)


def _count(meaning: str, source: str = "") -> Figure:
    return Figure("Int64", meaning, source)


def _number(meaning: str, source: str = "") -> Figure:
    return Figure("float64", meaning, source)


SUMMARY: dict[str, Figure] = {
    "run": _words("Name of the run: its folder, with as much of the path as tells it from the others."),
    "suite": _words("The recipe."),
    "parameters": _words("The suite's parameters that were overridden, as name=value."),
    "techniques": _words("What else all precisions were trained with, joined by +."),
    "data": _words("Where training samples came from."),
    "architecture": _words("The device's generation."),
    "device": _words("The vendor's name of the device."),
    "device_kind": _words("cuda or cpu."),
    "placement": _words("cpu, or a GPU's CUDA index; several that train together with + between."),
    "batch_size": _count("Samples in a step."),
    "precision": _words("How numbers were held and multiplied; fp32 is the baseline."),
    "speed_status": _words("How the timing of the step ended; empty where it was not tried."),
    "step_ms": _number("Time of a training step: the median over processes."),
    "samples_per_s": _number("Throughput of the step: the median over processes."),
    "speedup": _number("fp32's step time over this one's, over fresh processes; missing for fp32."),
    "speedup_low": _number("Lower end of its 95 % interval.", "low"),
    "speedup_high": _number("Upper end.", "high"),
    "speedup_verdict": _words("FASTER, SLOWER, SAME or INCONCLUSIVE.", "verdict"),
    "measured_in": _words("What the interval is over: processes, one process, or processes apart."),
    "aa_noise_pct": Figure("float64", "The A/A noise, where fp32 was timed against itself.", "noise", percent=True),
    "rounds": _count("ABBA rounds that count, over all processes."),
    "discarded_rounds": _count("Rounds that were disturbed and do not count."),
    "outlier_rounds": _count("Rounds far off the others; they count."),
    "step_p50_ms": _number("Median of single steps, where they were timed one by one."),
    "step_p95_ms": _number("95th percentile of the same."),
    "foreign_load_pct": _number("Share of the machine's cores that other programs took while timing."),
    "compute_dtypes": _words("Types that products computed in, with their shares of the FLOPs."),
    "flops_per_step": _number("Floating-point operations of a step."),
    "tflops": _number("The rate that the step reaches, in TFLOP/s."),
    "peak_tflops": _number("The rate that products of that type reach on this device, in TFLOP/s."),
    "pct_of_peak": _number("The former in per cent of the latter."),
    "memory_status": _words("How the memory trial ended."),
    "memory_bytes": _count("Steady peak of a step, allocated on a GPU and resident on a CPU."),
    "memory_all_devices_bytes": _count("The sum over devices that train together.", "all_devices_bytes"),
    "memory_change_pct": Figure(
        "float64", "The peak's change against fp32's; missing within the resolution.", "memory_change", percent=True
    ),
    "energy_status": _words("How the energy trial ended."),
    "energy_source": _words("counter or power."),
    "energy_j_per_step": _number("Energy that the board drew for a step, gross."),
    "energy_net_j_per_step": _number("The same less what the board draws idle."),
    "mean_power_w": _number("Power over the steps."),
    "idle_power_w": _number("Power with nothing running."),
    "energy_change_pct": Figure("float64", "The gross energy's change against fp32's.", "energy_change", percent=True),
    "train_status": _words("How training ended."),
    "epochs": _count("Epochs trained."),
    "seeds": _count("Seeds that finished; figures of training are means over them."),
    "time_per_epoch_s": _number("Time of an epoch without evaluation."),
    "epoch_speedup": _number("fp32's time per epoch over this one's, paired by seed."),
    "epoch_speedup_low": _number("Lower end of its 95 % interval over seeds.", "epoch_low"),
    "epoch_speedup_high": _number("Upper end.", "epoch_high"),
    "train_samples_per_s": _number("Throughput of an epoch, loading included."),
    "data_wait_pct": _number("Share of the epoch spent waiting for data."),
    "train_loss": _number("Training loss of the last epoch."),
    "test_loss": _number("Test loss after it."),
    "accuracy_pct": _number("Test accuracy after the last epoch."),
    "accuracy_sd_points": _number("Its standard deviation over seeds.", "accuracy_sd"),
    "accuracy_evaluated_in_fp32_pct": _number("The same weights evaluated in fp32.", "accuracy_fp32_pct"),
    "accuracy_change_points": _number("Accuracy less fp32's, paired by seed.", "delta_points"),
    "accuracy_change_low_points": _number("Lower end of its 90 % interval over seeds.", "delta_low"),
    "accuracy_change_high_points": _number("Upper end.", "delta_high"),
    "accuracy_change_seeds": _count("Seeds that the change is over.", "delta_seeds"),
    "accuracy_verdict": _words(
        "EQUIVALENT, NON-INFERIOR, WORSE, INCONCLUSIVE, insufficient seeds or diverged.", "parity"
    ),
    "diverged_seeds": _count("Seeds that diverged where fp32 did not.", "diverged"),
    "fp32_diverged_seeds": _count("Seeds in which fp32 diverged.", "fp32_diverged"),
    "target_accuracy_pct": _number("The accuracy that was asked for."),
    "reached_seeds": _count("Seeds that reached it.", "reached"),
    "time_to_accuracy_s": _number("Training time to it, a mean over those seeds."),
    "train_total_s": _number("Time of the whole training.", "total_s"),
    "train_energy_j": _number("Energy of the whole training."),
    "checkpoint_bytes": _number("Size of a checkpoint."),
    "checkpoint_16bit_bytes": _number("Size of one with 16-bit weights."),
    "matmul_error": _number("Relative error of an fp32 matrix product against float64."),
    "fp32_is_ieee": Figure("boolean", "Whether the fp32 of this device and recipe was IEEE fp32.", "ieee"),
    "numerics_status": _words("How the numerics trial ended."),
    "inference_status": _words("How the inference trial ended."),
    "lost_speed_trials": _count("Speed trials that do not count.", "lost_speed"),
    "lost_train_trials": _count("Trainings that do not count.", "lost_train"),
}
"""The columns of the summary, in order."""


def _of_field(field: Field) -> Dtype:
    if field.kind == "number":
        return "Int64" if field.whole else "float64"
    return "boolean" if field.kind == "yes or no" else "string"


def _of_csv(file: str, more: Sequence[str] = ()) -> dict[str, Dtype]:
    """Return the dtypes of a frame: the columns of a CSV with the run first, and some of trials.csv."""
    own, of_trials = COLUMNS[file], COLUMNS["trials.csv"]
    names = dict.fromkeys(("run", *(name for name in own if name != "schema"), *more))
    return {name: _of_field(own.get(name) or of_trials[name]) for name in names}


DTYPES: dict[str, dict[str, Dtype]] = {
    "summary": {name: figure.dtype for name, figure in SUMMARY.items()},
    "trials": _of_csv("trials.csv"),
    "epochs": _of_csv("epochs.csv", CELL),
    "blocks": {
        name: "category" if dtype == "string" else dtype
        for name, dtype in _of_csv("blocks.csv", ["phase", *CELL]).items()
    },
    "numerics": _of_csv("numerics.csv", ["seed", *CELL]),
}
"""The columns of each frame with their dtypes, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Runs as frames, the rows of all runs in each, told apart by the column ``run``.

    Units are in the columns' names. ``DTYPES`` holds the columns and their dtypes.
    """

    summary: pd.DataFrame
    """One row for each precision of each cell: speed, memory, energy and training side by side."""
    trials: pd.DataFrame
    """One row for each trial and precision, those of ablations last; of a trial that was tried again, the last rows."""
    epochs: pd.DataFrame
    """One row for each epoch of each training, with the columns of its cell."""
    blocks: pd.DataFrame
    """One row for each timed block, with its phase and the columns of its cell."""
    numerics: pd.DataFrame
    """One row for each figure of the numerics phase, with the seed and the columns of its cell."""


def load(*folders: str | Path) -> Results:
    """Read runs into typed frames.

    Args:
        folders: folders that runs wrote, or folders of such folders.

    Raises:
        UsageError: there is none, or one is no run, of another schema version, damaged or without a finished trial.
    """
    return typed(reading.load([Path(folder) for folder in folders]))


def typed(runs: Runs) -> Results:
    """Return the frames of runs that were read."""
    return Results(
        summary=summary(runs.trials),
        trials=_typed("trials", _joined(runs.trials, runs.ablations)),
        epochs=_typed("epochs", runs.epochs),
        blocks=_typed("blocks", _joined(runs.blocks, runs.ablation_blocks)),
        numerics=_typed("numerics", runs.numerics),
    )


def summary(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the summary of trials in the columns of ``SUMMARY``."""
    found = summarise(trials)
    columns = {
        name: found[figure.source or name] * (100 if figure.percent else 1)
        if figure.dtype == "float64"
        else found[figure.source or name]
        for name, figure in SUMMARY.items()
    }
    rows = pd.DataFrame(columns)
    none = [name for name in SUMMARY if name.startswith("lost_")]
    return _typed("summary", rows.fillna(dict.fromkeys(none, 0)))


def _joined(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return one if other.empty else other if one.empty else pd.concat([one, other], ignore_index=True)


def _typed(frame: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in a frame's columns, with their dtypes."""
    columns = {name: _converted(rows[name], dtype) for name, dtype in DTYPES[frame].items()}
    return pd.DataFrame(columns, index=rows.index)


YES_OR_NO: Mapping[object, bool] = {"yes": True, "no": False, True: True, False: False}


def _converted(values: pd.Series, dtype: Dtype) -> pd.Series:
    if dtype == "boolean":
        return values.astype(object).map(YES_OR_NO).astype("boolean")
    if dtype == "category":
        return values.astype("category")
    if dtype == "string":
        return values.astype("string").fillna("")
    return values.astype(float).astype(dtype)
