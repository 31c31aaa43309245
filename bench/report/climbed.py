"""What ladders have come to: each rung against fp32 and against the rung that it stands on, its memory and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.records import MEASURED
from bench.report.format import UNKNOWN, known
from bench.report.labels import subjects
from bench.report.load import CELL, Runs
from bench.report.reasons import LAUNCH_BOUND
from bench.rungs import FIXED, Rung, parse_rung
from bench.spec import BASELINE
from bench.stats import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """One ladder: a suite on a device at a batch size."""

    title: str
    slug: str
    rows: pd.DataFrame
    """A row for each rung, in order: added, stands_on, status, detail, step_ms, epoch_s, over_first, over_last
    (intervals of ratios, or None), measured_in, memory_bytes, wait_pct, loader_ms, limit (a word of ladder.LIMITS),
    accuracy (an interval in per cent, or None) and trained (a status word, empty where it was not)."""

    @property
    def name(self) -> str:
        """What a section or a table of it is called."""
        return f"Ladder of {self.title}"


def climbed(runs: Runs) -> list[Climbed]:
    """Return the ladders that the runs have climbed."""
    if runs.climbs.empty:
        return []
    names = runs.climbs.merge(subjects(runs.climbs), how="left")
    ladders = []
    for key, trials in names.groupby(CELL, sort=False):
        assert isinstance(key, tuple)
        blocks, trained = runs.climb_blocks, runs.trials[runs.trials["phase"] == "train"]
        for name, value in zip(CELL, key, strict=True):
            blocks = blocks[blocks[name] == value]
            trained = trained if name == "techniques" else trained[trained[name] == value]
        first = trials.iloc[0]
        batch = f"{first['batch_size']:.0f}"
        ladders.append(
            Climbed(
                title=f"{first['workload']} on {first['where']} at batch size {batch}",
                slug=f"{first['slug']}-b{batch}-ladder",
                rows=_rungs(trials, blocks, trained),
            )
        )
    return ladders


def _rungs(trials: pd.DataFrame, blocks: pd.DataFrame, trained: pd.DataFrame) -> pd.DataFrame:
    timed, memory = trials[trials["phase"] == "ladder"], trials[trials["phase"] == "ladder_memory"]
    usable = timed[timed["status"].isin(MEASURED) & timed["step_ms"].gt(0)]
    held = memory[memory["status"].isin(MEASURED)]
    peaks = held.assign(peak=held["peak_allocated_bytes"].fillna(held["peak_resident_bytes"]))
    peak = peaks.groupby("precision")["peak"].max()
    logs = _logs(blocks)
    body: list[dict[str, Any]] = []
    rungs = [parse_rung(str(name)) for name in trials["precision"].unique()]
    for rung in sorted(rungs, key=lambda rung: rung.rank):
        mine = usable[usable["precision"] == rung.name]
        over_first, _ = _over(logs, usable, BASELINE, rung.name) if rung.below else (None, UNKNOWN)
        over_last, measured_in = _over(logs, usable, rung.below.name, rung.name) if rung.below else (None, UNKNOWN)
        status, detail = _status(timed, memory, mine, rung.name)
        word, accuracy = _accuracy(trained, rung)
        body.append(
            {
                "added": rung.added,
                "stands_on": rung.below.added if rung.below else UNKNOWN,
                "status": status,
                "detail": detail,
                "step_ms": mine["step_ms"].median(),
                "epoch_s": (mine["step_ms"] * mine["steps_per_epoch"]).median() / 1000,
                "over_first": over_first,
                "over_last": over_last,
                "measured_in": measured_in,
                "memory_bytes": peak.get(rung.name, float("nan")),
                "wait_pct": mine["wait_pct"].median(),
                "loader_ms": mine["loader_ms"].median(),
                "limit": _limit(mine),
                "accuracy": accuracy,
                "trained": word,
            }
        )
    return pd.DataFrame(body)


def _status(timed: pd.DataFrame, memory: pd.DataFrame, mine: pd.DataFrame, name: str) -> tuple[str, str]:
    """Return a rung's word and its detail: what was measured counts, else what the timing said, else its memory."""
    if len(mine):
        best = mine[mine["status"] == "ok"] if (mine["status"] == "ok").any() else mine
        return str(best.iloc[-1]["status"]), str(best.iloc[-1]["detail"])
    for rows in (timed, memory[~memory["status"].isin(MEASURED)]):
        if len(said := rows[rows["precision"] == name]):
            return str(said.iloc[-1]["status"]), str(said.iloc[-1]["detail"])
    return UNKNOWN, ""


def _logs(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return ln(time of a step) of each rung in each quad that counts: a row a quad, a column a rung."""
    counted = blocks[blocks["invalid"] == ""]
    log = np.log(counted["time_ms"] / counted["steps"])
    by_quad = counted[["trial", "quad", "precision"]].astype({"trial": str, "precision": str}).assign(log=log)
    return by_quad.pivot_table(index=["trial", "quad"], columns="precision", values="log", aggfunc="mean")


def _over(logs: pd.DataFrame, usable: pd.DataFrame, below: str, name: str) -> tuple[Interval | None, str]:
    """Return how many times as fast as another a rung is, and in what that was measured.

    Quad by quad and process by process where both were timed together; else Welch's interval on the logarithms of
    their steps, over the processes that each was alone in.
    """
    processes = []
    if {below, name} <= set(logs.columns) & set(usable["precision"]):
        found = (logs[below] - logs[name]).dropna()
        processes = [stats.quads_interval(quads.to_numpy()) for _, quads in found.groupby(level="trial", sort=False)]
    if processes:
        together = stats.process_interval([one.center for one in processes], processes[0])
        return together.exp(), _processes(len(processes))
    steps = [np.log(usable.loc[usable["precision"] == rung, "step_ms"].to_numpy()) for rung in (below, name)]
    count = min(step.size for step in steps)
    return (stats.welch_interval(*steps).exp(), f"{_processes(count)} apart") if count else (None, UNKNOWN)


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"


def _limit(mine: pd.DataFrame) -> str:
    """Return what a rung's step takes its time for: the loader, launching kernels, or arithmetic."""
    if mine.empty:
        return UNKNOWN
    if (mine["loader_limited"] == "yes").mean() >= 0.5:
        return "loader"
    ratio = mine["host_ratio"].median()
    if known(ratio):
        return "launch" if ratio >= LAUNCH_BOUND else "arithmetic"
    return "arithmetic" if str(mine.iloc[0]["placement"]).startswith("cpu") else "launch or arithmetic"


def _accuracy(trained: pd.DataFrame, rung: Rung) -> tuple[str, Interval | None]:
    """Return how the run's training of what a rung computes ended, and its accuracy over seeds.

    What becomes of gradients between steps, and how batches get to the device, changes no arithmetic: a training
    with those techniques or without is the same.

    Args:
        trained: rows of the train phase at the ladder's batch size.
        rung: the rung.
    """
    wanted = set(rung.techniques) - set(FIXED)
    computes = trained["techniques"].map(lambda text: set(filter(None, str(text).split("+"))) - set(FIXED) == wanted)
    rows = trained[(trained["precision"] == rung.precision) & computes.astype(bool)]
    if rows.empty:
        return "", None
    scores = rows.loc[rows["status"].isin(MEASURED), "test_accuracy_pct"].dropna()
    if scores.empty:
        return str(rows.iloc[-1]["status"]), None
    return "ok", stats.student_interval(scores.to_numpy())
