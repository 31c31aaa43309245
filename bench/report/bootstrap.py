"""The hierarchical bootstrap: a second opinion on intervals over processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.stats import CONFIDENCE, TRIM, Interval

Values = NDArray[np.float64]


def bootstrap_intervals(arms: Sequence[Sequence[Values]], resamples: int = 2000, seed: int = 0) -> list[Interval]:
    """Return the hierarchical bootstrap's interval of each arm's log-speedup: processes drawn anew, and quads in each.

    A second opinion on ``stats.process_interval``, free of its assumption that the processes' centres are normal.

    Args:
        arms: for each arm each process's log-ratios, quad by quad. All arms have the same numbers of quads, and are
            drawn the same.
        resamples: how often to draw.
        seed: seed of the draws.

    Source: Davison and Hinkley, "Bootstrap Methods and their Application" (1997), section 3.8, strategy of
    resampling at both levels; percentile interval.
    """
    chance = np.random.default_rng(seed)
    count = len(arms[0])
    centers = np.empty((len(arms), resamples, count))
    for process in range(count):
        values = np.stack([samples[process] for samples in arms])
        centers[:, :, process] = _trimmed_means(values, _draw(values.shape[1], resamples, chance))
    drawn = chance.integers(count, size=(resamples, count))
    return [_interval(found, drawn, samples) for found, samples in zip(centers, arms, strict=True)]


def _draw(size: int, resamples: int, chance: np.random.Generator) -> NDArray[np.float32]:
    """Return how often each of ``size`` values is drawn in each resample, of shape (size, resamples)."""
    picked = chance.integers(0, size, size=(resamples, size))
    picked += np.arange(resamples)[:, None] * size
    times = np.bincount(picked.ravel(), minlength=size * resamples).reshape(resamples, size)
    return np.ascontiguousarray(times.T, dtype=np.float32)  # whole numbers, exact up to 2^24, and BLAS knows the type


def _trimmed_means(values: Values, times: NDArray[np.float32]) -> Values:
    """Return the trimmed mean of each resample, from how often it holds each value: nothing is sorted but the values.

    A resample in order is a staircase, of which the part between the trimmed ends is summed by its steps' heights.

    Args:
        values: of shape (arms, size).
        times: of shape (size, resamples).

    Returns:
        Means of shape (arms, resamples).
    """
    order = np.argsort(values, axis=1, kind="stable")
    size = values.shape[1]
    trimmed = int(TRIM * size)
    kept = size - 2 * trimmed
    ordered = np.take_along_axis(values, order, axis=1)
    upto = times[order[:, :-1].T]  # of shape (size - 1, arms, resamples)
    for row in range(1, len(upto)):  # faster than cumsum down the columns
        upto[row] += upto[row - 1]
    upto -= trimmed
    np.clip(upto, 0, kept, out=upto)
    heights = np.diff(ordered, axis=1).astype(np.float32)
    sums = [heights[arm] @ upto[:, arm] for arm in range(len(values))]
    means: Values = ordered[:, -1:] - np.stack(sums) / kept
    return means


def _interval(centers: Values, drawn: NDArray[np.int64], samples: Sequence[Values]) -> Interval:
    means = np.take_along_axis(centers, drawn, axis=1).mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    center = float(np.mean([_trimmed_mean(values) for values in samples]))
    return Interval(center=center, low=float(low), high=float(high), n=len(samples))


def _trimmed_mean(values: Values) -> float:
    trimmed = int(TRIM * values.size)
    return float(np.sort(values)[trimmed : values.size - trimmed].mean())
