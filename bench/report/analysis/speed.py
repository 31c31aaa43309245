"""The speed of an arm: replicates, each a fresh process, to one speedup with its interval."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.contrast import ARM, IN_CELL, Contrast, intervals, log_gain
from bench.report.analysis.judge import judge
from bench.report.format import known, processes
from bench.report.reading.load import CELL
from bench.results.records import MEASURED

RATES = ["step_ms", "samples_per_s", "tokens_per_s"]
SPEEDUP = ["speedup", "speedup_low", "speedup_high"]
DIAGNOSTICS = ["flops_per_step", "tflops", "peak_tflops", "pct_of_peak", "host_ratio", "step_p50_ms", "step_p95_ms"]
DIAGNOSTICS += ["switch_warmup_steps", "block_steps", "switch_transient_pct", "long_block_pct", "foreign_load_pct"]
COUNTS = ["rounds", "discarded_rounds", "outlier_rounds"]


def status_of(rows: pd.DataFrame, usable: pd.Series) -> pd.Series:
    """Return one word for each arm of ``numbered`` rows, by its number.

    Where anything was measured it is ``ok`` or ``unconverged``; otherwise the last trial's own word.
    """
    word = rows["status"].where(usable | ~rows["status"].isin(MEASURED), "failed")
    rank = usable.astype(int) + (usable & (word == "unconverged")).astype(int)
    ranked = pd.DataFrame({ARM: rows[ARM], "word": word, "rank": rank})
    return ranked.sort_values("rank", kind="stable").groupby(ARM, sort=False)["word"].last()


def speeds(trials: pd.DataFrame, contrasts: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm whose speed was tried, by its number.

    ``RATES`` are medians over processes. ``speedup`` has the interval of its contrast with fp32, ``verdict`` its word,
    and ``measured_in`` says over which processes. Nothing measured leaves the figures empty. ``noise`` is that of
    ``noises``, empty where it was not measured.

    Args:
        trials: rows from ``numbered``.
        contrasts: each precision's step time against fp32's.
    """
    rows = trials[trials["phase"] == "speed"]
    usable = rows["status"].isin(MEASURED) & rows["step_ms"].gt(0)
    groups = rows[usable].groupby(ARM, sort=False)
    table = status_of(rows, usable).to_frame("speed_status").join(groups[RATES].median().astype(float))
    cells = rows.drop_duplicates(ARM).set_index(ARM)[IN_CELL]
    table["noise"] = cells.reindex(table.index).map(_noises(trials, IN_CELL)).astype(float)
    table = table.join(intervals(contrasts, ["speedup", "low", "high"], lambda contrast: contrast.gain))
    noise = table["noise"].reindex(contrasts.index)
    of_arms = [
        replace(contrast, noise=share if known(share) else None)
        for contrast, share in zip(contrasts["contrast"], noise, strict=True)
    ]
    words = {"verdict": map(judge, of_arms), "measured_in": map(measured_in, of_arms)}
    table = table.join(
        pd.DataFrame({name: list(column) for name, column in words.items()}, contrasts.index, dtype=object)
    )
    asked = groups["target_ci"].max().reindex(table.index)
    wide = ((table["high"] / table["low"]) ** 0.5 - 1).gt(asked)
    table["speed_status"] = table["speed_status"].mask(table["speed_status"].isin(MEASURED) & wide, "unconverged")
    return table


def measured_in(contrast: Contrast) -> str:
    """Say over which processes a contrast is, and how many of them lie far off the others."""
    count = contrast.replicates
    if contrast.pairing == "apart":
        return f"{processes(count)} apart"
    return f"{contrast.change.n} of {count} processes" if count > 1 and contrast.change.n < count else processes(count)


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
    logs = {key: np.log(group.to_numpy(dtype=float)).tolist() for key, group in groups}
    return {
        key: math.expm1(stats.process_interval([log_gain(*ends) for ends in own]).reach) for key, own in logs.items()
    }


def details(trials: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm of ``numbered`` trials was timed, by its number.

    Figures are medians over processes, counts are summed over them, and what ran is the first one's.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin((*MEASURED, "invalid"))]
    groups = rows.groupby(ARM, sort=False)
    table = groups[DIAGNOSTICS].median().join(groups[COUNTS].sum())
    table["unsteady"] = rows["steady"].eq("no").groupby(rows[ARM], sort=False).sum()
    return table.join(groups[["compute_dtypes", "attention"]].first())
