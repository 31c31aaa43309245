"""The words for contrasts. They depend on the question that is asked, and for many at once on the others."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

from bench import stats
from bench.report.analysis.changes import Contrast
from bench.report.format import known
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, learned

FASTER = ("FASTER", "SLOWER", "SAME", "INCONCLUSIVE")
Parity = Literal["EQUIVALENT", "NON-INFERIOR", "WORSE", "INCONCLUSIVE", "insufficient seeds"]
"""``summary.trainings`` replaces it with ``diverged`` where a seed diverged."""
SHARED_CLOCK = math.log(1.15)
"""Where the power limit held down a clock that both shared, a speedup may be some 10 % too high (docs/measuring.md):
FASTER is said only of an interval beyond this."""
MIN_SEEDS = ACCURACY.fewest
"""With fewer paired seeds there is no parity verdict."""


def judge(contrast: Contrast, words: Sequence[str] = FASTER, threshold: float | None = None) -> str:
    """Return the word for better, worse, the same or undecided: beyond the threshold, or within the metric's margin.

    Args:
        contrast: the change.
        words: for better, worse, the same and undecided.
        threshold: what the whole interval must exceed, on the additive scale; if None, the contrast's own.
    """
    low, high = contrast.change.low, contrast.change.high
    limit = contrast.threshold if threshold is None else threshold
    if low is None or high is None:
        return words[3]
    if low > limit or high < -limit:
        return words[0] if low > limit else words[1]
    return words[2] if max(-low, high) <= contrast.metric.threshold else words[3]


def judge_speedups(family: Sequence[Contrast]) -> list[str]:
    """Return the words of ``FASTER`` for the speedups of a report: among many, an interval clears the noise by chance.

    FASTER and SLOWER also need to be discoveries (``stats.discoveries``) at the level of their intervals, 5 % of one
    process and 2.5 % of several that may have ended the measurement; alone a speedup has the word of its interval.
    """
    chances = {
        place: contrast.change.chance(contrast.threshold) / (1 - contrast.change.confidence)
        for place, contrast in enumerate(family)
        if contrast.change.low is not None
    }
    holding = stats.discoveries(chances, 1.0)
    words = []
    for place, contrast in enumerate(family):
        word = judge(contrast)
        is_chance = word in FASTER[:2] and place not in holding
        is_clock = word == FASTER[0] and contrast.shares_clock and (contrast.change.low or 0.0) <= SHARED_CLOCK
        words.append(FASTER[3] if is_chance or is_clock else word)
    return words


def parity(contrast: Contrast) -> Parity:
    """Judge whether an arm is equivalent to another, or at least not worse, by two one-sided tests at 5 %.

    The end of the 90 % interval on the worse side is also the one-sided 95 % bound that non-inferiority asks for.

    Source: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
    Journal of Pharmacokinetics and Biopharmaceutics 15 (1987).
    """
    margin, change = contrast.metric.threshold, contrast.change
    interval = change.at(0.90)
    if change.n < contrast.metric.fewest or interval.low is None or interval.high is None:
        return "insufficient seeds"
    if interval.high < -margin:
        return "WORSE"
    if interval.low <= -margin:
        return "INCONCLUSIVE"
    return "EQUIVALENT" if interval.high < margin else "NON-INFERIOR"


def judged_by(row: Mapping[Hashable, Any]) -> Metric | None:
    """Return what a row of the summary is compared with fp32 by; None where it is not compared."""
    return next((metric.of(row) for metric in learned() if known(row[metric.change])), None)
