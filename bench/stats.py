"""Estimates with intervals, and verdicts on them.

The stopping rule of the speed phase and the report compute intervals with the same functions, on log-ratios, where a
speedup and its inverse are equally far from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes half a second to import

CONFIDENCE = 0.95
TRIM = 0.2
"""Share of the values left out at each end of a trimmed mean."""

MARGIN = 0.01
"""Differences within this share do not matter."""

Verdict = Literal["FASTER", "SLOWER", "SAME", "INCONCLUSIVE"]
Values = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate and its 95 % interval; ``low`` and ``high`` are None where there is too little to tell."""

    center: float
    low: float | None
    high: float | None
    n: int
    """How many values it rests on."""

    @property
    def half_width(self) -> float | None:
        """Half the interval's width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def reach(self) -> float:
        """The larger distance of its ends from zero; infinite where they are not known."""
        return math.inf if self.low is None or self.high is None else max(abs(self.low), abs(self.high))

    def inverse(self) -> Interval:
        """Turn a ratio round: one over the estimate, its ends swapped."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Interval(center=1 / self.center, low=low, high=high, n=self.n)

    def exp(self) -> Interval:
        """Turn an estimate of a log-ratio into one of the ratio."""
        low = None if self.low is None else math.exp(self.low)
        high = None if self.high is None else math.exp(self.high)
        return Interval(center=math.exp(self.center), low=low, high=high, n=self.n)


def round_log_ratio(baseline: tuple[float, float], arm: tuple[float, float]) -> float:
    """Return ln(baseline time / arm time) of one ABBA round, given each arm's two block times.

    In ABBA and BAAB order both arms have the same mean position, so drift that is linear in time cancels exactly.
    """
    return 0.5 * (math.log(baseline[0]) + math.log(baseline[1]) - math.log(arm[0]) - math.log(arm[1]))


def robust_interval(values: Values) -> Interval:
    """Return the 20 % trimmed mean with Yuen's interval: Student's t on the winsorised variance.

    Source: Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61 (1974);
    one sample as in Tukey and McLaughlin, Sankhya A 25 (1963). With fewer than five values nothing is
    trimmed, and it is the mean with Student's interval.
    """
    data = np.sort(np.asarray(values, dtype=np.float64))
    count = int(data.size)
    trimmed = int(TRIM * count)
    kept = data[trimmed : count - trimmed]
    center = float(kept.mean())
    if count < 2:
        return Interval(center=center, low=None, high=None, n=count)
    winsorised = data.clip(kept[0], kept[-1])
    error = float(winsorised.std(ddof=1)) / ((1 - 2 * TRIM) if trimmed else 1.0) / math.sqrt(count)
    return _around(center, _quantile(kept.size - 1) * error, count)


def student_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean with Student's interval."""
    data = np.asarray(values, dtype=np.float64)
    center, count = float(data.mean()), int(data.size)
    if count < 2:
        return Interval(center=center, low=None, high=None, n=count)
    return _around(center, _quantile(count - 1, confidence) * float(data.std(ddof=1)) / math.sqrt(count), count)


def _around(center: float, half: float, count: int) -> Interval:
    return Interval(center=center, low=center - half, high=center + half, n=count)


def _quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return how many standard errors half of Student's interval is wide."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """What Welch's interval needs of some values."""

    mean: float
    variance: float
    """Of the sample, with n - 1; NaN of a single value."""
    n: int
    constant: bool
    """Whether all are the same."""


def moments(values: Values) -> Moments:
    """Return the moments of some values, at least one."""
    data = np.asarray(values, dtype=np.float64)
    variance = float(data.var(ddof=1)) if data.size > 1 else math.nan
    return Moments(mean=float(data.mean()), variance=variance, n=int(data.size), constant=float(np.ptp(data)) == 0.0)


def welch_interval(baseline: Values | Moments, arm: Values | Moments) -> Interval:
    """Return mean(baseline) − mean(arm) of independent values, with Welch's interval.

    Source: Welch, "The generalization of 'Student's' problem when several different population variances are
    involved", Biometrika 34 (1947), with the degrees of freedom of Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    a, b = (values if isinstance(values, Moments) else moments(values) for values in (baseline, arm))
    center, count = a.mean - b.mean, min(a.n, b.n)
    if count < 2:
        return Interval(center=center, low=None, high=None, n=count)
    if a.constant and b.constant:
        return _around(center, 0.0, count)
    of_a, of_b = a.variance / a.n, b.variance / b.n
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (a.n - 1) + of_b**2 / (b.n - 1))
    return _around(center, _quantile(freedom) * math.sqrt(of_a + of_b), count)


def merge_correlated(values: Values, smallest: int = 10) -> NDArray[np.float64]:
    """Average consecutive values in pairs until they no longer correlate, so that an interval may trust their count.

    Values correlate when the lag-1 autocorrelation exceeds 2/√n in size. Merging stops where it would leave fewer
    than ``smallest`` values.
    """
    data = np.asarray(values, dtype=np.float64)
    while data.size // 2 >= smallest and abs(_lag1(data)) > 2 / math.sqrt(data.size):
        data = data[: data.size // 2 * 2].reshape(-1, 2).mean(axis=1)
    return data


def _lag1(data: NDArray[np.float64]) -> float:
    centred = data - data.mean()
    power = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / power if power > 0 else 0.0


def rounds_interval(log_ratios: Values) -> Interval:
    """Return the log-speedup of one process from its rounds, with its interval."""
    return robust_interval(merge_correlated(log_ratios))


def process_interval(centers: Values, within: Interval | None = None) -> Interval:
    """Return the log-speedup over fresh processes: Student's t on their centres.

    Args:
        centers: each process's log-speedup.
        within: the only process's own interval, used where there is just one.
    """
    if len(centers) == 1 and within is not None:
        return within
    return student_interval(centers)


def count_outliers(values: Values) -> int:
    """Count the values that lie more than five robust standard deviations from the median (none is left out).

    The robust standard deviation is 1.4826 times the median absolute deviation, as for a normal distribution.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size < 3:
        return 0
    away = np.abs(data - np.median(data))
    spread = float(np.median(away)) / float(special.ndtri(0.75))
    return int((away > 5 * spread).sum()) if spread > 0 else 0


def verdict(speedup: Interval, noise: float, margin: float = MARGIN) -> Verdict:
    """Return what an interval of a speedup shows: FASTER only if all of it clears the A/A noise.

    Args:
        speedup: the ratio, not its logarithm.
        noise: the A/A noise as a share: the reach of the baseline's interval against itself.
        margin: differences within this share do not matter.
    """
    if speedup.low is None or speedup.high is None:
        return "INCONCLUSIVE"
    if speedup.low > 1 + noise:
        return "FASTER"
    if speedup.high < 1 / (1 + noise):
        return "SLOWER"
    if speedup.low >= 1 / (1 + margin) and speedup.high <= 1 + margin:
        return "SAME"
    return "INCONCLUSIVE"
