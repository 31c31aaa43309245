"""The plots of each subject: speed and memory against batch size here, the course of training in ``curves``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bench.report import axes as house
from bench.report.axes import Panel, Plot
from bench.report.curves import draw_course
from bench.report.drawing import Job, draw_all
from bench.report.format import memory_unit
from bench.report.load import SUBJECT
from bench.report.summary import precision_rank
from bench.spec import BASELINE


def draw(summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path) -> dict[str, list[Plot]]:
    """Draw all that there are data for into ``folder``; return the plots of each workload."""
    jobs: list[Job] = []
    workloads: list[str] = []
    courses = dict(list(epochs.groupby(SUBJECT, sort=False))) if len(epochs) else {}
    for key, rows in summary.groupby(SUBJECT, sort=False):
        first = rows.iloc[0]
        name, subject = str(first["slug"]), f"{first['workload']} on {first['where']}"
        if _panels(rows):
            caption = f"{subject}: speed and memory"
            jobs.append(partial(_draw_speed, rows[DRAWN], name=f"{name}-speed", caption=caption, folder=folder))
        for batch, trained in courses[key].groupby("batch_size") if key in courses else ():
            caption = f"{subject}: training at batch size {batch:.0f}"
            job = partial(draw_course, trained, name=f"{name}-training-b{batch:.0f}", caption=caption, folder=folder)
            jobs.append(job)
        workloads += [str(first["workload"])] * (len(jobs) - len(workloads))
    plots: dict[str, list[Plot]] = {str(name): [] for name in summary["workload"].unique()}
    for workload, plot in zip(workloads, draw_all(jobs), strict=True):
        plots[workload] += [plot] if plot else []
    return plots


def _draw_speed(rows: pd.DataFrame, *, name: str, caption: str, folder: Path) -> Plot:
    return house.save([_panels(rows)], rows, name=name, caption=caption, folder=folder)


def _panels(rows: pd.DataFrame) -> list[Panel]:
    """Return the panels that there is something to draw in."""
    return [panel for panel, column in SPEED_PANELS.items() if rows[column].notna().any()]


def _arms(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    order = sorted(rows["precision"].unique(), key=precision_rank)
    return [(name, rows[rows["precision"] == name].sort_values("batch_size")) for name in order]


def _batches(rows: pd.DataFrame) -> list[int]:
    return [int(size) for size in sorted(rows["batch_size"].unique())]


def _speedup(axes: Axes, rows: pd.DataFrame) -> None:
    rows = rows[rows["speedup"].notna()]
    sizes, arms = _batches(rows), _arms(rows)
    axes.axhline(1.0, color=house.colour(BASELINE), linewidth=1.4, linestyle="--", label=BASELINE)
    for index, (name, arm) in enumerate(arms):
        center = arm["speedup"].to_numpy()
        below = (arm["speedup"] - arm["low"]).fillna(0).to_numpy()
        above = (arm["high"] - arm["speedup"]).fillna(0).to_numpy()
        aside = 2 ** (0.05 * (index - (len(arms) - 1) / 2))
        place = arm["batch_size"].to_numpy() * aside if len(sizes) > 1 else np.array([float(index)])
        axes.errorbar(
            place,
            center,
            yerr=[below, above],
            color=house.colour(name),
            marker=house.marker(name),
            capsize=3,
            linestyle="-" if len(sizes) > 1 else "none",
            label=name if len(sizes) > 1 else None,
        )
    if len(sizes) > 1:
        house.batch_axis(axes, sizes)
    else:
        house.precision_axis(axes, [name for name, _ in arms], sizes[0])
    axes.set_ylim(0, axes.get_ylim()[1])
    axes.set_title("Speedup over fp32")
    axes.set_ylabel("speedup (×), 95 % interval")


def _against_batch(axes: Axes, rows: pd.DataFrame, column: str, scale: float) -> None:
    """Draw a column as lines over batch sizes or, at one batch size, as bars."""
    rows = rows[rows[column].notna()]
    sizes, arms = _batches(rows), _arms(rows)
    for index, (name, arm) in enumerate(arms):
        figures = arm[column].to_numpy() / scale
        if len(sizes) > 1:
            axes.plot(arm["batch_size"], figures, color=house.colour(name), marker=house.marker(name), label=name)
        else:
            axes.bar(index, figures[0], width=0.6, color=house.colour(name))
    if len(sizes) > 1:
        house.batch_axis(axes, sizes)
    else:
        house.precision_axis(axes, [name for name, _ in arms], sizes[0])
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    house.thousands(axes)


def _throughput(axes: Axes, rows: pd.DataFrame) -> None:
    _against_batch(axes, rows, "samples_per_s", 1)
    axes.set_title("Throughput")
    axes.set_ylabel("samples/s")


def _memory(axes: Axes, rows: pd.DataFrame) -> None:
    unit, size, _ = memory_unit(rows["memory_bytes"].max())
    _against_batch(axes, rows, "memory_bytes", size)
    axes.set_title("Peak memory")
    axes.set_ylabel(unit)


SPEED_PANELS: dict[Panel, str] = {_speedup: "speedup", _throughput: "samples_per_s", _memory: "memory_bytes"}
DRAWN = ["precision", "batch_size", "low", "high", *SPEED_PANELS.values()]
"""Columns of the summary that are drawn."""
