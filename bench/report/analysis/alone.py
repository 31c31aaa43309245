"""Which speedup counts: that in turns, in which precisions share a clock, or that of each precision alone.

In turns, a GPU at its power limit runs all precisions at one clock. The energy phase trains each alone, at its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bench import stats
from bench.report.analysis.changes import Contrast

TOLERANCE = math.log(1.03)
"""One window alone tells a speedup as well as this; one in turns that differs by more does not hold alone."""
IN_TURNS = ["turns_speedup", "turns_speedup_low", "turns_speedup_high"]
"""Columns of the summary with the speedup in turns, where that alone counts."""


def counts(turns: Contrast, alone: Contrast | None) -> bool:
    """Return whether an arm's speedup is the one alone: at the power limit, or where the two differ."""
    if alone is None:
        return False
    return turns.shares_clock or abs(alone.change.center - turns.change.center) > _uncertainty(turns)


def judged(turns: Contrast, alone: Contrast) -> Contrast:
    """Return what the verdict is on where the speedup alone counts.

    A run measures it once. It is taken to be as uncertain as that in turns, and by ``TOLERANCE`` at least.
    """
    freedom, confidence = turns.change.freedom, turns.change.confidence
    error = _uncertainty(turns) / stats.quantile(freedom, confidence)
    change = stats.around(alone.change.center, error, freedom, turns.change.n, confidence)
    return replace(turns, change=change, shares_clock=False)


def _uncertainty(turns: Contrast) -> float:
    return max(TOLERANCE, turns.change.half_width or 0.0)
