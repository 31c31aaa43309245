"""The largest batch that fits: doubled until one does not, then bisected; each attempt is a process of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from bench.results.records import DeviceKind, Fit, Status, TrialResult
from bench.spec.techniques import techniques
from bench.spec.trial import Cell, Trial

SHARE = 16
"""The search ends when the least size that does not fit is at most this part of the largest that does above it."""
MULTIPLE = 8
"""From 16 times this on, sizes are multiples of it, and of a batch's pieces: others are slow on tensor cores."""
MARGIN = 0.2
"""On a CPU, the share of available memory that is left alone: what is short is swapped, or the process is killed."""
STEP_LIMIT_S: dict[DeviceKind, float] = {"cpu": 2.0, "cuda": 30.0}
"""A batch whose step is predicted to take longer is not tried,"""
ATTEMPT_LIMIT_S: dict[DeviceKind, float] = {"cpu": 20.0, "cuda": 120.0}
"""nor one whose whole attempt is, the making of its random samples included."""
Bound = str
"""What keeps the next larger batch from fitting: ``memory``, ``predicted memory``, ``time`` or ``error``."""
Largest = Mapping[tuple[Cell, str], int]
"""The largest batches known: by cell, whatever its batch size, and precision."""


def at_any_size(cell: Cell) -> Cell:
    """Return the cell that stands for all of its batch sizes."""
    return replace(cell, batch_size=1)


def pieces(cell: Cell) -> int:
    """Return into how many equal pieces a batch is cut: over devices that train together, then into parts."""
    return len(cell.placement.members) * techniques(cell.techniques).grad_accumulation


def fitting_at(largest: Mapping[str, int | None]) -> dict[int, tuple[str, ...]]:
    """Return the batch sizes to measure at, each with the precisions that fit: every precision's own largest.

    The smallest of them is the largest that all have in common.
    """
    sizes = sorted({size for size in largest.values() if size is not None})
    return {size: tuple(name for name, most in largest.items() if most is not None and most >= size) for size in sizes}


@dataclass(slots=True)
class Search:
    """A search for one precision's largest batch."""

    trial: Trial
    kind: DeviceKind
    attempt: Callable[[Trial], TrialResult]
    """Trains a few steps at the trial's batch size in a fresh process."""
    fitted: dict[int, TrialResult] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    bound: Bound = ""
    last: TrialResult | None = None
    """The last attempt that did not fit."""

    def run(self) -> tuple[int, TrialResult]:
        """Return the largest batch size that fits, with its row; where none does, the smallest tried.

        All sizes that are tried can be cut into the cell's ``pieces``.
        """
        unit = pieces(self.trial.cell)
        low, high = self._bracket(max(1, self.trial.cell.batch_size // unit) * unit, unit)
        while low and self.bound != "time" and (middle := between(low, high, unit)):  # time is no sharp limit
            if self._fits(middle):
                low = middle
            else:
                high = middle
        if not low:
            return high, self._nothing()
        found = self.fitted[low]
        fit = replace(found.fit or Fit(), fit_bound=self.bound)
        return low, replace(found, detail=self._told(), fit=fit)

    def _bracket(self, start: int, unit: int) -> tuple[int, int]:
        """Return a size that fits, 0 where none does, and a larger one that does not."""
        if self._fits(start):
            while self._fits(2 * start):
                start *= 2
            return start, 2 * start
        high = start
        # What failed by another cause than memory is no smaller for being smaller.
        while self.bound != "error" and high > unit:
            half = high // (2 * unit) * unit
            if self._fits(half):
                return half, high
            high = half
        return 0, high

    def _fits(self, size: int) -> bool:
        if bound := self._beyond(size):
            self.bound = bound
            self.said.append(f"{size} not tried ({bound})")
            return False
        result = self.attempt(replace(self.trial, cell=replace(self.trial.cell, batch_size=size)))
        if result.status == "ok":
            self.fitted[size] = result
            self.said.append(f"{size} fits")
            return True
        self.last, self.bound = result, "memory" if result.status == "oom" else "error"
        self.said.append(f"{size} {result.status}")
        return False

    def _beyond(self, size: int) -> Bound:
        """Predict, from the sizes that fitted, whether this one takes too much time or, on a CPU, too much memory."""
        known = [(at, result.fit) for at, result in sorted(self.fitted.items()) if result.fit is not None]
        if not known or size <= known[-1][0]:
            return ""
        at, fit = known[-1]
        times = size / at * (fit.fit_step_s or 0.0), size / at * (self.fitted[at].wall_s or 0.0)
        if self.kind == "cpu" and fit.fit_peak_bytes is not None:
            slope = fit.fit_peak_bytes / at
            if len(known) > 1 and (before := known[-2][1].fit_peak_bytes) is not None:
                slope = max(0.0, (fit.fit_peak_bytes - before) / (at - known[-2][0]))
            free = fit.fit_free_bytes  # where it ran, which may be another machine
            if free is not None and fit.fit_peak_bytes + slope * (size - at) > (1 - MARGIN) * free:
                return "predicted memory"
        slow = times[0] > STEP_LIMIT_S[self.kind] or times[1] > ATTEMPT_LIMIT_S[self.kind]
        return "time" if slow else ""

    def _told(self) -> str:
        why = f"; {self.last.detail}" if self.last is not None and self.last.detail else ""
        return f"batch sizes tried: {', '.join(self.said)}{why}"

    def _nothing(self) -> TrialResult:
        status: Status = "failed" if self.last is None else self.last.status
        name = self.trial.precisions[0]
        return TrialResult(precision=name, status=status, detail=self._told(), fit=Fit(fit_bound=self.bound))


def between(low: int, high: int, unit: int = 1) -> int:
    """Return the next size to try between one that fits and one that does not; 0 where they are near enough.

    Args:
        low: fits.
        high: does not.
        unit: what all sizes are multiples of, these two included.
    """
    if high - low <= max(unit, low // SHARE):
        return 0
    rough = math.lcm(unit, MULTIPLE)
    step = rough if low >= SHARE * rough else unit
    middle = (low + high) // 2
    return next((size for size in (middle - middle % step, middle - middle % step + step) if low < size < high), 0)
