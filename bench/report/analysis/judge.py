"""The words for contrasts. They depend on the question that is asked, and for many at once on the others."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

from bench import stats
from bench.report.analysis.contrast import Contrast
from bench.report.format import known
from bench.spec.metrics import ACCURACY, Metric, learned

FASTER = ("FASTER", "SLOWER", "SAME", "INCONCLUSIVE")
IMPROVED = ("IMPROVED", "REGRESSED", "SAME", "INCONCLUSIVE")
Parity = Literal["EQUIVALENT", "NON-INFERIOR", "WORSE", "INCONCLUSIVE", "insufficient seeds"]
"""``summary.trainings`` replaces it with ``diverged`` where a seed diverged."""
MIN_SEEDS = ACCURACY.fewest
"""With fewer paired seeds there is no parity verdict."""


def judge(contrast: Contrast, threshold: float, words: Sequence[str] = FASTER) -> str:
    """Return the word for better, worse, the same or undecided: beyond a threshold, or within the metric's margin.

    Args:
        contrast: the change.
        threshold: what the whole interval must exceed, on the additive scale.
        words: for better, worse, the same and undecided.
    """
    low, high = contrast.change.low, contrast.change.high
    if low is None or high is None:
        return words[3]
    if low > threshold or high < -threshold:
        return words[0] if low > threshold else words[1]
    return words[2] if max(-low, high) <= contrast.metric.threshold else words[3]


def judge_together(family: Sequence[Contrast], thresholds: Sequence[float]) -> list[str]:
    """Return the words of ``IMPROVED`` for contrasts of which at most 5 % of the changes may be chance.

    Args:
        family: the contrasts, of any metrics.
        thresholds: what each must exceed, on the additive scale.
    """
    changed = beyond(family, thresholds)
    return [
        (IMPROVED[0] if contrast.change.center > 0 else IMPROVED[1])
        if holds
        else judge(contrast, math.inf, IMPROVED)
        if decides(contrast)
        else IMPROVED[3]
        for contrast, holds in zip(family, changed, strict=True)
    ]


def beyond(family: Sequence[Contrast], thresholds: Sequence[float]) -> list[bool]:
    """Say which contrasts exceed their thresholds by more than chance among all of them (``stats.discoveries``)."""
    tested = [decides(contrast) for contrast in family]
    ps = [
        contrast.difference.beyond(threshold)
        for contrast, threshold in zip(family, thresholds, strict=True)
        if contrast.difference is not None and decides(contrast)
    ]
    holding = iter(stats.discoveries(ps))
    return [test and next(holding) for test in tested]


def decides(contrast: Contrast) -> bool:
    """Say whether a contrast has a p-value, and replicates enough for a verdict."""
    return contrast.difference is not None and contrast.change.n >= contrast.metric.fewest


def parity(contrast: Contrast) -> Parity:
    """Judge whether an arm is equivalent to another, or at least not worse, by two one-sided tests at 5 %.

    The end of the 90 % interval on the worse side is also the one-sided 95 % bound that non-inferiority asks for.

    Source: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
    Journal of Pharmacokinetics and Biopharmaceutics 15 (1987).
    """
    margin, change = contrast.metric.threshold, contrast.change
    interval = contrast.difference.interval(0.90) if contrast.difference else change
    if change.n < contrast.metric.fewest or interval.low is None or interval.high is None:
        return "insufficient seeds"
    if interval.high < -margin:
        return "WORSE"
    if interval.low <= -margin:
        return "INCONCLUSIVE"
    return "EQUIVALENT" if interval.high < margin else "NON-INFERIOR"


def judged_by(row: Mapping[Hashable, Any]) -> Metric | None:
    """Return what a row of the summary is compared with fp32 by; None where it is not compared."""
    return next((metric for metric in learned() if known(row[metric.change])), None)
