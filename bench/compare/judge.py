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
        share: what a change of a ratio must exceed, where that is more than the contrast's threshold.
    """
    limits = list[float]()
    chances = dict[int, float]()
    for place, contrast in enumerate(family):
        least = math.log1p(share) if contrast.metric.scale == "ratio" else 0.0
        limits.append(max(contrast.threshold, least + contrast.allowance))
        if contrast.change.error is not None and contrast.change.n >= contrast.metric.fewest:
            chances[place] = contrast.change.chance(limits[place])
    discoveries = stats.discoveries(chances)
    words = []
    for place, contrast in enumerate(family):
        word = stats.verdict(contrast.change, limits[place], contrast.metric.threshold, IMPROVED)
        holding = discoveries if word in IMPROVED[:2] else chances
        is_exact = contrast.change.error is None  # so there is no chance in it
        is_another_day = word == "SAME" and contrast.allowance > 0
        words.append(word if (is_exact or place in holding) and not is_another_day else "INCONCLUSIVE")
    return words
