"""The speed of an arm: replicates, each a fresh process, to one speedup with its interval."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench import stats
from bench.report.analysis.noise import ASSUMED, floors
from bench.report.format import processes
from bench.report.reading.load import CELL
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

KEY = [*CELL, "precision"]
COLUMNS = ["speed_status", "step_ms", "samples_per_s", "speedup", "low", "high", "verdict", "measured_in"]

DIAGNOSTICS = ["flops_per_step", "tflops", "peak_tflops", "pct_of_peak", "host_ratio", "step_p50_ms", "step_p95_ms"]
DIAGNOSTICS += ["switch_warmup_steps", "block_steps", "switch_transient_pct", "long_block_pct", "foreign_load_pct"]
COUNTS = ["rounds", "discarded_rounds", "outlier_rounds"]


@dataclass(frozen=True, slots=True)
class _Processes:
    """One arm's figures in each process that measured it; the first four are logarithms."""

    step: NDArray[np.float64]
    center: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    quads: NDArray[np.float64]
    alone: NDArray[np.bool_]


def status_of(rows: pd.DataFrame, usable: pd.Series) -> pd.Series:
    """Return one word for each arm of each cell, indexed by ``KEY``.

    Where anything was measured it is ``ok`` or ``unconverged``; otherwise the last trial's own word.
    """
    word = rows["status"].where(usable | ~rows["status"].isin(MEASURED), "failed")
    rank = usable.astype(int) + (usable & (word == "unconverged")).astype(int)
    ranked = rows[KEY].assign(word=word, rank=rank)
    return ranked.sort_values("rank", kind="stable").groupby(KEY, sort=False)["word"].last()


def speeds(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of each cell whose speed was tried, indexed by ``KEY``.

    ``step_ms`` and ``samples_per_s`` are medians over processes, ``paces`` the latter's values in each.
    ``speedup`` is Student's interval over the processes' log-speedups, or the interval within the only process; of
    arms measured apart it is Welch's interval on the logarithms of their steps. Nothing measured leaves the figures
    empty. ``floor`` is that of ``floors``, empty where it was not measured.
    """
    rows = trials[trials["phase"] == "speed"]
    usable = rows["status"].isin(MEASURED) & rows["step_ms"].gt(0)
    measured = rows[usable]
    table = status_of(rows, usable).to_frame("speed_status")
    medians = measured.groupby(KEY, sort=False)[["step_ms", "samples_per_s"]].median()
    table = table.join(medians)
    table["paces"] = measured.groupby(KEY, sort=False)["samples_per_s"].agg(tuple)
    arms = _arms(measured)
    known_floors = floors(trials)
    table["floor"] = known_floors.reindex([key[:-1] for key in table.index]).to_numpy()
    floor = table["floor"].fillna(ASSUMED).to_dict()
    estimates = {key: _estimate(key, arms, floor[key]) for key in table.index}
    found = pd.DataFrame.from_dict(estimates, orient="index", columns=COLUMNS[3:]).reindex(table.index)
    return table.join(found).astype(dict.fromkeys(COLUMNS[1:6], float))


def _arms(measured: pd.DataFrame) -> dict[Hashable, _Processes]:
    """Return the processes of each arm of each cell."""
    step, center, low, high = (
        np.log(measured[name].to_numpy()) for name in ("step_ms", "speedup", "speedup_low", "speedup_high")
    )
    quads, alone = measured["rounds"].to_numpy(), measured["paired"].eq("no").to_numpy()
    groups = measured.reset_index(drop=True).groupby(KEY, sort=False).indices
    return {
        key: _Processes(step[at], center[at], low[at], high[at], quads[at], alone[at]) for key, at in groups.items()
    }


def _estimate(key: Hashable, arms: dict[Hashable, _Processes], floor: float) -> list[object]:
    """Return speedup, low, high, verdict and where they come from; all None where there is no speedup."""
    assert isinstance(key, tuple)
    arm = arms.get(key)
    nothing: list[object] = [None] * 5
    if arm is None or key[-1] == BASELINE:
        return nothing
    paired = np.isfinite(arm.center)
    if paired.any():
        interval, measured_in = _together(arm, paired), processes(int(paired.sum()))
    else:
        baseline = arms.get((*key[:-1], BASELINE))
        if baseline is None:
            return nothing
        steps = baseline.step[baseline.alone] if baseline.alone.any() else baseline.step
        interval = stats.welch_interval(steps, arm.step)
        measured_in = f"{processes(min(steps.size, arm.step.size))} apart"
    ratio = interval.exp()
    return [ratio.center, ratio.low, ratio.high, stats.verdict(ratio, floor), measured_in]


def _together(arm: _Processes, paired: NDArray[np.bool_]) -> stats.Interval:
    first = int(np.flatnonzero(paired)[0])
    low, high, quads = float(arm.low[first]), float(arm.high[first]), float(arm.quads[first])
    known = math.isfinite(low) and math.isfinite(high)
    within = stats.Interval(
        center=float(arm.center[first]),
        low=low if known else None,
        high=high if known else None,
        n=int(quads) if math.isfinite(quads) else 0,
    )
    return stats.process_interval(arm.center[paired], within)


def details(trials: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm of each cell was timed, indexed by ``KEY``.

    Figures are medians over processes, counts are summed over them, and ``compute_dtypes`` is the first one's.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin((*MEASURED, "invalid"))]
    groups = rows.groupby(KEY, sort=False)
    table = groups[DIAGNOSTICS].median().join(groups[COUNTS].sum())
    table["unsteady"] = rows["steady"].eq("no").groupby([rows[name] for name in KEY], sort=False).sum()
    return table.join(groups["compute_dtypes"].first())
