"""Estimates with intervals, and verdicts on them.

The stopping rule of the speed phase and the report compute intervals with the same functions, on log-ratios, where a
speedup and its inverse are equally far from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes 0.7 s more to import

CONFIDENCE = 0.95
STOPPING, REPORTED = 0.99, 0.975
"""Confidences of the interval over processes: of that which may end the measurement after each process, and of that
which is reported, and decides after the last process.

Stopping early takes what is above 0.95: the reported interval then holds the truth in about 95 % of runs
(``perf/coverage.py``)."""
FAR = 3.0
"""A process is far off the others beyond this many times their spread, and more where they are few."""
LEAST_SPREAD = 0.003
"""Processes differ by at least this share: the addresses of buffers and the choice of algorithms vary among them."""
TRIM = 0.2
"""Share of the values left out at each end of a trimmed mean."""

EVIDENCE = ("foreign_load_pct", "switches_per_s", "rounds", "discarded_rounds")
"""Columns of trials.csv from which a process is seen to be disturbed, in the order of ``disturbed``."""

BETWEEN_DAYS, PRIOR_DAYS = 0.025, 4.0
"""Standard deviation of a machine's days, as a share, and how many degrees of freedom it counts as, where it is not
known."""
KNOWN_DAYS = 5
"""Days of one question from which their spread is known."""

ASSUMED_NOISE = 0.01
"""The A/A noise, as a share, where fp32 was not timed against itself."""
MARGIN = 0.01
"""Differences within this share do not matter."""

Verdict = Literal["FASTER", "SLOWER", "SAME", "INCONCLUSIVE"]
Values = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate and its interval, at the confidence of the function that made it (95 %, or 97.5 % of ``REPORTED``).

    ``low`` and ``high`` are None where there is too little to tell.
    """

    center: float
    low: float | None
    high: float | None
    n: int
    """How many values it rests on: rounds (averages of neighbours where these correlate), processes or seeds; of two
    samples the smaller number."""
    is_disturbed: bool = False
    """Of one process: whether its foreign load, its switches or its discarded rounds are evidence (``disturbed``)."""

    @property
    def ends(self) -> tuple[float, float | None, float | None]:
        """The estimate, and the ends of its interval."""
        return self.center, self.low, self.high

    @property
    def half_width(self) -> float | None:
        """Half the interval's width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def reach(self) -> float:
        """The larger distance of its ends from zero; infinite where they are not known."""
        return math.inf if self.low is None or self.high is None else max(abs(self.low), abs(self.high))

    def negative(self) -> Interval:
        """Turn a difference round: its ends are swapped."""
        low, high = (None if end is None else 0.0 - end for end in (self.high, self.low))  # not -0.0
        return replace(self, center=0.0 - self.center, low=low, high=high)

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
    return _around(center, quantile(trimmed_freedom(count)) * error, count)


def trimmed_freedom(count: int) -> int:
    """Return the degrees of freedom of ``robust_interval`` of two values or more."""
    return count - 2 * int(TRIM * count) - 1


def student_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean with Student's interval."""
    return student(values).interval(confidence)


def _around(center: float, half: float, count: int) -> Interval:
    return Interval(center=center, low=center - half, high=center + half, n=count)


def quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return how many standard errors half of Student's interval is wide."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """An estimated difference with its standard error: Student's distribution around the truth."""

    center: float
    error: float
    """0 where nothing varies."""
    freedom: float
    n: int
    """How many values it rests on; of two samples the smaller number. With fewer than two there is no interval."""

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Return the difference with its interval."""
        if self.n < 2:
            return Interval(center=self.center, low=None, high=None, n=self.n)
        half = quantile(self.freedom, confidence) * self.error if self.error else 0.0
        return _around(self.center, half, self.n)

    def beyond(self, margin: float) -> float:
        """Return how likely a difference as large would be were the true one within ±``margin``: a two-sided p.

        It is below 0.05 where the 95 % interval lies beyond the margin, on either side.
        """
        excess = abs(self.center) - margin
        if self.n < 2 or excess <= 0:
            return 1.0
        return 2 * float(special.stdtr(self.freedom, -excess / self.error)) if self.error else 0.0


def student(values: Values) -> Difference:
    """Return the mean of differences, at least one, with its standard error."""
    data = np.asarray(values, dtype=np.float64)
    count = int(data.size)
    error = math.sqrt(_variance(data) / count) if count > 1 else 0.0
    center = float(data.mean()) if np.ptp(data) else float(data[0])
    return Difference(center=center, error=error, freedom=max(1, count - 1), n=count)


def welch(baseline: Values, arm: Values) -> Difference:
    """Return mean(baseline) − mean(arm) of independent values, with Welch's standard error.

    Source: Welch, "The generalization of 'Student's' problem when several different population variances are
    involved", Biometrika 34 (1947), with the degrees of freedom of Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (baseline, arm))
    center, count = float(a.mean() - b.mean()), min(a.size, b.size)
    of_a, of_b = (_variance(data) / data.size if count > 1 else 0.0 for data in (a, b))
    if not of_a + of_b:
        return Difference(center=center, error=0.0, freedom=1.0, n=count)
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (a.size - 1) + of_b**2 / (b.size - 1))
    return Difference(center=center, error=math.sqrt(of_a + of_b), freedom=freedom, n=count)


def _variance(data: NDArray[np.float64]) -> float:
    """Return the variance of a sample of at least two; exactly 0 where all values are the same."""
    return float(data.var(ddof=1)) if np.ptp(data) else 0.0


def between_runs(new: Sequence[Values], old: Sequence[Values], within: Difference) -> Difference:
    """Return the difference of two sides, each of runs of some days: these are the samples, because days differ.

    The variance of days is s² = [4 · 2.5 % squared + Σ squares within the sides] / ν, with ν = 4 + the days less
    one of each side; its first term is what days of one machine may differ by where nothing is known of it, and goes
    where a side has five days or more. The error is s √(1/m₁ + 1/m₂), or that of the processes where that is wider.

    Source: a scaled inverse χ² prior, as in Smyth, "Linear models and empirical Bayes methods", Stat. Appl. Genet.
    Mol. Biol. 3 (2004).

    Args:
        new: for each day its values, on the additive scale.
        old: the same of the other side.
        within: the difference of the same values if all processes were independent.
    """
    means = [np.array([float(np.mean(day)) for day in side]) for side in (new, old)]
    prior = 0.0 if max(side.size for side in means) >= KNOWN_DAYS else PRIOR_DAYS
    freedom = prior + sum(side.size - 1 for side in means)
    squares = prior * BETWEEN_DAYS**2 + sum(float(np.square(side - side.mean()).sum()) for side in means)
    error = math.sqrt(squares / freedom * sum(1 / side.size for side in means))
    center = float(means[0].mean() - means[1].mean())
    own = Difference(center=center, error=within.error, freedom=within.freedom, n=within.n)
    apart = Difference(center=center, error=error, freedom=freedom, n=within.n)
    return max(own, apart, key=lambda difference: quantile(difference.freedom) * difference.error)


def mean_difference(parts: Sequence[Difference]) -> Difference:
    """Return the mean of independent differences, at least one, all with the same weight.

    Source: the degrees of freedom are Satterthwaite's, Biometrics Bulletin 2 (1946).
    """
    squares = [part.error**2 for part in parts]
    total = sum(squares)
    fourth = sum(square**2 / part.freedom for square, part in zip(squares, parts, strict=True))
    return Difference(
        center=sum(part.center for part in parts) / len(parts),
        error=math.sqrt(total) / len(parts),
        freedom=total**2 / fourth if fourth else 1.0,
        n=min(part.n for part in parts),
    )


def discoveries(ps: Sequence[float], rate: float = 1 - CONFIDENCE) -> list[bool]:
    """Say which of many findings hold when at most a share ``rate`` of those that are said to hold may be chance.

    Where there is nothing to find, all of them together are said to hold nothing in a share 1 − ``rate`` of cases.

    Args:
        ps: each finding's p; a finding that could not be tested does not belong here.
        rate: the false discovery rate.

    Source: Benjamini and Hochberg, "Controlling the false discovery rate", J. R. Statist. Soc. B 57 (1995).
    """
    ordered = sorted(ps)
    passed = [p for rank, p in enumerate(ordered, 1) if p <= rate * rank / len(ordered)]
    return [bool(passed) and p <= passed[-1] for p in ps]


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


def process_interval(processes: Sequence[Interval], confidence: float = REPORTED) -> Interval:
    """Return the log-speedup over fresh processes: the random-effects mean with Hartung and Knapp's interval.

    Each process has an error of its own, and processes differ by more than these errors tell. Those of ``left_out`` are
    left out. No error counts as less than their median: one estimated from a few rounds may be small by chance, and its
    process would outweigh all others. Nor does the standard error count as less than ``LEAST_SPREAD`` / √k: a few
    processes may agree by chance. ``n`` counts the processes that it rests on.

    Args:
        processes: each process's log-speedup with its own interval. A single one is returned as it is.
        confidence: of the interval.
    """
    if len(processes) == 1:
        return processes[0]
    kept = [process for process, is_out in zip(processes, left_out(processes), strict=True) if not is_out]
    errors = _errors(kept)
    mean = random_effects([process.center for process in kept], np.maximum(errors, np.median(errors)), confidence)
    if mean.half_width is None:
        return mean
    least = quantile(mean.n - 1, confidence) * LEAST_SPREAD / math.sqrt(mean.n)
    return _around(mean.center, max(mean.half_width, least), mean.n)


def aa_noise(processes: Sequence[Interval]) -> float | None:
    """Return the A/A noise as a share, from the log-speedup of fp32 over itself in each process; None if unknown.

    It is the larger distance from 1 of the ends of ``process_interval``: no larger difference can be excluded to come
    from nothing. A lone process of a single round has no interval, and so tells nothing.
    """
    reach = process_interval(processes).reach if processes else math.inf
    return math.expm1(reach) if math.isfinite(reach) else None


def left_out(processes: Sequence[Interval]) -> list[bool]:
    """Say which processes do not count: those that are disturbed by evidence, and lie far off the undisturbed ones."""
    return [process.is_disturbed and side != 0 for process, side in zip(processes, _far_off(processes), strict=True)]


def groups(processes: Sequence[Interval]) -> list[tuple[int, float]]:
    """Return how many processes that count lie together, below and above, each with their mean; most often one group.

    Without evidence of a disturbance, those far off may be right: processes can differ by where their buffers lie.
    """
    sides = zip(processes, _far_off(processes), left_out(processes), strict=True)
    kept = [(side, process.center) for process, side, is_out in sides if not is_out]
    by_side = ([center for of, center in kept if of == side] for side in (0, -1, 1))
    return [(len(centers), float(np.mean(centers))) for centers in by_side if centers]


def _far_off(processes: Sequence[Interval]) -> list[int]:
    """Say which processes lie far below (−1) or above (1) those that are not disturbed, of which there are two or more.

    Far is more than 3 (1 + 4/k) times the spread of the k undisturbed ones around their median: their median absolute
    deviation, scaled as for a normal distribution, or the median standard error where that is larger.
    """
    clean = [process.center for process in processes if not process.is_disturbed]
    if len(clean) < 2:
        return [0] * len(processes)
    center = float(np.median(clean))
    scatter = float(np.median(np.abs(np.array(clean) - center))) / float(special.ndtri(0.75))
    far = FAR * (1 + 4 / len(clean)) * max(scatter, float(np.median(_errors(processes))), LEAST_SPREAD)
    away = [process.center - center for process in processes]
    return [int(math.copysign(abs(distance) > far, distance)) for distance in away]


def disturbed(
    foreign_load_pct: Values, switches_per_s: Values, rounds: Values, discarded_rounds: Values
) -> NDArray[np.bool_]:
    """Say which processes of a cell show evidence of a disturbance that is not seen in most of the others.

    It is a share of foreign load or of discarded rounds, or a rate of switches, that is far above the processes'
    median, and at least twice as large. Each argument has a value for each process, NaN where it is unknown.
    """
    counted, discarded = (np.asarray(values, dtype=np.float64) for values in (rounds, discarded_rounds))
    discarded_pct = 100 * discarded / np.maximum(counted + discarded, 1)
    evidence = np.zeros(counted.size, dtype=bool)
    for values, least in ((foreign_load_pct, 10.0), (switches_per_s, 20.0), (discarded_pct, 10.0)):
        measured = np.asarray(values, dtype=np.float64)
        known = measured[np.isfinite(measured)]
        if known.size > 2:
            median = float(np.median(known))
            scatter = float(np.median(np.abs(known - median))) / float(special.ndtri(0.75))
            evidence |= measured - median > max(least, median, FAR * (1 + 4 / known.size) * scatter)
    return evidence


def _errors(processes: Sequence[Interval]) -> NDArray[np.float64]:
    """Return the processes' standard errors; all zero where one is not known."""
    halves = [process.half_width for process in processes]
    if None in halves:
        return np.zeros(len(halves))
    return np.array(halves, dtype=np.float64) / float(special.ndtri((1 + CONFIDENCE) / 2))


def random_effects(centers: Values, errors: Values, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of estimates that have errors of their own and differ among themselves too.

    The variance between them is Paule and Mandel's, the interval Hartung and Knapp's. Where an error is zero, it is
    the mean with Student's interval: a process that did not vary by chance is not worth all the others.

    Args:
        centers: the estimates, at least one.
        errors: their standard errors.
        confidence: of the interval.

    Source: Paule and Mandel, J. Res. Natl. Bur. Stand. 87 (1982), by the iteration of DerSimonian and Kacker,
    Contemp. Clin. Trials 28 (2007); Hartung and Knapp, Statistics in Medicine 20 (2001).
    """
    data, within = np.asarray(centers, dtype=np.float64), np.square(np.asarray(errors, dtype=np.float64))
    count = int(data.size)
    if count < 2:
        return Interval(center=float(data[0]), low=None, high=None, n=count)
    if not within.all():
        return student_interval(data, confidence)
    between = 0.0
    for _ in range(100):
        weights = 1 / (within + between)
        center = float(weights @ data / weights.sum())
        squares = weights * np.square(data - center)
        excess = float(squares.sum()) - (count - 1)
        if excess <= 1e-9 * count and (between == 0 or excess >= -1e-9 * count):
            break
        slope = float(weights @ squares)
        if slope == 0:  # all centers are the mean
            break
        between = max(0.0, between + excess / slope)
    error = math.sqrt(float(squares.sum()) / (count - 1) / float(weights.sum()))
    return _around(center, quantile(count - 1, confidence) * error, count)


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

    The noise is a share, the reach of the baseline's interval against itself; so is the margin that does not matter.
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
