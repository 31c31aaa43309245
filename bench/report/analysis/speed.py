"""The speed of an arm: replicates, each a fresh process, to one speedup with its interval."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench import stats
from bench.report.format import processes
from bench.report.reading.load import CELL, KEY
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE
from bench.stats import CONFIDENCE, TRIM, Interval

RATES = ["step_ms", "samples_per_s", "tokens_per_s"]
ESTIMATE = ["speedup", "low", "high", "verdict", "measured_in"]
NOTHING: list[object] = [None] * len(ESTIMATE)
SPEEDUP = ["speedup", "speedup_low", "speedup_high"]
DIAGNOSTICS = ["flops_per_step", "tflops", "peak_tflops", "pct_of_peak", "host_ratio", "step_p50_ms", "step_p95_ms"]
DIAGNOSTICS += ["switch_warmup_steps", "block_steps", "switch_transient_pct", "long_block_pct", "foreign_load_pct"]
COUNTS = ["rounds", "discarded_rounds", "outlier_rounds"]
ARM, IN_CELL = "arm_number", "cell_number"
"""Columns that ``numbered`` adds: one number is compared faster than the ten columns that it stands for."""
ARMS_AT_ONCE = 4
"""Arms that are resampled together: more no longer fit into a core's cache."""
Values = NDArray[np.float64]


def numbered(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials with a number for their arm and one for their cell, in the order in which they come."""
    return trials.assign(**{ARM: numbers(trials, KEY), IN_CELL: numbers(trials, CELL)})


def status_of(rows: pd.DataFrame, usable: pd.Series) -> pd.Series:
    """Return one word for each arm of ``numbered`` rows, by its number.

    Where anything was measured it is ``ok`` or ``unconverged``; otherwise the last trial's own word.
    """
    word = rows["status"].where(usable | ~rows["status"].isin(MEASURED), "failed")
    rank = usable.astype(int) + (usable & (word == "unconverged")).astype(int)
    ranked = pd.DataFrame({ARM: rows[ARM], "word": word, "rank": rank})
    return ranked.sort_values("rank", kind="stable").groupby(ARM, sort=False)["word"].last()


def speeds(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm whose speed was tried, by its number.

    ``RATES`` are medians over processes, ``paces`` the values of ``samples_per_s`` in each.
    ``speedup`` has the interval over the processes' log-speedups, or that within the only process; of arms measured
    apart it is Welch's interval on the logarithms of their steps. Nothing measured leaves the figures
    empty. ``log_speedups`` holds each process's, by its number. ``noise`` is that of ``noises``, empty where it was
    not measured.

    Args:
        trials: rows from ``numbered``.
    """
    rows = trials[trials["phase"] == "speed"]
    usable = rows["status"].isin(MEASURED) & rows["step_ms"].gt(0)
    measured = rows[usable]
    groups = measured.groupby(ARM, sort=False)
    table = status_of(rows, usable).to_frame("speed_status").join(groups[RATES].median())
    table["paces"] = groups["samples_per_s"].agg(tuple)
    cells = rows.drop_duplicates(ARM).set_index(ARM)[[IN_CELL, "precision"]].reindex(table.index)
    table["noise"] = cells[IN_CELL].map(_noises(trials, IN_CELL)).astype(float)
    arms = _arms(measured)
    baselines = dict(cells.loc[cells["precision"] == BASELINE, IN_CELL].items())
    fp32 = {cell: arms[arm] for arm, cell in baselines.items() if arm in arms}
    estimates = [
        _estimate(arms[arm], fp32.get(cell), noise) if arm in arms and arm not in baselines else NOTHING
        for arm, cell, noise in zip(
            table.index, cells[IN_CELL], table["noise"].fillna(stats.ASSUMED_NOISE), strict=True
        )
    ]
    table = table.join(pd.DataFrame(estimates, index=table.index, columns=ESTIMATE))
    asked = groups["target_ci"].max().reindex(table.index)
    half = (table["high"].astype(float) / table["low"].astype(float)) ** 0.5 - 1
    wide = half.gt(asked)
    table["speed_status"] = table["speed_status"].mask(table["speed_status"].isin(MEASURED) & wide, "unconverged")
    by_process = [arms[arm].by_process() if arm in arms else {} for arm in table.index]
    table["log_speedups"] = pd.Series(by_process, index=table.index, dtype=object)
    return table.astype(dict.fromkeys([*RATES, "speedup", "low", "high"], float))


@dataclass(frozen=True, slots=True)
class _Arm:
    """An arm of a cell: one value for each process that measured it."""

    replicate: Values
    step_ms: Values
    speedups: Values
    """Of shape (processes, 3): the speedup with the ends of its interval, NaN where there is none."""
    alone: NDArray[np.bool_]
    """Whether no other arm was in the process."""

    def by_process(self) -> dict[float, float]:
        """Return the log-speedup in each process, by the process's number."""
        paired = self.speedups[:, 0] > 0
        return dict(zip(self.replicate[paired].tolist(), np.log(self.speedups[paired, 0]).tolist(), strict=True))


def _arms(measured: pd.DataFrame) -> dict[Any, _Arm]:
    """Return the arms of rows that are a process each, by number; arrays, for large runs have thousands of arms."""
    replicate, step_ms = (measured[name].to_numpy(dtype=float) for name in ("replicate", "step_ms"))
    speedups, alone = measured[SPEEDUP].to_numpy(dtype=float), measured["paired"].eq("no").to_numpy()
    groups = measured.reset_index(drop=True).groupby(ARM, sort=False).indices
    return {key: _Arm(replicate[at], step_ms[at], speedups[at], alone[at]) for key, at in groups.items()}


def _estimate(arm: _Arm, baseline: _Arm | None, noise: float) -> list[object]:
    """Return the columns of ``ESTIMATE``; all None where there is no speedup.

    Args:
        arm: any but fp32.
        baseline: fp32 in its cell.
        noise: the A/A noise.
    """
    paired = arm.speedups[arm.speedups[:, 0] > 0]
    if len(paired):
        interval, count = _over_processes(paired), len(paired)
        left_out = count > 1 and interval.n < count  # disturbed, for they lie far off the others
        measured_in = f"{interval.n} of {count} processes" if left_out else processes(count)
    elif baseline is not None:
        steps = baseline.step_ms[baseline.alone] if baseline.alone.any() else baseline.step_ms
        interval = stats.welch_interval(np.log(steps), np.log(arm.step_ms))
        measured_in = f"{processes(min(len(steps), len(arm.step_ms)))} apart"
    else:
        return NOTHING
    ratio = interval.exp()
    return [ratio.center, ratio.low, ratio.high, stats.verdict(ratio, noise), measured_in]


def between(one: object, other: object) -> Interval | None:
    """Return how many times as fast an arm is as another, by the processes that timed both; None where none did.

    Args:
        one: its ``log_speedups``.
        other: those of the other.
    """
    if not isinstance(one, dict) or not isinstance(other, dict) or not (shared := one.keys() & other.keys()):
        return None
    return stats.student_interval([one[process] - other[process] for process in sorted(shared)]).exp()


def _over_processes(speedups: Values) -> Interval:
    """Return the log-speedup over processes, from the speedup of each with the ends of its interval."""
    return stats.process_interval([_interval_of(*values) for values in np.log(speedups).tolist()])


def _interval_of(center: float, low: float, high: float) -> Interval:
    known = math.isfinite(low) and math.isfinite(high)
    return Interval(center=center, low=low if known else None, high=high if known else None, n=1)


def noises(trials: pd.DataFrame) -> pd.Series:
    """Return the A/A noise of each cell in which fp32 was timed against itself, as a share, indexed by ``CELL``.

    It is the larger distance from 1 of the ends of the 95 % interval over fresh processes: no larger difference can be
    excluded to come from nothing.
    """
    found = _noises(trials, CELL)
    index = pd.MultiIndex.from_tuples(list(found), names=CELL)
    return pd.Series(list(found.values()), index=index, dtype=float, name="noise")


def _noises(trials: pd.DataFrame, by: str | list[str]) -> dict[Any, float]:
    rows = trials[(trials["phase"] == "floor") & trials["status"].isin(MEASURED) & trials["speedup"].gt(0)]
    groups = rows.groupby(by, sort=False)[SPEEDUP]
    return {key: math.expm1(_over_processes(group.to_numpy(dtype=float)).reach) for key, group in groups}


def details(trials: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm of ``numbered`` trials was timed, by its number.

    Figures are medians over processes, counts are summed over them, and what ran is the first one's.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin((*MEASURED, "invalid"))]
    groups = rows.groupby(ARM, sort=False)
    table = groups[DIAGNOSTICS].median().join(groups[COUNTS].sum())
    table["unsteady"] = rows["steady"].eq("no").groupby(rows[ARM], sort=False).sum()
    return table.join(groups[["compute_dtypes", "attention"]].first())


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
    center = float(np.mean([stats.robust_interval(values).center for values in samples]))
    return Interval(center=center, low=float(low), high=float(high), n=len(samples))


def log_ratios(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return ln(baseline time / arm time) of each ABBA round that counts.

    Args:
        blocks: rows of blocks.csv of speed trials, with the columns of their cells.

    Returns:
        A row for each round and arm: the columns of ``KEY``, ``trial``, ``round`` and ``log_ratio``.
    """
    counted = blocks[blocks["discarded"] == ""].reset_index(drop=True)
    log: pd.Series = np.log(counted["time_ms"] / counted["steps"])  # type: ignore[assignment]
    round_ = numbers(counted, ["run", "trial", "round"])
    groups = log.groupby([round_, numbers(counted, ["precision"])], sort=False)
    first = groups.head(1).index  # of each arm's blocks in a round
    mean = counted.loc[first, [*KEY, "trial", "round"]].assign(log=groups.mean().to_numpy(), number=round_[first])
    baseline = mean.loc[mean["precision"] == BASELINE, ["number", "log"]]
    arms = mean[mean["precision"] != BASELINE].merge(baseline, on="number", suffixes=("", "_fp32"))
    result: pd.DataFrame = arms.assign(log_ratio=arms["log_fp32"] - arms["log"])
    return result


def numbers(rows: pd.DataFrame, names: list[str]) -> NDArray[np.int64]:
    """Number the different values of some columns: one number is compared faster than several words."""
    numbers = rows.groupby(names, sort=False, observed=True).ngroup()
    return np.asarray(numbers, dtype=np.int64)


def bootstraps(blocks: pd.DataFrame) -> dict[Hashable, Interval]:
    """Return the hierarchical bootstrap's interval of each arm's speedup, by ``KEY``."""
    logs = log_ratios(blocks)
    number = numbers(logs, ["run", "trial", "precision"])
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    keys = logs[KEY].iloc[order[first]].itertuples(index=False, name=None)
    arms: dict[Hashable, list[Values]] = {}
    for key, process in zip(keys, np.split(logs["log_ratio"].to_numpy()[order], first)[1:], strict=True):
        arms.setdefault(key, []).append(process)
    return {key: one.exp() for key, one in zip(arms, bootstrap_intervals(list(arms.values())), strict=True)}
