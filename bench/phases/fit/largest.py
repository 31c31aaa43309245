"""The search for the largest batch that fits: doubled, then bisected, each attempt in a fresh process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bench.phases.fit import Fit
from bench.planning.batch_sizes import pieces
from bench.results.records import Status, TrialResult
from bench.spec.trial import Trial

SHARE = 16
"""The search ends when the gap between fitting and not fitting is at most this fraction (1/16) of the size."""
MULTIPLE = 8
"""Sizes from 16 times this are multiples of it, and of a batch's pieces: others are slow on tensor cores."""
MARGIN = 0.2
"""Share of a CPU's available memory to leave free: otherwise it swaps, or the process is killed."""
CPU_LIMITS_S, GPU_LIMITS_S = (2.0, 20.0), (30.0, 120.0)
"""A batch whose step, or whole attempt with making random samples, is predicted to take longer is not tried."""
Bound = str
"""Limit that the next larger batch would exceed: ``memory``, ``predicted memory``, ``time`` or ``error``."""


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
    attempts: list[str] = field(default_factory=list)
    bound: Bound = ""
    last: TrialResult | None = None
    """The last attempt that did not fit."""

    def run(self) -> tuple[int, TrialResult]:
        """Return the largest batch size that fits, with its result; the smallest one tried if none fits.

        All sizes are multiples of the cell's ``pieces``, times ``multiple``.
        """
        unit = pieces(self.trial.cell) * self.multiple
        low, high = self._bracket(max(1, self.trial.cell.batch_size // unit) * unit, unit)
        while low and not self._ends() and (middle := between(low, high, unit)):
            if self._fits(middle):
                low = middle
            else:
                high = middle
        why = f"; {self.last.detail}" if self.last is not None and self.last.detail else ""
        detail = f"batch sizes tried: {', '.join(self.attempts)}{why}"
        if low:
            result = self.fitted[low]
            return low, replace(result, detail=detail, row=replace(result.row or Fit(), fit_bound=self.bound))
        status: Status = "failed" if self.last is None else self.last.status
        name = self.trial.precisions[0]
        return high, TrialResult(precision=name, status=status, detail=detail, row=Fit(fit_bound=self.bound))

    def _ends(self) -> bool:
        """Say whether to try no further: time is no sharp limit, and an attempt that hangs takes long."""
        return self.bound == "time" or (self.last is not None and self.last.status == "timeout")

    def _bracket(self, start: int, unit: int) -> tuple[int, int]:
        """Return a size that fits, or 0, and a larger one that does not."""
        if self._fits(start):
            while self._fits(2 * start):
                start *= 2
            return start, 2 * start
        high = start
        # A smaller batch helps only against a lack of memory or time.
        while self.bound != "error" and high > unit:
            half = high // (2 * unit) * unit
            if self._fits(half):
                return half, high
            high = half
        return 0, high

    def _fits(self, size: int) -> bool:
        if bound := self._beyond(size):
            self.bound = bound
            self.attempts.append(f"{size} not tried ({bound})")
            return False
        result = self.attempt(replace(self.trial, cell=replace(self.trial.cell, batch_size=size)))
        if result.status == "ok":
            self.fitted[size] = result
            self.attempts.append(f"{size} fits")
            return True
        self.last, self.bound = result, "memory" if result.status == "oom" else "error"
        self.attempts.append(f"{size} {result.status}")
        return False

    def _beyond(self, size: int) -> Bound:
        """Return the predicted bound of a size: too much time, or memory of a CPU; empty if it should fit."""
        known: list[tuple[int, Fit]] = [(at, result.row) for at, result in sorted(self.fitted.items()) if result.row]
        if not known or size <= known[-1][0]:
            return ""
        at, fit = known[-1]
        times = size / at * (fit.fit_step_s or 0.0), size / at * (self.fitted[at].wall_s or 0.0)
        if not self.on_gpu and fit.fit_peak_bytes is not None:
            slope = fit.fit_peak_bytes / at
            if len(known) > 1 and (before := known[-2][1].fit_peak_bytes) is not None:
                slope = max(0.0, (fit.fit_peak_bytes - before) / (at - known[-2][0]))
            free = fit.fit_free_bytes  # where it ran, which may be another machine
            if free is not None and fit.fit_peak_bytes + slope * (size - at) > (1 - MARGIN) * free:
                return "predicted memory"
        step_limit_s, attempt_limit_s = GPU_LIMITS_S if self.on_gpu else CPU_LIMITS_S
        return "time" if times[0] > step_limit_s or times[1] > attempt_limit_s else ""


def between(low: int, high: int, unit: int = 1) -> int:
    """Return the next multiple of a unit between a size that fits and one that does not; 0 if they are close enough."""
    if high - low <= max(unit, low // SHARE):
        return 0
    rough = math.lcm(unit, MULTIPLE)
    step = rough if low >= SHARE * rough else unit
    middle = (low + high) // 2
    return next((size for size in (middle - middle % step, middle - middle % step + step) if low < size < high), 0)
