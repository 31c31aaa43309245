"""The words for changes of any metrics, of which few may be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench import stats
from bench.report.analysis.changes import Contrast

IMPROVED = ("IMPROVED", "REGRESSED", "SAME", "INCONCLUSIVE")


def judge_together(family: Sequence[Contrast], share: float = 0.0) -> list[str]:
    """Return the words of ``IMPROVED`` for contrasts of any metrics.

    Of the changes 5 % at most may be chance.

    Args:
        family: the contrasts.
        share: what a change of a ratio must exceed, where that is more than the contrast's
            threshold.
    """
    words: list[str] = []
    chances: dict[int, float] = {}
    for place, contrast in enumerate(family):
        change = contrast.change
        least = 0.0
        if contrast.metric.scale == "ratio":
            least = math.log1p(share)
        limit = max(contrast.threshold, least + contrast.allowance)
        word = stats.verdict(change, limit, contrast.metric.threshold, IMPROVED)
        # Without an error there is no chance in a change, as in what is read once.
        has_chance = change.error is not None
        if has_chance and change.n < contrast.metric.fewest:
            word = "INCONCLUSIVE"
        elif has_chance:
            chances[place] = change.chance(limit)
        if word == "SAME" and contrast.allowance > 0:
            # Days differ by more than the margin, so nothing is shown to be the same.
            word = "INCONCLUSIVE"
        words.append(word)
    # Those whose verdict may well be one of the many that chance gives.
    for place in chances.keys() - stats.discoveries(chances):
        if words[place] in IMPROVED[:2]:
            words[place] = "INCONCLUSIVE"
    return words
