"""Figures of telemetry: what the driver's library read of each GPU over the time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Line, Mark, Panel
from bench.report.reading.labels import slugs
from bench.report.reading.load import Runs
from bench.results.columns import listed

SECTION = "GPUs while measuring"
PANELS = {
    "Power": ("power_w", "W"),
    "SM clock": ("sm_clock_mhz", "MHz"),
    "Temperature": ("temperature_c", "°C"),
    "Utilisation": ("utilization_pct", "%"),
}
"""The column and the unit of each panel."""
POINTS = 150
"""Readings are drawn as so many means at most, with the range of each."""
START_S = 3.0
"""The start of a process leaves no gap between trials of the same precisions."""
ABOUT = (
    "Shaded: a trial, in the colours of its precisions, its start-up and its checks included. Where a run has many "
    "readings, the line is a mean of some, and the band reaches from the lowest of them to the highest."
)


def courses(runs: Runs) -> Iterator[tuple[str, Chart]]:
    """Describe each run on each of its GPUs, with the section's title."""
    boards = list(runs.telemetry.groupby(["run", "placement"], sort=False, observed=True))
    files = slugs([f"{run} gpu {gpu}" for (run, gpu), _ in boards])
    names: dict[tuple[Any, ...], str] = {
        (run.label, device["placement"]): device["name"] for run in runs.runs for device in run.devices
    }
    trials = runs.tried()
    for ((run, gpu), samples), file in zip(boards, files, strict=True):
        here = trials[(trials["run"] == run) & trials["members"].map(listed).map(lambda names, gpu=gpu: gpu in names)]
        of_run = f" {run}" if len(runs.runs) > 1 else ""
        course = _course(
            samples, here, f"telemetry-{file}", f"GPU {gpu} over the run{of_run}: {names.get((run, gpu), '')}"
        )
        if course.panels:
            yield SECTION, course


def _course(samples: pd.DataFrame, trials: pd.DataFrame, name: str, caption: str) -> Chart:
    first, last = samples["time_s"].min(), samples["time_s"].max()
    unit, size = chart.time_unit(last - first)
    x = Axis(label=f"time ({unit})", low=0.0, high=max(last - first, 1.0) / size)
    stretches = _stretches(trials, first, max((last - first) / POINTS, START_S))
    times = (samples["time_s"] - first) / size
    means = samples.assign(x=times).groupby(pd.cut(times, POINTS, labels=False))
    panels = []
    for title, (column, of_values) in PANELS.items():
        points = means.agg(x=("x", "mean"), y=(column, "mean"), low=(column, "min"), high=(column, "max")).dropna()
        if points.empty:
            continue
        top = 1.08 * max(float(points["high"].max()), 1.0)
        marks: list[Mark] = []
        for start, end, precisions in stretches:
            share = top / len(precisions)  # of the height, for each, the first on top
            for place, precision in enumerate(precisions):
                x_ends, high = (start / size, end / size), top - share * place
                marks.append(Bar(x=x_ends, low=high - share, high=high, tint=precision, faint=True))
        marks.append(Bar(x=points["x"], low=points["low"], high=points["high"], tint=chart.SOFT, faint=True))
        line = list(zip(points["x"], points["y"], strict=True))
        marks.append(Line(points=line, tint=chart.PLAIN, dots=False))
        panels.append(Panel(title=title, x=x, y=Axis(label=of_values, low=0.0, high=top), marks=marks))
    names = dict.fromkeys(name for _, _, precisions in stretches for name in precisions)
    legend = [(precision, precision) for precision in names]
    return Chart(name=name, caption=caption, about=ABOUT, panels=panels, legend=legend)


def _stretches(trials: pd.DataFrame, first_s: float, gap_s: float) -> list[tuple[float, float, tuple[str, ...]]]:
    """Return what is shaded: from and to in seconds of the run, and the precisions of its trials.

    Trials of the same precisions with no visible gap between them are one.
    """
    began = pd.to_datetime(trials["started"], utc=True, errors="coerce") - pd.Timestamp(first_s, unit="s", tz="UTC")
    starts = began.dt.total_seconds()
    timed = trials.assign(start=starts, end=starts + trials["wall_s"]).dropna(subset="end").groupby("trial", sort=False)
    names = ("arm_precision", lambda names: tuple(dict.fromkeys(names)))
    each = timed.agg(start=("start", "min"), end=("end", "max"), names=names).sort_values("start", kind="stable")
    each["end"] = each["end"].clip(upper=each["start"].shift(-1))  # starts are whole seconds
    stretches: list[tuple[float, float, tuple[str, ...]]] = []
    for start, end, precisions in each.itertuples(index=False):
        began_s = start
        if stretches and stretches[-1][2] == precisions and start - stretches[-1][1] <= gap_s:
            began_s = stretches.pop()[0]
        stretches.append((began_s, end, precisions))
    return stretches
