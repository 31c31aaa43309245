"""The words for contrasts, which depend on the question, and for many at once on the others."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench import stats
from bench.report.analysis.changes import Contrast
from bench.report.format import known
from bench.spec.metric import Metric
from bench.spec.metrics import learned

# Where the power limit held down a clock that both shared, a speedup may be some 10 % too high
# (docs/measuring.md): FASTER needs an interval beyond this.
SHARED_CLOCK = math.log(1.15)
# One window alone tells a speedup as well as this; one in turns that differs by more does not hold
# alone.
TOLERANCE = math.log(1.03)
# Columns of the summary with the speedup in turns, where that alone counts.
IN_TURNS = ["turns_speedup", "turns_speedup_low", "turns_speedup_high"]


def judge_speedups(family: Sequence[Contrast]) -> list[str]:
    """Return the words of ``stats.FASTER`` for a report's speedups.

    Of many speedups, one clears the noise by chance. So FASTER and SLOWER also need to be
    discoveries (``stats.discoveries``) at the level of their intervals, 5 % of one process and
    2.5 % of several that may have ended the measurement; alone a speedup has the word of its
    interval.
    """
    chances = {}
    for place, contrast in enumerate(family):
        change = contrast.change
        if change.low is not None:
            level = 1 - change.confidence
            chances[place] = change.chance(contrast.threshold) / level
    discoveries = stats.discoveries(chances, rate=1.0)  # the chances are shares of their levels
    words = []
    for place, contrast in enumerate(family):
        word = contrast.word
        if word in ("FASTER", "SLOWER") and place not in discoveries:
            word = "INCONCLUSIVE"
        is_shared_gain = word == "FASTER" and contrast.shares_clock
        if is_shared_gain and stats.verdict(contrast.change, SHARED_CLOCK) != "FASTER":
            word = "INCONCLUSIVE"
        words.append(word)
    return words


def judged_alone(turns: Contrast, alone: Contrast | None) -> Contrast | None:
    """Return what the verdict is on where the speedup alone counts.

    That is at the power limit, or where the two speedups differ. In turns, a GPU at its power limit
    runs all precisions at one clock. The energy phase trains each alone, at its own, and once: that
    is taken to be as uncertain as the speedup in turns, and by ``TOLERANCE`` at least.
    """
    if alone is None:
        return None
    in_turns, center = turns.change, alone.change.center
    uncertainty = max(TOLERANCE, in_turns.half_width or 0.0)
    if not turns.shares_clock and abs(center - in_turns.center) <= uncertainty:
        return None
    error = uncertainty / stats.quantile(in_turns.freedom, in_turns.confidence)
    change = replace(in_turns, center=center, error=error).at(in_turns.confidence)
    return replace(turns, change=change, shares_clock=False)


def parity(contrast: Contrast) -> str:
    """Judge whether an arm is equivalent to another, or at least not worse.

    By two one-sided tests at 5 % it is EQUIVALENT, NON-INFERIOR, WORSE, INCONCLUSIVE or
    "insufficient seeds". The end of the 90 % interval on the worse side is also the one-sided 95 %
    bound that non-inferiority asks for.

    Source: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
    Journal of Pharmacokinetics and Biopharmaceutics 15 (1987).
    """
    margin = contrast.metric.threshold
    interval = contrast.change.at(0.90)
    if interval.n < contrast.metric.fewest or interval.low is None or interval.high is None:
        return "insufficient seeds"
    if interval.high < -margin:
        return "WORSE"
    if interval.low <= -margin:
        return "INCONCLUSIVE"
    if interval.high < margin:
        return "EQUIVALENT"
    return "NON-INFERIOR"


def judged_by(row: Mapping[Hashable, Any]) -> Metric | None:
    """Return what a row of the summary is compared with fp32 by; None where it is not compared."""
    for metric in learned():
        if known(row[metric.change]):
            return metric.of(row)
    return None
