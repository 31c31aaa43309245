"""The words for changes of any metrics, of which few may be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench import stats
from bench.report.analysis.changes import Contrast

IMPROVED = ("IMPROVED", "REGRESSED", "SAME", "INCONCLUSIVE")


def judge_together(family: Sequence[Contrast], share: float = 0.0) -> list[str]:
    """Return the words of ``IMPROVED`` for contrasts of any metrics: of the changes 5 % at most may be chance.

    Args:
        family: the contrasts.
        share: what a change of a ratio must exceed, where that is more than the contrast's
            threshold.
    """
    words: list[str] = []
    chances: dict[int, float] = {}
    for place, contrast in enumerate(family):
        change = contrast.change
        least = math.log1p(share) if contrast.metric.scale == "ratio" else 0.0
        limit = max(contrast.threshold, least + contrast.allowance)
        word = stats.verdict(change, limit, contrast.metric.threshold, IMPROVED)
        is_sample = change.error is not None  # else there is no chance in it
        is_small = is_sample and change.n < contrast.metric.fewest
        is_another_day = word == "SAME" and contrast.allowance > 0
        words.append("INCONCLUSIVE" if is_small or is_another_day else word)
        if is_sample and not is_small:
            chances[place] = change.chance(limit)
    for place in chances.keys() - stats.discoveries(chances):
        if words[place] in IMPROVED[:2]:
            words[place] = "INCONCLUSIVE"
    return words
