"""Runs as typed frames, the public way to their figures from Python, and the rows of a frame as JSON has them.

The columns are those of the CSVs, and of the summary those of ``FIELDS``; each has the dtype that ``DTYPES`` says,
whatever it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench.report.analysis.alone import IN_TURNS
from bench.report.analysis.summary import ENTROPY, summarise
from bench.report.analysis.telemetry import telemetry
from bench.report.reading.load import CELL, Runs
from bench.report.reading.trials import TRIALS
from bench.results.columns import Field as Column
from bench.results.columns import fields_of
from bench.results.records import Block, EpochResult, Numeric
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, ALONE, ENERGY, EPOCH, LOSS, MEMORY, QUALITY, SPEED, THROUGHPUT, untabled

Json = str | int | float | bool | None
"""A value of an object. None is unknown; figures that are not finite are None too, for JSON has no such numbers."""
Type = Literal["string", "category", "Int64", "float64", "boolean"]
"""The dtype of a frame's column: words, words that many rows repeat, whole numbers, other numbers, yes or no. What is
unknown is missing; an unknown word is empty."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the frames of the summary or of telemetry, made from a column of the analysis."""

    column: str
    type: Type
    about: str


def _of(metric: Metric, kind: Type = "float64") -> dict[str, Field]:
    """Return the key of a metric's figure."""
    return {metric.key: Field(metric.figure, kind, metric.about)}


def _interval(key: str, columns: Sequence[str], about: str, level: int = 95) -> dict[str, Field]:
    """Return the keys of an estimate and of the ends of its interval, which stand at the braces in ``key``."""
    abouts = {"": about, "_low": f"Lower end of its {level} % interval.", "_high": "Upper end of it."}
    return {
        key.format(end): Field(column, "float64", text)
        for column, (end, text) in zip(columns, abouts.items(), strict=True)
    }


def _changed(metric: Metric, level: int = 95) -> dict[str, Field]:
    """Return the keys of a metric's change from fp32 and of the ends of its interval."""
    what = "divided by fp32's" if metric.scale == "ratio" else "less fp32's"
    return _interval(f"{metric.ratio_key}{{}}", metric.changes, f"{metric.label.capitalize()} {what}.", level)


FIELDS = {
    "suite": Field("suite", "string", "The recipe."),
    "parameters": Field("parameters", "string", "Parameters of the suite that were overridden, as name=value."),
    "techniques": Field("techniques", "string", "What else all precisions were trained with, joined by +."),
    "data": Field("data", "string", "Where training samples came from."),
    "workload": Field("workload", "string", "Suite, parameters, techniques and, where needed, data, in one name."),
    "run": Field("run", "string", "The run, by its folder's name."),
    "device": Field("device", "string", "The vendor's name of the device."),
    "architecture": Field("architecture", "string", "Its generation."),
    "device_kind": Field("device_kind", "string", "cuda or cpu."),
    "placement": Field("placement", "string", "cpu, or a GPU's index; several that train together joined by +."),
    "where": Field("where", "string", "The device with what tells it from others in these runs."),
    "label": Field("label", "string", "The device's name in the shortest form that no other has."),
    "batch_size": Field("batch_size", "Int64", "Samples in a step."),
    "precision": Field("precision", "string", "The precision, with its options."),
    "speed_status": Field("speed_status", "string", "Outcome of its speed trials; ok and unconverged have figures."),
    **_of(SPEED),
    **_of(THROUGHPUT),
    **_interval("speedup{}", ("speedup", "low", "high"), "fp32's step time over its own: 2 is twice as fast."),
    **_interval("turns_speedup{}", IN_TURNS, "The same in turns, where the speedup is that of each precision alone."),
    "speed_verdict": Field("verdict", "string", "FASTER, SLOWER, SAME or INCONCLUSIVE."),
    "measured_in": Field("measured_in", "string", "What the interval is over, such as 3 processes."),
    "noise_ratio": Field("noise", "float64", "A/A noise, as a share; null where it was not measured."),
    "rounds": Field("rounds", "Int64", "ABBA rounds that count."),
    "compute_dtypes": Field("compute_dtypes", "string", "Types that products computed in, with shares of the FLOPs."),
    "other_types": Field("strayed", "string", "Which products ran in another type than its own, in words."),
    "tflops": Field("tflops", "float64", "FLOPs of a step over its time, in 10^12 a second."),
    "pct_of_peak": Field("pct_of_peak", "float64", "The same as a share of the device's own rate, in per cent."),
    "host_ratio": Field("host_ratio", "float64", "Host time to queue a step over its time on the GPU."),
    "matmul_error": Field("matmul_error", "float64", "Relative error of an fp32 matrix product under its switches."),
    "memory_status": Field("memory_status", "string", "Outcome of its memory trial."),
    **_of(MEMORY, "Int64"),
    "memory_change_ratio": Field("memory_change", "float64", "Change of it as a share of fp32's; negative is less."),
    "energy_status": Field("energy_status", "string", "Outcome of its energy trial."),
    "energy_source": Field("energy_source", "string", "counter or power."),
    **_of(ENERGY),
    **_of(ALONE),
    **_changed(ALONE),
    "energy_change_ratio": Field("energy_change", "float64", "Change of it as a share of fp32's; negative is less."),
    "train_status": Field("train_status", "string", "Outcome of its trainings."),
    "epochs": Field("epochs", "Int64", "Epochs that were trained."),
    "seeds": Field("seeds", "Int64", "Seeds whose training finished."),
    **_of(EPOCH),
    **_interval(
        "epoch_speedup{}",
        ("epoch_speedup", "epoch_low", "epoch_high"),
        "fp32's time of an epoch over its own, seed by seed.",
    ),
    "data_wait_pct": Field("data_wait_pct", "float64", "Share of the training time spent waiting for batches."),
    **_of(ACCURACY),
    "accuracy_sd_points": Field("accuracy_sd", "float64", "Its standard deviation over seeds."),
    **_interval("accuracy_change{}_points", ACCURACY.changes, "Accuracy less fp32's, paired by seed: mean.", 90),
    "accuracy_verdict": Field(
        "parity",
        "string",
        "EQUIVALENT, NON-INFERIOR, WORSE, INCONCLUSIVE or why there is none; of tokens by their loss.",
    ),
    "test_loss": Field("test_loss", "float64", "Loss on test data: mean over seeds."),
    **_interval("loss_change{}_nats", LOSS.changes, "Loss of tokens less fp32's, paired by seed: mean.", 90),
    **_interval("loss_above_entropy{}_nats", ENTROPY, "Loss of tokens less their source's entropy: mean."),
    **_of(QUALITY),
    "quality_name": Field("quality_name", "string", "The name of the suite's own figure of merit."),
    "quality_unit": Field("quality_unit", "string", "Its unit."),
    "quality_better": Field("quality_better", "string", "more or less."),
    "quality_margin": Field("quality_margin", "float64", "The margin of its parity."),
    **_changed(QUALITY, 90),
    "perplexity": Field("perplexity", "float64", "Of tokens: e to the power of the mean test loss."),
    "time_to_accuracy_s": Field("time_to_accuracy_s", "float64", "Training time to the accuracy that was asked for."),
    "aggregate_peak_memory_bytes": Field("all_devices_bytes", "Int64", "Peaks of devices that train together, summed."),
    "step_p50_ms": Field("step_p50_ms", "float64", "Median of single steps, where they were timed one by one."),
    "step_p95_ms": Field("step_p95_ms", "float64", "95th percentile of the same."),
    "foreign_load_pct": Field("foreign_load_pct", "float64", "Share of the cores that other programs took meanwhile."),
    "flops_per_step": Field("flops_per_step", "float64", "Floating-point operations of a step."),
    "peak_tflops": Field("peak_tflops", "float64", "The device's own rate of such products, in 10^12 a second."),
    "energy_net_j_per_step": Field("energy_net_j_per_step", "float64", "Energy of a step less the idle draw."),
    "mean_power_w": Field("mean_power_w", "float64", "Power over the steps."),
    "idle_power_w": Field("idle_power_w", "float64", "Power with nothing running."),
    "train_samples_per_s": Field("train_samples_per_s", "float64", "Throughput of an epoch: mean over seeds."),
    "train_loss": Field("train_loss", "float64", "Training loss: mean over seeds."),
    "accuracy_evaluated_in_fp32_pct": Field("accuracy_fp32_pct", "float64", "The same weights evaluated in fp32."),
    "accuracy_change_seeds": Field("delta_seeds", "Int64", "Seeds that the change of accuracy, or of loss, is over."),
    "diverged_seeds": Field("diverged", "Int64", "Seeds that diverged where fp32 did not."),
    "fp32_diverged_seeds": Field("fp32_diverged", "Int64", "Seeds in which fp32 diverged."),
    "target_accuracy_pct": Field("target_accuracy_pct", "float64", "The accuracy that was asked for."),
    "reached_seeds": Field("reached", "Int64", "Seeds that reached it."),
    "train_total_s": Field("total_s", "float64", "Time of the whole training: mean over seeds."),
    "train_energy_j": Field("train_energy_j", "float64", "Energy of the whole training: mean over seeds."),
    "checkpoint_bytes": Field("checkpoint_bytes", "float64", "Size of a checkpoint."),
    "checkpoint_16bit_bytes": Field("checkpoint_16bit_bytes", "float64", "Size of one with 16-bit weights."),
    "numerics_status": Field("numerics_status", "string", "Outcome of its numerics trials."),
    "inference_status": Field("inference_status", "string", "Outcome of its inference trials."),
    "lost_speed_trials": Field("lost_speed", "Int64", "Speed trials that do not count."),
    "lost_train_trials": Field("lost_train", "Int64", "Trainings that do not count."),
    "doubts": Field("doubts", "string", "What makes it doubtful, separated by commas."),
}
"""The columns of the summary, in order."""
_OF_CELL = (name for name in FIELDS if name in CELL)
TELEMETRY = {
    **{name: FIELDS[name] for name in _OF_CELL},
    "phase": Field("phase", "string", "The phase whose steps ran."),
    "precision": Field("precision", "string", "The precision; those that took turns in a process, joined by commas."),
    "gpu": Field("gpu", "string", "The GPU, by CUDA's index."),
    "samples": Field("samples", "Int64", "Readings while steps ran, of all trials."),
    "utilization_pct": Field("utilization_pct", "float64", "Share of time in which a kernel ran: mean."),
    "power_w": Field("power_w", "float64", "Power: mean."),
    "temperature_c": Field("temperature_c", "float64", "Temperature: mean."),
    "highest_temperature_c": Field("highest_temperature_c", "float64", "The highest temperature."),
    "sm_clock_mhz": Field("sm_clock_mhz", "float64", "Clock of the multiprocessors: mean."),
    "highest_sm_clock_mhz": Field("highest_sm_clock_mhz", "float64", "The highest one."),
    "throttled_pct": Field("throttled_pct", "float64", "Share of readings with a reason for lower clocks."),
    "throttle_reasons": Field("throttle_reasons", "string", "Each reason with its share of the readings."),
    "memory_used_bytes": Field("memory_used_bytes", "Int64", "The most memory in use on the whole GPU."),
}
"""The columns of what was read of a GPU while an arm's steps ran."""


def summary_fields() -> dict[str, Field]:
    """Return the columns of the summary's frame, those of metrics without a place of their own last.

    Raises:
        ValueError: a metric has the column of another figure.
    """
    general = {name: field for metric in untabled() for name, field in (_of(metric) | _changed(metric)).items()}
    if taken := FIELDS.keys() & general.keys():
        raise ValueError(f"{', '.join(sorted(taken))} is the key of another figure (metrics of bench/phases/)")
    return FIELDS | general


def _dtype(column: Column) -> Type:
    if column.kind == "number":
        return "Int64" if column.whole else "float64"
    return "boolean" if column.kind == "yes or no" else "string"


def _of_record(record: type, more: Sequence[str] = ()) -> dict[str, Type]:
    """Return the dtypes of a frame: the run, the columns of a record, and some of the trials."""
    own = {field.name: field for field in fields_of(record)}
    columns = {"run": Column(name="run", kind="word")} | TRIALS | own
    return {name: _dtype(columns[name]) for name in dict.fromkeys(("run", *own, *more))}


DTYPES: dict[str, dict[str, Type]] = {
    "summary": {name: field.type for name, field in summary_fields().items()},
    "trials": {"run": "string", **{name: _dtype(column) for name, column in TRIALS.items()}},
    "epochs": _of_record(EpochResult, CELL),
    "blocks": {
        name: "category" if dtype == "string" else dtype for name, dtype in _of_record(Block, ["phase", *CELL]).items()
    },
    "numerics": _of_record(Numeric, ["seed", *CELL]),
    "telemetry": {name: field.type for name, field in TELEMETRY.items()},
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
    telemetry: pd.DataFrame
    """One row for each GPU and arm: its clocks, power, temperature and memory while steps ran."""


def typed(runs: Runs) -> Results:
    """Return the frames of runs that were read."""
    return Results(
        summary=summary(runs.trials),
        trials=_typed(DTYPES["trials"], _joined(runs.trials, runs.ablations)),
        epochs=_typed(DTYPES["epochs"], runs.epochs),
        blocks=_typed(DTYPES["blocks"], _joined(runs.blocks, runs.ablation_blocks)),
        numerics=_typed(DTYPES["numerics"], runs.numerics),
        telemetry=_typed(DTYPES["telemetry"], telemetry(runs)),
    )


def summary(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the summary of trials in the columns of ``summary_fields``."""
    return summary_of(summarise(trials))


def summary_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``summarise`` in the columns of ``summary_fields``."""
    fields = summary_fields()
    rows = rows.fillna({field.column: 0 for name, field in fields.items() if name.startswith("lost_")})
    columns = {name: rows[field.column] for name, field in fields.items()}
    return _typed({name: field.type for name, field in fields.items()}, pd.DataFrame(columns))


def _joined(*frames: pd.DataFrame) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if len(filled) > 1 else (filled or frames)[0]


YES_OR_NO: Mapping[object, bool] = {"yes": True, "no": False, True: True, False: False}


def _typed(dtypes: Mapping[str, Type], rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in a frame's columns, with their dtypes."""
    words, yes_or_no = ([name for name in dtypes if dtypes[name] == dtype] for dtype in ("string", "boolean"))
    whole = [name for name in dtypes if dtypes[name] == "Int64"]  # which pandas makes of numbers, not of objects
    frame = rows[[*dtypes]].astype(dict.fromkeys(whole, "float64"))
    frame = frame.assign(**{name: frame[name].astype(object).map(YES_OR_NO) for name in yes_or_no})
    return frame.astype(dict(dtypes)).fillna(dict.fromkeys(words, ""))


def rows(frame: pd.DataFrame) -> list[dict[str, Json]]:
    """Return the rows of a typed frame as JSON has them."""
    columns = {str(name): [_value(value) for value in frame[name].astype(object)] for name in frame}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _value(value: Any) -> Json:
    if pd.isna(value) or value == "" or (isinstance(value, float) and math.isinf(value)):
        return None
    known: Json = value.item() if isinstance(value, np.generic) else value
    return known
