"""The search for the largest batch that fits: doubled, then bisected, each attempt in a fresh process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bench.phases.fit import Fit
from bench.planning.batch_sizes import pieces
from bench.results.records import TrialResult
from bench.spec.trial import Trial

SHARE = 16
"""The search ends when the gap between fitting and not fitting is at most this fraction (1/16) of the size."""
MULTIPLE = 8
"""Sizes from 16 times this are multiples of it, and of a batch's pieces: others are slow on tensor cores."""
MARGIN = 0.2
"""Share of a CPU's available memory to leave free: otherwise it swaps, or the process is killed."""
CPU_LIMIT_S, GPU_LIMIT_S = 10.0, 120.0
"""A batch whose attempt, with making random samples and four steps, is predicted to take longer is not tried."""


@dataclass(slots=True)
class Search:
    """A search for one precision's largest batch."""

    trial: Trial
    on_gpu: bool
    """A GPU itself says when its memory is full; a CPU's is predicted."""
    attempt: Callable[[Trial], TrialResult]
    """Trains a few steps at the trial's batch size in a fresh process."""
    multiple: int = 1
    """Each piece of a batch is a multiple of it."""
    fitted: dict[int, TrialResult] = field(default_factory=dict)
    """The attempts that fitted, by their sizes, which rise."""
    peaks: dict[int, int] = field(default_factory=lambda: {0: 0})
    """Their peak memory in bytes, where it is known."""
    last: TrialResult | None = None
    """The last attempt that did not fit."""
    attempts: list[str] = field(default_factory=list)
    bound: str = ""
    """The limit at the smallest size that does not fit (``Fit.fit_bound``)."""

    def run(self) -> tuple[int, TrialResult]:
        """Return the largest batch size that fits, with its result; the smallest one tried if none fits.

        All sizes are multiples of the cell's ``pieces``, times ``multiple``.
        """
        unit = pieces(self.trial.cell) * self.multiple
        size = max(1, self.trial.cell.batch_size // unit) * unit
        low, high = 0, 0
        while size:
            if self._fits(size):
                low = size
            else:
                high = size
            if not high:
                size = 2 * low
            elif "memory" not in self.bound:
                break  # time is no sharp limit, a smaller batch mends no error, and an attempt that hangs takes long
            elif low:
                size = between(low, high, unit)
            else:
                size = high // (2 * unit) * unit
        result = self.fitted[low] if self.last is None else self.fitted.get(low, self.last)
        why = f"; {self.last.detail}" if self.last is not None and self.last.detail else ""
        detail = f"batch sizes tried: {', '.join(self.attempts)}{why}"
        return low or high, replace(result, detail=detail, row=replace(result.row or Fit(), fit_bound=self.bound))

    def _fits(self, size: int) -> bool:
        if bound := self._beyond(size):
            self.bound = bound
            self.attempts.append(f"{size} not tried ({bound})")
            return False
        result = self.attempt(replace(self.trial, cell=replace(self.trial.cell, batch_size=size)))
        if result.status == "ok":
            self.fitted[size] = result
            if result.row.fit_peak_bytes is not None:
                self.peaks[size] = result.row.fit_peak_bytes
            self.attempts.append(f"{size} fits")
            return True
        self.last, self.bound = result, "memory" if result.status == "oom" else "error"
        self.attempts.append(f"{size} {result.status}")
        return False

    def _beyond(self, size: int) -> str:
        """Return the predicted bound of a size: too much time, or memory of a CPU; empty if it should fit."""
        if not self.fitted:
            return ""
        at, result = list(self.fitted.items())[-1]
        free = result.row.fit_free_bytes  # where it ran, which may be another machine
        if not self.on_gpu and free is not None and len(self.peaks) > 1:
            (before, before_bytes), (last, last_bytes) = list(self.peaks.items())[-2:]
            slope = max(0.0, (last_bytes - before_bytes) / (last - before))
            if last_bytes + slope * (size - last) > (1 - MARGIN) * free:
                return "predicted memory"
        limit_s = GPU_LIMIT_S if self.on_gpu else CPU_LIMIT_S
        return "time" if size / at * (result.wall_s or 0.0) > limit_s else ""


def between(low: int, high: int, unit: int) -> int:
    """Return the next multiple of a unit between a size that fits and one that does not; 0 if they are close enough."""
    if high - low <= max(unit, low // SHARE):
        return 0
    rough = math.lcm(unit, MULTIPLE)
    step = rough if low >= SHARE * rough else unit
    middle = (low + high) // 2 // step * step
    return middle if middle > low else 0
