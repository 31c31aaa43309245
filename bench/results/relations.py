"""Relations between the columns of one row: what holds of every measurement, beside what each column may hold alone.

A relation computes with a row as records and frames alike have it: by the names of columns. Where a value is missing,
it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Comparison = Literal["equal", "at most", "at least"]
Row = Mapping[str, Any]
"""A row, or a frame of rows."""
DISAGREE = 0.01
"""Share by which two figures of the same thing may differ: spreadsheets round."""
EXACT = 1e-6
"""The same of bytes, which are whole numbers."""
MS = 1000
KINDS_OF_MEMORY = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "temporary_bytes")
"""What ``tracked_peak_bytes`` is made of."""
HALVED = 0.24
"""Of a checkpoint's bytes the least that 16 bits take: a quarter where the weights are float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """What a column's value must be, or may be at most or at least, given others of its row."""

    column: str
    """Whose value is refused where the relation does not hold."""
    value: Callable[[Row], Any]
    """Returns what the column is compared with."""
    says: str
    """The comparison, to follow the column's value in a sentence."""
    how: Comparison = "equal"
    within: float | Callable[[Row], Any] = DISAGREE
    """The share of ``of`` by which the two may differ."""
    of: Callable[[Row], Any] | None = None
    """Returns what the share is of; by default the value compared with."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Words that a row must have in other columns for the relation to hold of it."""


def _column(name: str) -> Callable[[Row], Any]:
    return lambda row: row[name]


def _at_most(column: str, other: str) -> Relation:
    return Relation(column=column, value=_column(other), how="at most", says=f"is above {other}")


def _between(column: str) -> tuple[Relation, ...]:
    """Return the relations of an estimate to the ends of its interval."""
    says = "lies outside its own interval"
    ends: tuple[tuple[str, Comparison], ...] = ((f"{column}_low", "at least"), (f"{column}_high", "at most"))
    return tuple(Relation(column=column, value=_column(end), how=how, says=says, within=0.0) for end, how in ends)


def _same(column: str, other: str, **where: str) -> Relation:
    return Relation(column=column, value=_column(other), says=f"is not {other}", where=where)


def _whole(column: str, most: float, **where: str) -> Relation:
    """Return the relation of a share to the whole, from which rounding may part it."""
    says = "is a share of more than the whole"
    return Relation(
        column=column, value=lambda row: most + 0 * row[column], how="at most", says=says, within=EXACT, where=where
    )


def _rounded_steps(row: Row) -> Any:
    """Return by which share a figure of a window may differ: its steps are written as a whole number."""
    return DISAGREE + 0.5 / row["energy_steps"]


WITHIN: dict[str, tuple[Relation, ...]] = {
    "trials.csv": (
        Relation(
            column="samples_per_s",
            value=lambda row: MS * row["batch_size"] / row["step_ms"],
            says="is not batch_size over step_ms",
        ),
        *_between("speedup"),
        _at_most("step_p50_ms", "step_p95_ms"),
        Relation(
            column="tflops",
            value=lambda row: row["flops_per_step"] / row["step_ms"] * MS / 1e12,
            says="is not flops_per_step over step_ms",
        ),
        Relation(
            column="pct_of_peak",
            value=lambda row: 100 * row["tflops"] / row["peak_tflops"],
            says="is not tflops over peak_tflops",
        ),
        _at_most("outlier_rounds", "rounds"),
        _at_most("peak_allocated_bytes", "peak_active_bytes"),
        _at_most("peak_active_bytes", "peak_reserved_bytes"),
        _at_most("peak_allocated_bytes", "peak_reserved_bytes"),
        _at_most("peak_allocated_bytes", "all_devices_bytes"),
        _at_most("peak_resident_bytes", "all_devices_bytes"),
        Relation(
            column="tracked_peak_bytes",
            value=lambda row: sum(row[name] for name in KINDS_OF_MEMORY),
            says="is not the sum of its kinds",
            within=EXACT,
        ),
        _at_most("weight_copy_bytes", "most_weight_copy_bytes"),
        _at_most("most_weight_copy_bytes", "tracked_peak_bytes"),
        _at_most("fp32_activation_bytes", "activation_bytes"),
        Relation(
            column="energy_j_per_step",
            value=lambda row: row["mean_power_w"] * row["energy_window_s"] / row["energy_steps"],
            says="is not mean_power_w times energy_window_s over energy_steps",
            within=_rounded_steps,
        ),
        Relation(
            column="energy_net_j_per_step",
            value=lambda row: (
                row["energy_j_per_step"] - row["idle_power_w"] * row["energy_window_s"] / row["energy_steps"]
            ),
            says="is not energy_j_per_step less idle_power_w times energy_window_s over energy_steps",
            within=_rounded_steps,
            of=lambda row: (
                row["energy_j_per_step"] + row["idle_power_w"] * row["energy_window_s"] / row["energy_steps"]
            ),
        ),
        _at_most("compile_s", "wall_s"),
        _at_most("checkpoint_16bit_bytes", "checkpoint_bytes"),
        Relation(
            column="checkpoint_16bit_bytes",
            value=lambda row: HALVED * row["checkpoint_bytes"],
            how="at least",
            says="is less than a quarter of checkpoint_bytes",
        ),
        _at_most("time_to_accuracy_s", "total_s"),
        _same("test_loss_fp32", "test_loss", precision="fp32"),
        _same("test_accuracy_fp32_pct", "test_accuracy_pct", precision="fp32"),
        _at_most("latency_p50_ms", "latency_p95_ms"),
        *_between("inference_speedup"),
    ),
    "epochs.csv": (
        Relation(
            column="samples_per_s",
            value=lambda row: row["samples"] / row["train_s"],
            says="is not samples over train_s",
        ),
        _at_most("data_wait_s", "train_s"),
        _at_most("train_s", "elapsed_s"),
        _same("test_loss_fp32", "test_loss", precision="fp32"),
        _same("test_accuracy_fp32_pct", "test_accuracy_pct", precision="fp32"),
    ),
    "explain.csv": (
        *(_whole("value", 100, kind="step", name=name) for name in ("skipped", "waiting", "foreign load")),
        _whole("value", 100, kind="types"),
        *(_whole("count", 1, kind=kind) for kind in ("channels-last", "padded")),
    ),
}
"""The relations of each CSV whose rows have any."""
