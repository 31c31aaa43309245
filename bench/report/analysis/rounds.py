"""Blocks to log-ratios, and the bootstrap's second opinion on every speedup."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.report.analysis.speed import KEY
from bench.spec.precisions import BASELINE
from bench.stats import CONFIDENCE, TRIM, Interval

Values = NDArray[np.float64]
ARMS_AT_ONCE = 4
"""More no longer fit into a core's cache."""


def bootstrap_intervals(arms: Sequence[Sequence[Values]], resamples: int = 1000, seed: int = 0) -> list[Interval]:
    """Return the hierarchical bootstrap's interval of each arm's log-speedup.

    Processes are drawn anew, and rounds in each: a second opinion on ``stats.process_interval``, which assumes that
    the processes' centres are normal. Arms share their draws where their processes have as many rounds, since drawing
    is most of the work; no interval uses two arms.

    Args:
        arms: for each arm each process's log-ratios, round by round.
        resamples: how often to draw.
        seed: seed of the draws.

    Source: Davison and Hinkley, "Bootstrap Methods and their Application" (1997), section 3.8, strategy of
    resampling at both levels; percentile interval.
    """
    centers = [np.empty((len(samples), resamples), np.float32) for samples in arms]
    alike: dict[tuple[int, int], list[int]] = {}
    for arm, samples in enumerate(arms):
        for process, values in enumerate(samples):
            alike.setdefault((process, values.size), []).append(arm)
    for (process, size), members in alike.items():
        times = _draw(size, resamples, np.random.default_rng((seed, process, size)))
        for start in range(0, len(members), ARMS_AT_ONCE):
            some = members[start : start + ARMS_AT_ONCE]
            means = _trimmed_means(np.stack([arms[arm][process] for arm in some]), times)
            for arm, found in zip(some, means, strict=True):
                centers[arm][process] = found
    counts = dict.fromkeys(map(len, arms))
    drawn = {n: np.random.default_rng((seed, n)).integers(n, size=(n, resamples)) for n in counts}
    return [_interval(found, drawn[len(found)], samples) for found, samples in zip(centers, arms, strict=True)]


def _draw(size: int, resamples: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return how often each of ``size`` values is drawn in each resample, of shape (size, resamples)."""
    picked = rng.integers(0, size, size=(resamples, size))
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


def _interval(centers: NDArray[np.float32], drawn: NDArray[np.int64], samples: Sequence[Values]) -> Interval:
    means = np.take_along_axis(centers, drawn, axis=0).mean(axis=0, dtype=np.float64)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    center = float(np.mean([_trimmed_mean(values) for values in samples]))
    return Interval(center=center, low=float(low), high=float(high), n=len(samples))


def _trimmed_mean(values: Values) -> float:
    trimmed = int(TRIM * values.size)
    return float(np.sort(values)[trimmed : values.size - trimmed].mean())


def log_ratios(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return ln(baseline time / arm time) of each ABBA round that counts.

    Args:
        blocks: rows of blocks.csv of speed trials, with the columns of their cells.

    Returns:
        A row for each round and arm: the columns of ``KEY``, ``trial``, ``round`` and ``log_ratio``.
    """
    counted = blocks[blocks["discarded"] == ""].reset_index(drop=True)
    log: pd.Series = np.log(counted["time_ms"] / counted["steps"])  # type: ignore[assignment]
    round_ = _numbers(counted, ["run", "trial", "round"])
    groups = log.groupby([round_, _numbers(counted, ["precision"])], sort=False)
    first = groups.head(1).index  # of each arm's blocks in a round
    mean = counted.loc[first, [*KEY, "trial", "round"]].assign(log=groups.mean().to_numpy(), number=round_[first])
    baseline = mean.loc[mean["precision"] == BASELINE, ["number", "log"]]
    arms = mean[mean["precision"] != BASELINE].merge(baseline, on="number", suffixes=("", "_fp32"))
    result: pd.DataFrame = arms.assign(log_ratio=arms["log_fp32"] - arms["log"])
    return result


def _numbers(rows: pd.DataFrame, names: list[str]) -> NDArray[np.int64]:
    """Number the different values of some columns: one number is compared faster than several words."""
    numbers = rows.groupby(names, sort=False, observed=True).ngroup()
    return np.asarray(numbers, dtype=np.int64)


def bootstraps(blocks: pd.DataFrame) -> pd.Series:
    """Return the hierarchical bootstrap's interval of each arm's speedup, indexed by ``KEY``."""
    logs = log_ratios(blocks)
    number = _numbers(logs, ["run", "trial", "precision"])
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    keys = logs[KEY].iloc[order[first]].itertuples(index=False, name=None)
    processes: dict[tuple[object, ...], list[NDArray[np.float64]]] = {}
    for key, samples in zip(keys, np.split(logs["log_ratio"].to_numpy()[order], first)[1:], strict=True):
        processes.setdefault(key, []).append(samples)
    index = pd.MultiIndex.from_tuples(list(processes), names=KEY)
    intervals = [interval.exp() for interval in bootstrap_intervals(list(processes.values()))]
    return pd.Series(intervals, index=index, dtype=object)
