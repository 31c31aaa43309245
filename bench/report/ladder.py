"""The ladder: what each technique brings on top of the ones before, as a table and a stair plot."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bench import stats
from bench.report import axes as house
from bench.report.axes import Plot
from bench.report.floor import ASSUMED
from bench.report.format import UNKNOWN, known, number, ratio, signed
from bench.report.labels import subjects
from bench.report.load import CELL, Runs
from bench.report.speed import MEASURED
from bench.report.tables import Table, table
from bench.report.verdict import Sentence
from bench.rungs import parse_rung
from bench.spec import BASELINE
from bench.stats import Interval

MIB = 2**20
ABOUT = (
    "Each rung stands on the one before; all were timed in one process in turn, fed by worker processes that decode "
    "and augment images one by one, as a usual training loop is. Time per epoch is the step's time, loading included, "
    "times the steps of an epoch. Waiting is the share of its time in which the host asked for a batch: for the loader "
    "to make it, and for copies that are waited for. The loader alone is what it takes for a batch when nothing else "
    "runs; where that is nearly the step's time, the loader limits the rung, and no arithmetic makes it faster. "
    "Intervals are 95 %, over processes, or within the only one."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """One ladder: a suite on a device at a batch size."""

    title: str
    slug: str
    rows: pd.DataFrame
    """A row for each rung, in order: rung (its number, None where it was not timed), added, status, detail, step_ms,
    epoch_s, over_first, over_last (intervals of ratios, or None), memory_bytes, wait_pct, loader_ms, limited."""


def climbed(runs: Runs) -> list[Climbed]:
    """Return the ladders that the runs have climbed."""
    if runs.climbs.empty:
        return []
    names = runs.climbs.merge(subjects(runs.climbs), how="left")
    ladders = []
    for key, trials in names.groupby(CELL, sort=False):
        assert isinstance(key, tuple)
        blocks = runs.climb_blocks
        for name, value in zip(CELL, key, strict=True):
            blocks = blocks[blocks[name] == value]
        first = trials.iloc[0]
        batch = f"{first['batch_size']:.0f}"
        ladders.append(
            Climbed(
                title=f"{first['workload']} on {first['where']} at batch size {batch}",
                slug=f"{first['slug']}-b{batch}-ladder",
                rows=_rungs(trials, blocks),
            )
        )
    return ladders


def _rungs(trials: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    timed = trials[trials["phase"] == "ladder"]
    memory = trials[(trials["phase"] == "ladder_memory") & trials["status"].isin(MEASURED)]
    peaks = memory.assign(peak=memory["peak_allocated_bytes"].fillna(memory["peak_resident_bytes"]))
    peak = peaks.groupby("precision")["peak"].max()
    usable = timed[timed["status"].isin(MEASURED) & timed["step_ms"].gt(0)]
    order = {str(name): int(rows["rung"].iloc[0]) for name, rows in usable.groupby("precision", sort=False)}
    climbing = sorted(order, key=lambda name: order[name])
    logs = _logs(blocks, climbing)
    body: list[dict[str, Any]] = []
    names = [str(name) for name in timed["precision"].unique()]
    for name in sorted(names, key=lambda name: (len(parse_rung(name).techniques), name != BASELINE)):
        mine, last = usable[usable["precision"] == name], timed[timed["precision"] == name].iloc[-1]
        before = climbing[climbing.index(name) - 1] if name in order and order[name] > 0 else None
        body.append(
            {
                "rung": order.get(name),
                "added": parse_rung(name).added,
                "status": "ok" if (mine["status"] == "ok").any() else last["status"],
                "detail": last["detail"],
                "step_ms": mine["step_ms"].median(),
                "epoch_s": (mine["step_ms"] * mine["steps_per_epoch"]).median() / 1000,
                "over_first": _over(logs, climbing[0], name) if before else None,
                "over_last": _over(logs, before, name) if before else None,
                "memory_bytes": peak.get(name, float("nan")),
                "wait_pct": mine["wait_pct"].median(),
                "loader_ms": mine["loader_ms"].median(),
                "limited": bool((mine["loader_limited"] == "yes").any()),
            }
        )
    return pd.DataFrame(body)


def _logs(blocks: pd.DataFrame, rungs: list[str]) -> pd.DataFrame:
    """Return ln(time of a step) of each rung in each quad that counts: a row a quad, a column a rung."""
    counted = blocks[blocks["invalid"] == ""]
    log = np.log(counted["time_ms"] / counted["steps"])
    by_quad = counted[["trial", "quad", "precision"]].assign(log=log)
    made = by_quad.pivot_table(index=["trial", "quad"], columns="precision", values="log", aggfunc="mean")
    return made.reindex(columns=rungs)


def _over(logs: pd.DataFrame, baseline: str, name: str) -> Interval | None:
    """Return how many times as fast as another a rung is, quad by quad, process by process."""
    found = (logs[baseline] - logs[name]).dropna()
    processes = [stats.quads_interval(quads.to_numpy()) for _, quads in found.groupby(level="trial", sort=False)]
    if not processes:
        return None
    return stats.process_interval([one.center for one in processes], processes[0]).exp()


def table_of(ladder: Climbed) -> Table:
    """Return a ladder's table."""
    headers = ["rung", "time/epoch (s)", "step (ms)", "over fp32 [95 % interval]", "over the rung before"]
    headers += ["peak memory (MiB)", "waiting (%)", "loader alone (ms)", "limited by", "status"]
    body = []
    for row in ladder.rows.to_dict("records"):
        timed = known(row["step_ms"])
        status = row["status"] if row["status"] in MEASURED else f"{row['status']}: {row['detail']}"
        body.append(
            [
                str(row["added"]),
                number(row["epoch_s"]),
                number(row["step_ms"]),
                _written(row["over_first"]),
                _written(row["over_last"]),
                number(row["memory_bytes"] / MIB),
                number(row["wait_pct"], 2),
                number(row["loader_ms"]),
                ("loader" if row["limited"] else "step") if timed else UNKNOWN,
                status,
            ]
        )
    return table("Rungs", headers, body, about=ABOUT)


def _written(found: Interval | None) -> str:
    return UNKNOWN if found is None else ratio(found.center, found.low, found.high)


def sentence(ladder: Climbed) -> Sentence:
    """Say how far up the ladder it pays to climb, and which rung brings most."""
    subject = f"ladder of {ladder.title}"
    timed = [row for row in ladder.rows.to_dict("records") if row["over_first"] is not None]
    if not timed:
        return Sentence(subject=subject, advice="no verdict", evidence="no rung above fp32 was timed")
    faster = [row for row in timed if _beyond(row["over_first"])]
    best = max(timed, key=lambda row: row["over_last"].center)
    brings = f"the rung that brings most is {best['added']}, {_written(best['over_last'])}× as fast as the one before"
    if not faster:
        top = max(timed, key=lambda row: row["over_first"].center)
        found = f"the fastest rung, {top['added']}, is {_written(top['over_first'])}× as fast as fp32"
        return Sentence(subject=subject, advice="stay with fp32", evidence=f"nothing gains: {found}; {brings}")
    top = max(faster, key=lambda row: row["over_first"].center)
    evidence = f"{_written(top['over_first'])}× as fast as fp32{_memory(ladder.rows.iloc[0], top)}; {brings}"
    evidence += "; there the loader is the limit, not arithmetic" if top["limited"] else ""
    return Sentence(subject=subject, advice=f"climb to {top['added']}", evidence=evidence)


def _beyond(found: Interval) -> bool:
    return found.low is not None and found.low > 1 + ASSUMED


def _memory(first: pd.Series, top: dict[Hashable, Any]) -> str:
    if not known(first["memory_bytes"]) or not known(top["memory_bytes"]):
        return ""
    return f" at {signed(100 * (top['memory_bytes'] / first['memory_bytes'] - 1), 0)} % peak memory"


def plot_of(ladder: Climbed, folder: Path) -> Plot:
    """Draw time per epoch and peak memory of each rung as stairs."""
    rows = ladder.rows[ladder.rows["step_ms"].notna()].reset_index(drop=True)
    caption = f"Ladder: {ladder.title}"
    name = re.sub(r"[^a-z0-9-]+", "-", ladder.slug.lower())
    panels = [[_times, _memories] if rows["memory_bytes"].notna().any() else [_times]]
    return house.save(panels, rows, name=name, caption=caption, folder=folder, panel_inches=(5.0, 3.8))


def _times(axes: Axes, rows: pd.DataFrame) -> None:
    base = rows["epoch_s"].iloc[0]
    spread: list[list[float]] = [[], []]
    for row in rows.to_dict("records"):
        over = row["over_first"]
        bounded = over is not None and known(over.low) and known(over.high)
        spread[0].append(max(0.0, row["epoch_s"] - base / over.high) if bounded else 0.0)
        spread[1].append(max(0.0, base / over.low - row["epoch_s"]) if bounded else 0.0)
    unit, seconds = house.time_unit(float(rows["epoch_s"].max()))
    errors = np.array(spread) / seconds
    _stairs(axes, rows, rows["epoch_s"] / seconds, errors)
    axes.set_ylabel(f"time per epoch ({unit})")
    axes.set_title("Time per epoch, 95 % interval against fp32")


def _memories(axes: Axes, rows: pd.DataFrame) -> None:
    _stairs(axes, rows, rows["memory_bytes"] / MIB, None)
    axes.set_ylabel("peak memory (MiB)")
    axes.set_title("Peak memory, each alone in a process")


def _stairs(axes: Axes, rows: pd.DataFrame, heights: pd.Series, errors: np.ndarray | None) -> None:
    places = np.arange(len(rows))
    colours = [house.colour("fp32") if place == 0 else house.colour("amp-bf16") for place in places]
    axes.bar(places, heights, width=0.7, color=colours, alpha=0.25, zorder=2)
    edges = np.arange(len(rows) + 1) - 0.5
    axes.stairs(heights, edges, color=house.INK, linewidth=1.4, zorder=3)
    if errors is not None:
        axes.errorbar(places, heights, yerr=errors, fmt="none", ecolor=house.INK, capsize=3, zorder=4)
    tops = heights + (errors[1] if errors is not None else 0.0)
    for place, height, top in zip(places, heights, tops, strict=True):
        if known(height):
            axes.annotate(number(height), (place, top), (0, 4), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(places, list(rows["added"]), rotation=25, ha="right", rotation_mode="anchor")
    axes.set_ylim(0, 1.15 * float(np.nanmax(tops)) if tops.notna().any() else 1.0)
    axes.grid(visible=False, axis="x")
