"""Why a precision's memory rises or falls: the bytes of its tensors at their peak, by kind, and the baseline's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from bench.report.format import known, records
from bench.report.reading.load import CELL
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

COLUMNS = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activations": "activation_bytes",
    "temporaries": "temporary_bytes",
}
"""The columns of trials.csv by the kinds of tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The bytes that one precision's tensors held at the peak of a step."""

    peak: float
    """Of all tensors; the kinds add up to it."""
    kinds: Mapping[str, float]
    weight_copies: float | None
    """Autocast's copies of weights, a part of the activations and temporaries; None is unknown."""
    most_weight_copies: float | None
    """The most that such copies take at any moment of the step; None is unknown."""
    fp32_activations: float | None
    """Activations in fp32; None is unknown."""
    slack: float | None
    """GPU: what the allocator reserved beyond what was allocated, each at its own peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChange:
    """One precision's memory compared with the baseline's."""

    before: Held
    """The baseline's."""
    after: Held

    @property
    def difference(self) -> float:
        """Bytes by which the peak of the tensors rises."""
        return self.after.peak - self.before.peak

    def by_kind(self) -> list[tuple[str, float]]:
        """Return the bytes by which each kind rises, the largest change first."""
        changes = [(kind, self.after.kinds[kind] - self.before.kinds[kind]) for kind in COLUMNS]
        return sorted(changes, key=lambda change: -abs(change[1]))


def memory_change(trials: pd.DataFrame, cell: Mapping[str, object], precision: str) -> MemoryChange | None:
    """Return how a precision's memory differs from the baseline's in a cell; None where one was not counted.

    Args:
        trials: rows of ``Runs.trials``.
        cell: the columns ``CELL``.
        precision: not the baseline.
    """
    measured = trials[(trials["phase"] == "memory") & trials["status"].isin(MEASURED)]
    for name in CELL:
        measured = measured[measured[name] == cell[name]]
    held = {str(row["precision"]): _held(row) for row in records(measured) if known(row["tracked_peak_bytes"])}
    if BASELINE not in held or precision not in held:
        return None
    return MemoryChange(before=held[BASELINE], after=held[precision])


def _held(row: Mapping[object, object]) -> Held:
    def value(name: str) -> float | None:
        return float(row[name]) if known(row[name]) else None  # type: ignore[arg-type]  # a column of figures

    allocated, reserved = value("peak_allocated_bytes"), value("peak_reserved_bytes")
    return Held(
        peak=value("tracked_peak_bytes") or 0.0,
        kinds={kind: value(name) or 0.0 for kind, name in COLUMNS.items()},
        weight_copies=value("weight_copy_bytes"),
        most_weight_copies=value("most_weight_copy_bytes"),
        fp32_activations=value("fp32_activation_bytes"),
        slack=None if allocated is None or reserved is None else reserved - allocated,
    )
