"""Self-test of the statistics: the shipped estimator on simulated arms whose ratio is known. Needs no torch."""

from __future__ import annotations

import math
from itertools import cycle, islice

from bench.measure.simulated import DISTURBANCES, estimate

RATIO = 1.5


def bias_and_coverage(arms: int = 200) -> tuple[float, float]:
    """Return the mean error of the log-speedup over simulated arms, and the share of intervals that held the truth."""
    kinds = islice(cycle(DISTURBANCES.values()), arms)
    found = [estimate(seed, RATIO, **kind) for seed, kind in enumerate(kinds)]
    bias = sum(math.log(speedup.center / RATIO) for speedup in found) / arms
    held = sum(
        speedup.low is not None and speedup.high is not None and speedup.low <= RATIO <= speedup.high
        for speedup in found
    )
    return bias, held / arms
