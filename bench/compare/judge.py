"""The words for changes of any metrics, of which few may be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench import stats
from bench.report.analysis.contrast import Contrast
from bench.report.analysis.judge import FASTER, judge

IMPROVED = ("IMPROVED", "REGRESSED", "SAME", "INCONCLUSIVE")


def judge_together(family: Sequence[Contrast]) -> list[str]:
    """Return the words of ``IMPROVED`` for contrasts of any metrics: of the changes 5 % at most may be chance."""
    words = []
    changed = _beyond(family, [contrast.threshold for contrast in family])
    for contrast, is_changed in zip(family, changed, strict=True):
        change = contrast.change
        if is_changed:
            words.append(IMPROVED[0] if change.center > 0 else IMPROVED[1])
        elif change.error is not None and (contrast.allowance or change.n < contrast.metric.fewest):
            words.append(IMPROVED[3])
        else:  # a change without an error has no chance in it
            words.append(judge(contrast, IMPROVED, None if change.error is None else math.inf))
    return words


def worse_than(family: Sequence[Contrast], share: float | None) -> list[bool]:
    """Say which contrasts are shown to be worse by more than a share, or than their metric's margin in its own unit."""
    if share is None:
        return [False] * len(family)
    limits = []
    for contrast in family:
        least = math.log1p(share) if contrast.metric.scale == "ratio" else 0.0
        limits.append(max(contrast.threshold, least + contrast.allowance))
    beyond = _beyond(family, limits)
    return [holds and contrast.change.center < 0 for contrast, holds in zip(family, beyond, strict=True)]


def _beyond(family: Sequence[Contrast], limits: Sequence[float]) -> list[bool]:
    """Say which contrasts exceed their limits by more than chance among all of them (``stats.discoveries``)."""
    exact, chances = set(), {}
    for place, (contrast, limit) in enumerate(zip(family, limits, strict=True)):
        if contrast.change.error is None:
            exact |= {place} if judge(contrast, threshold=limit) in FASTER[:2] else set()
        elif contrast.change.n >= contrast.metric.fewest:
            chances[place] = contrast.change.chance(limit)
    shown = exact | stats.discoveries(chances)
    return [place in shown for place in range(len(family))]
