"""What ladders have come to: each rung against fp32 and against the rung that it stands on, its memory and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.bottleneck import LAUNCH_BOUND
from bench.report.analysis.noise import ASSUMED, floors
from bench.report.analysis.summary import memory_change
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, Runs
from bench.report.tables.format import UNKNOWN, known, processes
from bench.results.records import MEASURED
from bench.spec.ablation import FIXED, AblationStep, parse_step
from bench.spec.precisions import BASELINE
from bench.stats import Interval

Gains = Mapping[tuple[str, str], tuple[Interval | None, str]]
"""How many times as fast as a lower rung a higher one is, and in what that was measured, by the names of both."""
NOTHING = (None, UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """One ladder: a suite on a device at a batch size."""

    title: str
    slug: str
    rows: pd.DataFrame
    """A row for each rung, in order: rung (its name), precision, added, stands_on, status, detail, step_ms, epoch_s,
    over_first, over_last (intervals of ratios, or None), first_in, measured_in (what those two were measured in),
    memory_bytes, memory_change (a share of fp32's, NaN where it is not told apart), wait_pct, loader_ms, limit (a
    word of ladder.LIMITS), accuracy (an interval in per cent, or None) and trained (a status word, empty where it was
    not)."""
    gains: Gains
    measured_floor: float | None
    """How far fp32 was from itself at this batch size, as a share; None where that was not measured."""

    @property
    def name(self) -> str:
        """What a section or a table of it is called."""
        return f"Ladder of {self.title}"

    @property
    def floor(self) -> float:
        """The share beyond which a gain is one."""
        return ASSUMED if self.measured_floor is None else self.measured_floor


def climbed(runs: Runs) -> list[Climbed]:
    """Return the ladders that the runs have climbed."""
    if runs.climbs.empty:
        return []
    names = runs.climbs.merge(subjects(runs.climbs), how="left")
    measured = floors(runs.trials).reset_index()
    ladders = []
    for key, trials in names.groupby(CELL, sort=False):
        assert isinstance(key, tuple)
        blocks, trained, floor = runs.climb_blocks, runs.trials[runs.trials["phase"] == "train"], measured
        for name, value in zip(CELL, key, strict=True):
            blocks = blocks[blocks[name] == value]
            if name != "techniques":  # a ladder's are its rungs
                trained, floor = (rows[rows[name] == value] for rows in (trained, floor))
        first = trials.iloc[0]
        batch = f"{first['batch_size']:.0f}"
        gains = _gains(trials, blocks)
        ladders.append(
            Climbed(
                title=f"{first['workload']} on {first['where']} at batch size {batch}",
                slug=f"{first['slug']}-b{batch}-ladder",
                rows=_rows(trials, gains, trained),
                gains=gains,
                measured_floor=None if floor.empty else float(floor["floor"].max()),
            )
        )
    return ladders


def _rungs(trials: pd.DataFrame) -> list[AblationStep]:
    """Return the rungs of a ladder from the lowest up."""
    return sorted((parse_step(str(name)) for name in trials["precision"].unique()), key=lambda rung: rung.rank)


def _usable(trials: pd.DataFrame) -> pd.DataFrame:
    return trials[(trials["phase"] == "ladder") & trials["status"].isin(MEASURED) & trials["step_ms"].gt(0)]


def _gains(trials: pd.DataFrame, blocks: pd.DataFrame) -> Gains:
    names, logs, usable = [rung.name for rung in _rungs(trials)], _logs(blocks), _usable(trials)
    return {pair: _over(logs, usable, *pair) for pair in combinations(names, 2)}


def _rows(trials: pd.DataFrame, gains: Gains, trained: pd.DataFrame) -> pd.DataFrame:
    timed, memory = trials[trials["phase"] == "ladder"], trials[trials["phase"] == "ladder_memory"]
    usable = _usable(trials)
    held = memory[memory["status"].isin(MEASURED)]
    peaks = held.assign(peak=held["peak_allocated_bytes"].fillna(held["peak_resident_bytes"]))
    peak = peaks.groupby("precision")["peak"].max()
    body: list[dict[str, Any]] = []
    for rung in _rungs(trials):
        mine = usable[usable["precision"] == rung.name]
        over_first, first_in = gains.get((BASELINE, rung.name), NOTHING)
        over_last, measured_in = gains.get((rung.previous.name, rung.name), NOTHING) if rung.previous else NOTHING
        status, detail = _status(timed, memory, mine, rung.name)
        word, accuracy = _accuracy(trained, rung)
        body.append(
            {
                "rung": rung.name,
                "precision": rung.precision,
                "added": rung.added,
                "stands_on": rung.previous.added if rung.previous else UNKNOWN,
                "status": status,
                "detail": detail,
                "step_ms": mine["step_ms"].median(),
                "epoch_s": (mine["step_ms"] * mine["steps_per_epoch"]).median() / 1000,
                "over_first": over_first,
                "over_last": over_last,
                "first_in": first_in,
                "measured_in": measured_in,
                "memory_bytes": peak.get(rung.name, float("nan")),
                "wait_pct": mine["wait_pct"].median(),
                "loader_ms": mine["loader_ms"].median(),
                "limit": _limit(mine),
                "accuracy": accuracy,
                "trained": word,
            }
        )
    rows = pd.DataFrame(body)
    fp32 = pd.Series(peak.get(BASELINE, float("nan")), index=rows.index)
    placement = pd.Series(str(trials.iloc[0]["placement"]), index=rows.index)
    return rows.assign(memory_change=memory_change(rows["memory_bytes"], fp32, placement))


def _status(timed: pd.DataFrame, memory: pd.DataFrame, mine: pd.DataFrame, name: str) -> tuple[str, str]:
    """Return a rung's word and its detail: what was measured counts, else what the timing said, else its memory.

    Of processes that measured it, one that is unconverged makes it so, as among precisions.
    """
    if len(mine):
        wide = mine[mine["status"] == "unconverged"]
        said = wide if len(wide) else mine
        return str(said.iloc[-1]["status"]), str(said.iloc[-1]["detail"])
    for rows in (timed, memory[~memory["status"].isin(MEASURED)]):
        if len(said := rows[rows["precision"] == name]):
            return str(said.iloc[-1]["status"]), str(said.iloc[-1]["detail"])
    return UNKNOWN, ""


def _logs(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return ln(time of a step) of each rung in each quad that counts: a row a quad, a column a rung."""
    counted = blocks[blocks["discarded"] == ""]
    log = np.log(counted["time_ms"] / counted["steps"])
    by_quad = counted[["trial", "round", "precision"]].astype({"trial": str, "precision": str}).assign(log=log)
    return by_quad.pivot_table(index=["trial", "round"], columns="precision", values="log", aggfunc="mean")


def _over(logs: pd.DataFrame, usable: pd.DataFrame, below: str, name: str) -> tuple[Interval | None, str]:
    """Return how many times as fast as another a rung is, and in what that was measured.

    Quad by quad and process by process where both were timed together; else Welch's interval on the logarithms of
    their steps, over the processes that each was alone in.
    """
    each = []
    if {below, name} <= set(logs.columns) & set(usable["precision"]):
        found = (logs[below] - logs[name]).dropna()
        each = [stats.quads_interval(quads.to_numpy()) for _, quads in found.groupby(level="trial", sort=False)]
    if each:
        together = stats.process_interval([one.center for one in each], each[0])
        return together.exp(), processes(len(each))
    steps = [np.log(usable.loc[usable["precision"] == rung, "step_ms"].to_numpy()) for rung in (below, name)]
    count = min(step.size for step in steps)
    return (stats.welch_interval(*steps).exp(), f"{processes(count)} apart") if count else (None, UNKNOWN)


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


def _accuracy(trained: pd.DataFrame, rung: AblationStep) -> tuple[str, Interval | None]:
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
