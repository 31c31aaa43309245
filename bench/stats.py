"""Estimates with intervals, and verdicts on them.

A process is one number, the trimmed mean of its rounds; a cell is Student's t over its processes.
The stopping rule of the speed phase and the report use the same functions, on log-ratios, where a
speedup and its inverse are equally far from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes 0.7 s more to import

CONFIDENCE = 0.95
# Confidence of the interval over processes that may end the measurement after each process.
STOPPING = 0.99
# Confidence of the interval that is reported. Stopping early takes what is above 0.95: it then
# holds the truth in about 95 % of runs (``perf/coverage.py``).
REPORTED = 0.975
# Processes differ by at least this share: the addresses of buffers and the choice of algorithms
# vary among them.
LEAST_SPREAD = 0.003
# Share of the values left out at each end of a trimmed mean.
TRIM = 0.2
# The A/A noise, as a share, where fp32 was not timed against itself.
ASSUMED_NOISE = 0.01
# Differences within this share do not matter.
MARGIN = 0.01
FASTER = (
    "FASTER",
    "SLOWER",
    "SAME",
    "INCONCLUSIVE",
)
# A measure of a process is far above the others' beyond this many times their spread, and more
# where they are few.
FAR = 3.0
# Columns of speed.csv from which a process is seen to be disturbed by comparison with the others of
# its cell, and the least by which it must exceed their median.
EVIDENCE = {
    "foreign_load_pct": 10.0,
    "switches_per_s": 20.0,
}

Key = TypeVar("Key")
Array = NDArray[np.float64]
Values = Sequence[float] | Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate with its interval, on the additive scale or, after ``exp``, as a ratio.

    ``low`` and ``high`` are None where there is too little to tell.
    """

    center: float
    low: float | None
    high: float | None
    n: int
    """How many values it rests on: rounds, processes or seeds; of two samples the smaller
    number."""
    error: float | None = None
    """The standard error, 0 where nothing varies; None where the interval does not come from a
    sample."""
    freedom: float = 1.0
    """Degrees of freedom of the error."""
    confidence: float = CONFIDENCE

    @property
    def ends(self) -> tuple[float, float | None, float | None]:
        """The estimate, and the ends of its interval."""
        return self.center, self.low, self.high

    @property
    def half_width(self) -> float | None:
        """Half the interval's width."""
        if self.low is None or self.high is None:
            return None
        width = self.high - self.low
        return width / 2

    def at(self, confidence: float) -> Interval:
        """Return the same estimate with its interval at another confidence.

        An estimate that does not come from a sample stays as it is.
        """
        if self.error is None:
            return self
        return around(
            self.center,
            self.error,
            self.freedom,
            self.n,
            confidence,
        )

    def minus(self, other: Interval) -> Interval:
        """Return the difference of two log-speedups, with their errors as if independent.

        Of one process, what both owe to the baseline makes the interval wider than it need be.
        """
        center = self.center - other.center
        own_error = self.error or 0.0
        other_error = other.error or 0.0
        error = math.hypot(own_error, other_error)
        # Of the one with fewer degrees of freedom, which makes the interval no narrower than it is.
        freedom = min(self.freedom, other.freedom)
        count = min(self.n, other.n)
        return around(center, error, freedom, count)

    def on(self, scale: Callable[[float], float]) -> Interval:
        """Return the estimate and its ends on another scale, a monotonic function of this one."""
        low = self.low
        high = self.high
        if low is not None and high is not None:
            ends = (scale(low), scale(high))
            # Where the scale falls, the ends change places.
            low, high = sorted(ends)
        center = scale(self.center)
        return Interval(
            center=center,
            low=low,
            high=high,
            n=self.n,
        )

    def exp(self) -> Interval:
        """Turn an estimate of a log-ratio into one of the ratio."""
        return self.on(math.exp)

    def chance(self, margin: float) -> float:
        """Return the two-sided p of an estimate as far off, were the truth within ±``margin``."""
        # One value has no error to judge by.
        if self.error is None or self.n < 2:
            return 1.0
        excess = abs(self.center) - margin
        if excess <= 0:
            return 1.0
        if self.error == 0:
            return 0.0
        errors = excess / self.error
        one_sided = special.stdtr(self.freedom, -errors)
        return 2 * float(one_sided)


def around(
    center: float,
    error: float,
    freedom: float,
    count: int,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return an estimate with Student's interval, which fewer than two values do not have."""
    low = None
    high = None
    if count >= 2:
        half = quantile(freedom, confidence) * error
        low = center - half
        high = center + half
    return Interval(
        center=center,
        low=low,
        high=high,
        n=count,
        error=error,
        freedom=freedom,
        confidence=confidence,
    )


def quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return how many standard errors half of Student's interval is wide."""
    below = (1 + confidence) / 2
    return float(special.stdtrit(freedom, below))


def rounds_interval(log_ratios: Values) -> Interval:
    """Return the log-speedup of one process, with Yuen's interval.

    It is the 20 % trimmed mean of its rounds. With fewer than five rounds nothing is trimmed, and
    it is the mean with Student's interval.

    Source: Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61 (1974);
    one sample as in Tukey and McLaughlin, Sankhya A 25 (1963).
    """
    data = np.asarray(log_ratios, dtype=np.float64)
    center, error = rounds_estimates(data)
    return of_rounds(float(center), float(error), len(log_ratios))


def of_rounds(center: float, error: float, count: int) -> Interval:
    """Return the log-speedup of one process from ``rounds_estimates`` of its rounds."""
    trimmed = int(TRIM * count)
    kept = count - 2 * trimmed
    freedom = max(1, kept - 1)
    return around(center, error, freedom, count)


def rounds_estimates(log_ratios: Array) -> tuple[Array, Array]:
    """Return the centers and standard errors of ``rounds_interval`` of many processes at once.

    Args:
        log_ratios: (..., rounds); what is returned has the shape without the rounds.
    """
    data = np.sort(log_ratios)
    count = data.shape[-1]
    trimmed = int(TRIM * count)
    end = count - trimmed
    kept = data[..., trimmed:end]
    # Winsorised: what was trimmed counts as the nearest value that was kept.
    centers = kept.mean(axis=-1)
    lowest = kept[..., :1]
    highest = kept[..., -1:]
    winsorised = data.clip(lowest, highest)
    # A single round has no spread.
    lost = min(1, count - 1)
    spreads = winsorised.std(axis=-1, ddof=lost)
    errors = spreads / math.sqrt(count)
    if trimmed:
        # The nominal share that is kept, as Yuen has it, also where the count is no multiple of 5.
        share = 1 - 2 * TRIM
        errors = errors / share
    return centers, errors


def student(
    values: Values,
    confidence: float = CONFIDENCE,
    least_spread: float = 0.0,
) -> Interval:
    """Return the mean of independent values, at least one, with Student's interval.

    Args:
        values: on the additive scale.
        confidence: of the interval.
        least_spread: the standard error is not taken to be less than this over √n.
    """
    data = np.asarray(values, dtype=np.float64)
    center = float(data.mean())
    count = int(data.size)
    spread = max(math.sqrt(_variance(data)), least_spread)
    error = spread / math.sqrt(count)
    freedom = max(1, count - 1)
    return around(center, error, freedom, count, confidence)


def over_processes(processes: Sequence[Interval], is_disturbed: Sequence[bool]) -> Interval:
    """Return the log-speedup of a cell: Student's t over its processes.

    Processes with evidence of a disturbance do not count while two others do. The standard error is
    at least ``LEAST_SPREAD`` / √k: a few processes may agree by chance. ``n`` counts the processes
    that count.

    Args:
        processes: the log-speedup of each. A single one is returned as it is.
        is_disturbed: which show evidence, which is never taken from their log-speedups.

    Returns:
        The estimate with its interval at the confidence that is ``REPORTED``.
    """
    if len(processes) == 1:
        return processes[0]
    counted = without_evidence(is_disturbed)
    centers = []
    for process, counts in zip(processes, counted, strict=True):
        if counts:
            centers.append(process.center)
    return student(centers, REPORTED, LEAST_SPREAD)


def without_evidence(is_disturbed: Sequence[bool]) -> list[bool]:
    """Return which processes count.

    They are those without evidence of a disturbance if there are two or more, else all.
    """
    clean = [not each for each in is_disturbed]
    if sum(clean) < 2:  # one alone does not show what is right
        return [True] * len(clean)
    return clean


def disturbed(named: Sequence[str], measures: Mapping[str, Values]) -> NDArray[np.bool_]:
    """Return which processes of a cell show evidence of a disturbance.

    It is one that the device named, or a load or a rate of switches that most of the others do not
    have: far above the processes' median, and at least twice as large.

    Args:
        named: what was seen while each process was timed (``Speed.disturbance``), or an empty text.
        measures: the columns of ``EVIDENCE``, a value for each process, NaN where it is unknown.
    """
    is_named = [bool(each) for each in named]
    evidence = np.array(is_named, dtype=bool)
    for name, least in EVIDENCE.items():
        measured = np.asarray(measures[name], dtype=np.float64)
        is_known = np.isfinite(measured)
        known = measured[is_known]
        if known.size > 2:  # of two, neither shows what is usual
            median = float(np.median(known))
            # The median absolute deviation, scaled to the standard deviation of a normal
            # distribution.
            distances = np.abs(known - median)
            deviation = float(np.median(distances))
            scatter = deviation / special.ndtri(0.75)
            # The fewer processes, the more of their scatter is chance.
            factor = FAR * (1 + 4 / known.size)
            far = factor * scatter
            limit = max(least, median, far)
            evidence |= measured - median > limit
    return evidence


def aa_noise(processes: Sequence[Interval], is_disturbed: Sequence[bool]) -> float | None:
    """Return the A/A noise as a share, from the log-speedup of fp32 over itself in each process.

    It is the larger distance from 1 of the ends of ``over_processes``: no larger difference can be
    excluded to come from nothing. None if there is no interval: of no process, or of a single one
    with a single round.
    """
    if not processes:
        return None
    interval = over_processes(processes, is_disturbed)
    half_width = interval.half_width
    if half_width is None:
        return None
    farthest = abs(interval.center) + half_width
    return math.expm1(farthest)


def welch(new: Values, old: Values) -> Interval:
    """Return mean(new) − mean(old) of independent values, with Welch's interval.

    Source: Welch, "The generalization of 'Student's' problem when several different population
    variances are involved", Biometrika 34 (1947), with the degrees of freedom of Satterthwaite,
    Biometrics Bulletin 2 (1946).
    """
    center = float(np.mean(new) - np.mean(old))
    count = min(len(new), len(old))
    squares = 0.0
    shares = 0.0
    if count >= 2:
        for values in (new, old):
            data = np.asarray(values, dtype=np.float64)
            square = _variance(data) / data.size
            squares += square
            shares += square**2 / (data.size - 1)
    if squares == 0:
        return around(center, 0.0, 1.0, count)
    error = math.sqrt(squares)
    freedom = squares**2 / shares
    return around(center, error, freedom, count)


def _variance(data: Array) -> float:
    """Return the variance of a sample; exactly 0 where all values are the same, or there is one."""
    if np.ptp(data) == 0:  # whose variance may be rounded to more than 0
        return 0.0
    return float(data.var(ddof=1))


def discoveries(ps: Mapping[Key, float], rate: float = 1 - CONFIDENCE) -> set[Key]:
    """Return the findings that hold if at most a share ``rate`` of them may be chance.

    Where there is nothing to find, all of them together are said to hold nothing in a share 1 −
    ``rate`` of cases.

    Args:
        ps: each finding's p; a finding that could not be tested does not belong here.
        rate: the false discovery rate.

    Source: Benjamini and Hochberg, "Controlling the false discovery rate", J. R. Statist. Soc. B 57
    (1995).
    """
    largest = -1.0  # of the p that hold
    for rank, p in enumerate(sorted(ps.values()), 1):
        allowed = rate * rank / len(ps)
        if p <= allowed:
            largest = p
    return {key for key, p in ps.items() if p <= largest}


def verdict(
    change: Interval,
    threshold: float,
    margin: float = math.log1p(MARGIN),
    words: Sequence[str] = FASTER,
) -> str:
    """Return the word for better, worse, the same or undecided.

    FASTER only if all of the interval clears the noise.

    Args:
        change: the log-speedup, or another change on the additive scale on which more is better.
        threshold: what the whole interval must exceed, such as the logarithm of 1 + the A/A noise.
        margin: within it lies the whole interval of what is the same.
        words: for better, worse, the same and undecided.
    """
    better, worse, same, undecided = words
    low = change.low
    high = change.high
    if low is None or high is None:
        return undecided
    if low > threshold:
        return better
    if high < -threshold:
        return worse
    if max(-low, high) <= margin:
        return same
    return undecided
