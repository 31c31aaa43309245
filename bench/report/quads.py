"""Blocks to log-ratios, and the bootstrap's second opinion on every speedup."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.report.bootstrap import bootstrap_intervals
from bench.report.speed import KEY
from bench.spec import BASELINE


def log_ratios(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return ln(baseline time / arm time) of each quad that counts.

    Args:
        blocks: rows of blocks.csv of speed trials, with the columns of their cells.

    Returns:
        A row for each quad and arm: the columns of ``KEY``, ``trial``, ``quad`` and ``log_ratio``.
    """
    counted = blocks[blocks["invalid"] == ""].reset_index(drop=True)
    log: pd.Series = np.log(counted["time_ms"] / counted["steps"])  # type: ignore[assignment]
    quad = _numbers(counted, ["run", "trial", "quad"])
    groups = log.groupby([quad, _numbers(counted, ["precision"])], sort=False)
    first = groups.head(1).index  # of each arm's blocks in a quad
    mean = counted.loc[first, [*KEY, "trial", "quad"]].assign(log=groups.mean().to_numpy(), number=quad[first])
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
