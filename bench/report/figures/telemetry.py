"""Figures of telemetry: what the driver's library read of each GPU over the time of a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Band, Bar, Chart, Line, Mark, Panel
from bench.report.reading.labels import slugs
from bench.report.reading.load import Run, Runs
from bench.results.columns import listed

SECTION = "GPUs while measuring"
PANELS = {
    "Power": ("power_w", "W", None),
    "SM clock": ("sm_clock_mhz", "MHz", None),
    "Temperature": ("temperature_c", "°C", None),
    "Utilisation": ("utilization_pct", "%", 105.0),
}
"""The column, the unit and the end of the axis of each panel."""
POINTS = 150
"""Readings of a longer run are drawn as so many means, with the range of each."""
START_S = 3.0
"""The start of a process leaves no gap between trials of the same precisions."""
ABOUT = (
    "Shaded: a trial, in the colours of its precisions, its start-up and its checks included. Where a run has many "
    "readings, the line is a mean of some, and the band reaches from the lowest of them to the highest."
)


def courses(runs: Runs) -> Iterator[tuple[str, Chart]]:
    """Describe each run on each of its GPUs, with the section's title."""
    boards = list(runs.telemetry.groupby(["run", "placement"], sort=False, observed=True))
    names = slugs([f"{run} gpu {gpu}" for (run, gpu), _ in boards])
    trials = pd.concat([runs.trials, runs.ablations], ignore_index=True)
    for ((label, gpu), samples), name in zip(boards, names, strict=True):
        (run,) = (run for run in runs.runs if run.label == label)
        here = trials["members"].map(lambda cell, gpu=gpu: gpu in listed(cell)) & (trials["run"] == label)
        yield SECTION, _course(samples, trials[here], f"telemetry-{name}", _title(run, str(gpu), len(runs.runs) > 1))


def _title(run: Run, gpu: str, several: bool) -> str:
    board = next((device["name"] for device in run.devices if device["placement"] == gpu), "")
    return f"GPU {gpu} over the run{f' {run.label}' * several}{f': {board}' * bool(board)}"


def _course(samples: pd.DataFrame, trials: pd.DataFrame, name: str, caption: str) -> Chart:
    first, last = samples["time_s"].min(), samples["time_s"].max()
    unit, size = chart.time_unit(last - first)
    parts = pd.cut(samples["time_s"], POINTS, labels=False) if len(samples) > POINTS else np.arange(len(samples))
    x = Axis(label=f"time ({unit})", low=0.0, high=max(last - first, 1.0) / size)
    stretches = list(_stretches(trials, first, max((last - first) / POINTS, START_S)))
    panels = []
    for title, (column, of_values, highest) in PANELS.items():
        means = samples.assign(x=(samples["time_s"] - first) / size).groupby(parts)
        points = means.agg(x=("x", "mean"), y=(column, "mean"), low=(column, "min"), high=(column, "max")).dropna()
        if points.empty:
            continue
        top = highest or 1.08 * float(points["high"].max())
        marks: list[Mark] = [
            Bar(x=(start / size, end / size), y=(top * at, top * to), tint=precision, faint=True)
            for start, end, at, to, precision in stretches
        ]
        if (points["high"] > points["low"]).any():
            marks.append(
                Band(points=list(zip(points["x"], points["low"], points["high"], strict=True)), tint=chart.SOFT)
            )
        line = list(zip(points["x"], points["y"], strict=True))
        marks.append(Line(points=line, tint=chart.PLAIN, dots=False, says=title))
        panels.append(Panel(title=title, x=x, y=Axis(label=of_values, low=0.0, high=top), marks=marks))
    legend = [(precision, precision) for precision in dict.fromkeys(stretch[-1] for stretch in stretches)]
    return Chart(name=name, caption=caption, about=ABOUT, panels=panels, columns=2, legend=legend)


def _stretches(trials: pd.DataFrame, first_s: float, gap_s: float) -> Iterator[tuple[float, float, float, float, str]]:
    """Yield what is shaded: from and to in seconds of the run, from and to as shares of the panel, the precision.

    Trials of the same precisions with no visible gap between them are one.
    """
    lasting = trials[trials["wall_s"].notna()]
    starts = pd.to_datetime(lasting["started"], utc=True).map(pd.Timestamp.timestamp) - first_s
    timed = lasting.assign(start=starts, end=starts + lasting["wall_s"]).groupby("trial", sort=False)
    names = ("arm_precision", lambda names: tuple(dict.fromkeys(names)))
    each = timed.agg(start=("start", "min"), end=("end", "max"), names=names).sort_values("start", kind="stable")
    each["end"] = each["end"].clip(upper=each["start"].shift(-1))  # starts are whole seconds
    apart = (each["names"] != each["names"].shift()) | (each["start"] - each["end"].shift() > gap_s)
    joined = each.groupby(apart.cumsum()).agg(start=("start", "first"), end=("end", "last"), names=("names", "first"))
    for start, end, precisions in joined.itertuples(index=False):
        for place, precision in enumerate(precisions):
            yield start, end, 1 - (place + 1) / len(precisions), 1 - place / len(precisions), precision
