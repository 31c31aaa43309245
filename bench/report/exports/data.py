"""The summary and the answers as plain JSON objects: what the page carries with it, and what other programs read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pandas as pd
from msgspec import Meta, Struct, field

from bench.report.analysis.contrast import estimate
from bench.report.analysis.matrix import Matrix
from bench.report.analysis.verdict import Answer
from bench.report.format import known, records
from bench.report.reading.load import CELL
from bench.spec.metrics import ACCURACY, ENERGY, EPOCH, MEMORY, SPEED, THROUGHPUT, Metric, untabled
from bench.spec.precisions import BASELINE

Json = str | int | float | bool | list[float] | None
"""A value of an object. None is unknown; figures that are not finite are None too, for JSON has no such numbers."""
Type = Literal["string", "integer", "number", "boolean", "numbers"]


DIGITS = 5
"""Significant digits of the page's figures."""


@dataclass(frozen=True, slots=True)
class Field:
    """A key of an object, made from a column of the summary."""

    column: str
    type: Type
    about: str


def _of(metric: Metric, kind: Type = "number") -> dict[str, Field]:
    """Return the key of a metric's figure."""
    return {metric.key: Field(metric.figure, kind, metric.about)}


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
    "batch_size": Field("batch_size", "integer", "Samples in a step."),
    "precision": Field("precision", "string", "The precision, with its options."),
    "speed_status": Field("speed_status", "string", "Outcome of its speed trials; ok and unconverged have figures."),
    **_of(SPEED),
    **_of(THROUGHPUT),
    "process_samples_per_s": Field("paces", "numbers", "The throughput in each process."),
    "speedup": Field("speedup", "number", "fp32's step time over its own: 2 is twice as fast."),
    "speedup_low": Field("low", "number", "Lower end of the speedup's 95 % interval."),
    "speedup_high": Field("high", "number", "Upper end of it."),
    "process_speedups": Field("log_speedups", "numbers", "The speedup in each process that timed both."),
    "speed_verdict": Field("verdict", "string", "FASTER, SLOWER, SAME or INCONCLUSIVE."),
    "measured_in": Field("measured_in", "string", "What the interval is over, such as 3 processes."),
    "noise_ratio": Field("noise", "number", "A/A noise, as a share; null where it was not measured."),
    "rounds": Field("rounds", "integer", "ABBA rounds that count."),
    "discarded_rounds": Field("discarded_rounds", "integer", "Rounds that were discarded."),
    "compute_dtypes": Field("compute_dtypes", "string", "Types that products computed in, with shares of the FLOPs."),
    "tflops": Field("tflops", "number", "FLOPs of a step over its time, in 10^12 a second."),
    "pct_of_peak": Field("pct_of_peak", "number", "The same as a share of the device's own rate, in per cent."),
    "host_ratio": Field("host_ratio", "number", "Host time to queue a step over its time on the GPU."),
    "matmul_error": Field("matmul_error", "number", "Relative error of an fp32 matrix product under its switches."),
    "memory_status": Field("memory_status", "string", "Outcome of its memory trial."),
    **_of(MEMORY, "integer"),
    "memory_change_ratio": Field("memory_change", "number", "Change of it as a share of fp32's; negative is less."),
    "energy_status": Field("energy_status", "string", "Outcome of its energy trial."),
    "energy_source": Field("energy_source", "string", "counter or power."),
    **_of(ENERGY),
    "energy_change_ratio": Field("energy_change", "number", "Change of it as a share of fp32's; negative is less."),
    "train_status": Field("train_status", "string", "Outcome of its trainings."),
    "epochs": Field("epochs", "integer", "Epochs that were trained."),
    "seeds": Field("seeds", "integer", "Seeds whose training finished."),
    **_of(EPOCH),
    "epoch_speedup": Field("epoch_speedup", "number", "fp32's time of an epoch over its own, seed by seed."),
    "epoch_speedup_low": Field("epoch_low", "number", "Lower end of that speedup's 95 % interval over seeds."),
    "epoch_speedup_high": Field("epoch_high", "number", "Upper end of it."),
    "data_wait_pct": Field("data_wait_pct", "number", "Share of the training time spent waiting for batches."),
    **_of(ACCURACY),
    "accuracy_sd_points": Field("accuracy_sd", "number", "Its standard deviation over seeds."),
    "accuracy_change_points": Field("delta_points", "number", "Accuracy less fp32's, paired by seed: mean."),
    "accuracy_change_low_points": Field("delta_points_low", "number", "Lower end of that difference's 90 % interval."),
    "accuracy_change_high_points": Field("delta_points_high", "number", "Upper end of it."),
    "accuracy_verdict": Field(
        "parity",
        "string",
        "EQUIVALENT, NON-INFERIOR, WORSE, INCONCLUSIVE or why there is none; of tokens by their loss.",
    ),
    "test_loss": Field("test_loss", "number", "Loss on test data: mean over seeds."),
    "loss_change_nats": Field("delta_nats", "number", "Loss of tokens less fp32's, paired by seed: mean."),
    "loss_change_low_nats": Field("delta_nats_low", "number", "Lower end of that difference's 90 % interval."),
    "loss_change_high_nats": Field("delta_nats_high", "number", "Upper end of it."),
    "loss_above_entropy_nats": Field(
        "above_entropy", "number", "Loss of tokens less the entropy rate of their source, where it is known: mean."
    ),
    "loss_above_entropy_low_nats": Field("above_entropy_low", "number", "Lower end of its 95 % interval over seeds."),
    "loss_above_entropy_high_nats": Field("above_entropy_high", "number", "Upper end of it."),
    "perplexity": Field("perplexity", "number", "Of tokens: e to the power of the mean test loss."),
    "time_to_accuracy_s": Field("time_to_accuracy_s", "number", "Training time to the accuracy that was asked for."),
}
"""The keys of a row, in order."""
DETAILS = {
    "aggregate_peak_memory_bytes": Field(
        "all_devices_bytes", "integer", "Peaks of devices that train together, summed."
    ),
    "outlier_rounds": Field("outlier_rounds", "integer", "Rounds far off the others; they count."),
    "step_p50_ms": Field("step_p50_ms", "number", "Median of single steps, where they were timed one by one."),
    "step_p95_ms": Field("step_p95_ms", "number", "95th percentile of the same."),
    "foreign_load_pct": Field(
        "foreign_load_pct", "number", "Share of the cores that other programs took while timing."
    ),
    "flops_per_step": Field("flops_per_step", "number", "Floating-point operations of a step."),
    "peak_tflops": Field("peak_tflops", "number", "The device's own rate of such products, in 10^12 a second."),
    "energy_net_j_per_step": Field("energy_net_j_per_step", "number", "Energy of a step less the idle draw."),
    "mean_power_w": Field("mean_power_w", "number", "Power over the steps."),
    "idle_power_w": Field("idle_power_w", "number", "Power with nothing running."),
    "train_samples_per_s": Field("train_samples_per_s", "number", "Throughput of an epoch: mean over seeds."),
    "train_loss": Field("train_loss", "number", "Training loss: mean over seeds."),
    "accuracy_evaluated_in_fp32_pct": Field("accuracy_fp32_pct", "number", "The same weights evaluated in fp32."),
    "accuracy_change_seeds": Field("delta_seeds", "integer", "Seeds that the change of accuracy, or of loss, is over."),
    "diverged_seeds": Field("diverged", "integer", "Seeds that diverged where fp32 did not."),
    "fp32_diverged_seeds": Field("fp32_diverged", "integer", "Seeds in which fp32 diverged."),
    "target_accuracy_pct": Field("target_accuracy_pct", "number", "The accuracy that was asked for."),
    "reached_seeds": Field("reached", "integer", "Seeds that reached it."),
    "train_total_s": Field("total_s", "number", "Time of the whole training: mean over seeds."),
    "train_energy_j": Field("train_energy_j", "number", "Energy of the whole training: mean over seeds."),
    "checkpoint_bytes": Field("checkpoint_bytes", "number", "Size of a checkpoint."),
    "checkpoint_16bit_bytes": Field("checkpoint_16bit_bytes", "number", "Size of one with 16-bit weights."),
    "fp32_is_ieee": Field("ieee", "boolean", "Whether fp32 products of this recipe and device were IEEE fp32."),
    "numerics_status": Field("numerics_status", "string", "Outcome of its numerics trials."),
    "inference_status": Field("inference_status", "string", "Outcome of its inference trials."),
    "lost_speed_trials": Field("lost_speed", "integer", "Speed trials that do not count."),
    "lost_train_trials": Field("lost_train", "integer", "Trainings that do not count."),
}
"""Further keys, which other programs get and the page does without."""
PAGE = {
    name: field
    for name, field in FIELDS.items()
    if name
    not in {
        *("suite", "parameters", "techniques", "data", "run", "device", "architecture", "device_kind", "placement"),
        *("process_samples_per_s", "process_speedups", "noise_ratio", "matmul_error", "tflops", "discarded_rounds"),
        *("host_ratio", "measured_in", "accuracy_sd_points", "test_loss", "data_wait_pct", "label", "train_status"),
        *("memory_change_ratio", "energy_status", "energy_change_ratio", "epochs", "seeds", "time_to_accuracy_s"),
        *("accuracy_change_low_points", "accuracy_change_high_points"),
        *("loss_change_low_nats", "loss_change_high_nats"),
        *("loss_above_entropy_low_nats", "loss_above_entropy_high_nats"),
    }
}
"""What the page carries with it: what its script shows."""


def every() -> dict[str, Field]:
    """Return all keys that other programs get, those of metrics without a place of their own last."""
    return FIELDS | DETAILS | {name: field for metric in untabled() for name, field in _general(metric)}


def _general(metric: Metric) -> Iterator[tuple[str, Field]]:
    """Yield the keys of a metric's figure, and of its change from fp32 with the ends of its interval."""
    yield metric.key, Field(metric.figure, "number", metric.about)
    what = "divided by fp32's" if metric.scale == "ratio" else "less fp32's"
    for column, end in zip(metric.changes, ("", "_low", "_high"), strict=True):
        ends = f"{end.removeprefix('_').capitalize()} end of the 95 % interval of it " if end else "The figure "
        yield f"{metric.ratio_key}{end}", Field(column, "number", f"{ends}{what}.")


def rows(summary: pd.DataFrame, fields: Mapping[str, Field] = FIELDS) -> list[dict[str, Json]]:
    """Return an object of ``fields`` for each row of the summary: one precision of one cell."""
    return [
        {name: _value(row.get(field.column), field.type) for name, field in fields.items()} for row in records(summary)
    ]


class Advice(Struct, forbid_unknown_fields=True):
    """What to use for a recipe on a device; its figures are those of the result of the same batch size."""

    workload: str
    where: str
    batch: int = field(name="batch_size")
    precision: Annotated[str | None, Meta(description="Null where there is no advice.")] = field(name="use")
    advice: str
    ties: Annotated[list[str], Meta(description="Other precisions that are as fast.")]
    accuracy: str | None

    def __post_init__(self) -> None:
        self.accuracy = self.accuracy or None


def answers(given: Sequence[Answer]) -> Any:
    """Return an object for each answer, see ``Advice``."""
    return msgspec.to_builtins(msgspec.convert(given, list[Advice], from_attributes=True))


def pairs(summary: pd.DataFrame) -> list[list[int | float | None]]:
    """Return the ratios of speed between precisions other than fp32 that were timed side by side.

    Each is the places of two rows of the summary, the times that the first is as fast as the second, and the ends of
    the ratio's 95 % interval: Student's over the processes that timed both.
    """
    timed = summary.reset_index(drop=True)
    timed = timed[timed[SPEED.arm].notna() & (timed["precision"] != BASELINE)]
    found: list[list[int | float | None]] = []
    for _, cell in timed.groupby(CELL, sort=False):
        for (place, arm), (against, other) in itertools.combinations(cell[SPEED.arm].items(), 2):
            contrast = estimate(SPEED, arm, other)
            if contrast is not None and contrast.is_paired and contrast.change.n > 1:
                found.append([int(str(place)), int(str(against)), *map(_rounded, contrast.gain.ends)])
    return found


def ratios(matrix: Matrix) -> dict[str, Any]:
    """Return a matrix as the page carries it.

    ``names`` and ``batch_sizes`` are those of its setups, the fastest first. ``over`` has three figures for each pair:
    how many times as fast the first setup is as the second, and the ends of the interval; then the first over the
    third, and so on.
    """
    over = [matrix.over(one, other) for one, other in itertools.combinations(matrix.setups, 2)]
    return {
        "names": [setup.name for setup in matrix.setups],
        "batch_sizes": [setup.batch for setup in matrix.setups],
        "over": [_rounded(end) for ratio in over for end in ratio.ends],
    }


def columnar(objects: Sequence[Mapping[str, Json]]) -> dict[str, Any]:
    """Return objects column by column, as they take least room.

    A column of figures is a list, each with ``DIGITS`` significant digits; where fewer than half are known, it is an
    object with ``rows``, the places of those that are, and their ``values``. Of words there are ``words``, each once,
    and ``at``, the place of each object's word among them, -1 where there is none. Columns without any value, and
    those that are lists, are left out.
    """
    columns: dict[str, Any] = {}
    for name in objects[0] if objects else ():
        values = [one[name] for one in objects]
        if any(isinstance(value, list) for value in values) or all(value is None for value in values):
            continue
        if any(isinstance(value, str) for value in values):
            words = list(dict.fromkeys(value for value in values if value is not None))
            columns[name] = {"words": words, "at": [-1 if value is None else words.index(value) for value in values]}
        elif 2 * sum(value is not None for value in values) < len(values):
            places = [place for place, value in enumerate(values) if value is not None]
            columns[name] = {"rows": places, "values": [_rounded(values[place]) for place in places]}
        else:
            columns[name] = [_rounded(value) for value in values]
    return columns


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short


def _value(value: Any, kind: Type) -> Json:
    """Return a cell of the summary as JSON has it."""
    if kind == "numbers":
        if isinstance(value, dict):  # logarithms by process
            return [math.exp(log) for log in value.values()]
        return [float(one) for one in value] if isinstance(value, tuple | list) else []
    if not known(value) or (isinstance(value, float) and not np.isfinite(value)):
        return None
    if kind == "string":
        return str(value)
    if kind == "boolean":
        return bool(value)
    return int(value) if kind == "integer" else float(value)
