"""The floor: the difference that this machine showed between fp32 and itself."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from bench import stats
from bench.report.reading.load import CELL
from bench.results.records import MEASURED

ASSUMED = 0.01
"""The floor, as a share, where fp32 was not timed against itself."""


def floors(trials: pd.DataFrame) -> pd.Series:
    """Return the floor of each cell in which fp32 was timed against itself, as a share, indexed by ``CELL``.

    It is the reach of the 95 % interval over fresh processes: the larger distance of its ends from 1. No larger
    difference can be excluded to come from nothing.
    """
    rows = trials[(trials["phase"] == "floor") & trials["status"].isin(MEASURED) & trials["speedup"].gt(0)]
    found = {key: math.expm1(_interval(group).reach) for key, group in rows.groupby(CELL, sort=False)}
    index = pd.MultiIndex.from_tuples(list(found), names=CELL)
    return pd.Series(list(found.values()), index=index, dtype=float, name="floor")


def _interval(rows: pd.DataFrame) -> stats.Interval:
    first = rows.iloc[0]
    low, high = (None if math.isnan(first[name]) else math.log(first[name]) for name in ("speedup_low", "speedup_high"))
    within = stats.Interval(center=math.log(first["speedup"]), low=low, high=high, n=1)
    return stats.process_interval(np.log(rows["speedup"].to_numpy()), within)
