"""Blocks to log-ratios, and the bootstrap's second opinion on every speedup."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bench import stats
from bench.report.speed import KEY
from bench.spec import BASELINE


def log_ratios(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return ln(baseline time / arm time) of each quad that counts.

    Args:
        blocks: rows of blocks.csv of speed trials, with the columns of their cells.

    Returns:
        A row for each quad and arm: the columns of ``KEY``, ``trial``, ``quad`` and ``log_ratio``.
    """
    counted = blocks[blocks["invalid"] == ""]
    log: pd.Series = np.log(counted["time_ms"] / counted["steps"])  # type: ignore[assignment]
    quad = [name for name in KEY if name != "precision"] + ["trial", "quad"]
    mean = log.groupby([counted[name] for name in [*quad, "precision"]], sort=False).mean().rename("log").reset_index()
    baseline = mean[mean["precision"] == BASELINE].drop(columns="precision")
    arms = mean[mean["precision"] != BASELINE].merge(baseline, on=quad, suffixes=("", "_fp32"))
    result: pd.DataFrame = arms.assign(log_ratio=arms["log_fp32"] - arms["log"])
    return result


def bootstraps(blocks: pd.DataFrame) -> pd.Series:
    """Return the hierarchical bootstrap's interval of each arm's speedup, indexed by ``KEY``."""
    logs = log_ratios(blocks)
    found = {
        key: stats.bootstrap_interval([quads.to_numpy() for _, quads in arm.groupby("trial", sort=False)["log_ratio"]])
        for key, arm in logs.groupby(KEY, sort=False)
    }
    index = pd.MultiIndex.from_tuples(list(found), names=KEY)
    return pd.Series([interval.exp() for interval in found.values()], index=index, dtype=object)
