"""Figures against batch size, all devices on one axis, of speedups and other metrics; and against a factor's values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pandas as pd

from bench import stats
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Chart, Line, Mark, Panel, Rule, Text, Tint
from bench.report.format import at_batch, capital, known, memory_unit, number, records, times
from bench.report.reading.labels import slugs
from bench.report.reading.load import CELL
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import MEMORY, SPEED, THROUGHPUT, untabled
from bench.spec.precisions import BASELINE, precision_rank

Choice = Literal["overview", "all", "none"]
"""Which figures are drawn."""
SPEEDUP = "speedup-vs-batch"
"""The names of its figures begin with this."""
Group = tuple[str, str, pd.DataFrame]
"""A panel's title, its precision if it has one, and its rows as of ``against_batch``, with the column ``line``."""
MOST_NAMES, LONGEST_NAME = 10, 16
"""Most lines with their names at their ends, and most characters of such a name; else there is a legend."""
LOG_FROM = 30.0
"""A metric whose largest figure is this many times the smallest has a logarithmic axis."""
LOST = "✕: that batch size did not fit in memory"


def charts(summary: pd.DataFrame, figures: Choice = "overview") -> Iterator[tuple[str, Callable[[], Chart | None]]]:
    """Describe the figures of all recipes, each with its workload.

    Those against batch size are described when they are called, by the process that draws them.

    The speedups come first, with an empty workload, because they are figures of the whole report. Only they are drawn
    to files, unless ``all`` figures are.
    """
    workloads = [(str(name), rows) for name, rows in summary.groupby("workload", sort=False)]
    files, tints = slugs([name for name, _ in workloads]), tints_of(summary)
    shared: dict[str, Any] = {"tints": tints, "kind": "devices" if summary["device_kind"].eq("cpu").any() else "GPUs"}
    for metric in (SPEED, THROUGHPUT, MEMORY, *untabled()):
        for (name, rows), file in zip(workloads, files, strict=True):
            is_first = metric is SPEED
            about = {"workload": name, "name": f"{'speedup' if is_first else metric.name}-vs-batch-{file}", **shared}
            about["in_files"] = is_first or figures == "all"
            yield "" if is_first else name, partial(_figure, rows, metric, about)


def _figure(rows: pd.DataFrame, metric: Metric, about: dict[str, Any]) -> Chart | None:
    """Describe a metric of a recipe against batch size; of step times the speedups."""
    figures = speedups_of(rows) if metric is SPEED else figures_of(rows, metric)
    return against_batch(figures, metric, **about)


def tints_of(summary: pd.DataFrame) -> dict[str, Tint]:
    """Return the tint of each device by its label, the same in every figure of a report.

    Published devices share the tints that measured ones leave: only those of one workload differ for certain.
    """
    is_published = summary["measured_in"] == "published"
    measured = summary.loc[~is_published, "label"].unique()
    places = {label: place for place, label in enumerate(measured)}
    for _, rows in summary[is_published].groupby("workload", sort=False):
        labels = rows["label"].unique()
        taken = {places[label] for label in labels if label in places}
        free = (place for place in itertools.count(len(measured)) if place not in taken)
        places |= {label: next(free) for label in labels if label not in places}
    return {label: chart.device(place) for label, place in places.items()}


def speedups_of(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the speedups of a summary's rows as ``against_batch`` takes them."""
    rows = summary.assign(device=summary["label"], value=summary["speedup"], status=summary["speed_status"])
    rows = rows.assign(low=summary["speedup_low"], high=summary["speedup_high"])
    lost = (rows["precision"] == BASELINE) & (rows["status"] == "oom")
    without = lost.groupby([rows[name] for name in CELL], sort=False).transform("any").astype(bool)
    return rows.assign(status=rows["status"].mask(without & rows["status"].isin(MEASURED), "oom"))


def figures_of(summary: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return a metric's figures as ``against_batch`` takes them; intervals are Student's over processes or seeds."""
    rows = summary.assign(device=summary["label"], value=summary[metric.figure], status=summary[metric.status])
    several = [getattr(arm, "values", ()) if metric.replicate != "once" else () for arm in rows[metric.arm]]
    intervals = [stats.student(values) if len(values) > 1 else None for values in several]
    ends = [(each.low, each.high) if each else (None, None) for each in intervals]
    rows[["low", "high"]] = pd.DataFrame(ends, rows.index, ["low", "high"], dtype=float)
    return rows


def against_batch(
    rows: pd.DataFrame,
    metric: Metric,
    *,
    workload: str,
    name: str,
    tints: Mapping[str, Tint],
    in_files: bool = True,
    kind: str = "GPUs",
) -> Chart | None:
    """Describe a metric against batch size: a panel for each precision with a line for each device.

    One device has one panel, with a line for each precision. Where there is one batch size, dots replace the lines.

    Args:
        rows: figures, with the columns ``device`` (a short name), ``precision``, ``batch_size``, ``value``, ``low`` and
            ``high`` (the ends of its 95 % interval; NaN where there is none) and ``status`` (``oom`` is drawn as a
            cross).
        metric: the metric; of step times the speedup over fp32, which itself is left out.
        workload: the recipe, as the page's filter names it.
        name: of the files.
        tints: of the devices, by name.
        in_files: whether the figure is drawn to files, too.
        kind: of the devices.

    Returns:
        The figure; None where nothing was measured.
    """
    over_fp32 = metric is SPEED
    rows = rows[rows["precision"] != BASELINE] if over_fp32 else rows
    measured = rows[rows["value"].notna()]
    if measured.empty:
        return None
    rows, unit = _scaled(rows[rows["value"].notna() | rows["status"].eq("oom")], metric)
    devices = [device for device in tints if device in set(rows["device"])]
    precisions = sorted(measured["precision"].unique(), key=precision_rank)
    rows = rows[rows["device"].isin(devices) & rows["precision"].isin(precisions)]
    sizes = sorted(rows["batch_size"].unique())
    if len(devices) > 1:
        lines, where = devices, f", all {kind} on one axis"
        groups = [(name, name, rows[rows["precision"] == name].assign(line=rows["device"])) for name in precisions]
    else:
        lines, where = precisions, f" on {devices[0]}"
        groups = [(devices[0], "", rows.assign(line=rows["precision"]))]
    ticks = [(float(size), f"{size:.10g}") for size in sizes]
    x = Axis(label="batch size", scale="log", ticks=ticks, low=sizes[0] / 1.15, high=1.15 * sizes[-1])
    what = "speedup" if over_fp32 else metric.label
    what += " vs batch size" if len(sizes) > 1 else at_batch(records(rows)[0], " at batch size ")
    bare = Chart(
        name=name,
        caption=f"{capital(what)}{where}: {workload}",
        about=" ".join(_about(rows, over_fp32=over_fp32, rest=len(devices) - len(chart.LOOKS))),
        in_files=in_files,
        workload=workload,
    )
    y = of_figures(rows, unit, over_fp32=over_fp32)
    return with_panels(bare, groups, x, y, {line: tints.get(line, line) for line in lines}, over_fp32=over_fp32)


def _scaled(rows: pd.DataFrame, metric: Metric) -> tuple[pd.DataFrame, str]:
    """Return figures in a unit that suits them, with the unit; an interval that would dwarf them is cut off."""
    unit, size = metric.unit, 1
    if unit == "bytes":
        unit, size, _ = memory_unit(float(rows["value"].max()))
    values = rows["value"] / size
    low, high = (rows["low"] / size).clip(lower=values.min() / 2), (rows["high"] / size).clip(upper=2 * values.max())
    return rows.assign(value=values, low=low, high=high), unit


def _about(rows: pd.DataFrame, *, over_fp32: bool, rest: int) -> Iterator[str]:
    """Yield sentences on how to read a figure."""
    interval = " with its 95 % interval" * bool(rows["low"].notna().any())
    if over_fp32:
        yield f"Speedup over fp32{interval}; above 1 is faster."
    elif interval:
        yield "Whiskers: 95 % intervals."
    if (rows["status"].eq("oom") & rows["value"].isna()).any():
        yield f"{LOST}{' in that precision or in fp32' if over_fp32 else ''}."
    if rest > 0:
        yield f"Grey: {rest} more; choose a device to see it in colour."


def of_figures(rows: pd.DataFrame, unit: str, *, over_fp32: bool) -> Axis:
    """Return the axis of figures, which all panels share."""
    ends = rows[["value", "low", "high"]].astype(float)
    low, high = float(ends.min().min()), float(ends.max().max())
    if over_fp32:
        low, high = min(1.0, low), max(1.0, high)
        spare = 0.08 * max(high - low, 0.1)
        return Axis(label="speedup over fp32 (×)", low=low - spare, high=high + spare)
    if high > LOG_FROM * low > 0:
        return Axis(label=unit, scale="log", low=low / 1.2, high=1.2 * high)
    return Axis(label=unit, low=0.0, high=1.06 * high or 1.0)


def with_panels(
    bare: Chart, groups: Sequence[Group], x: Axis, y: Axis, lines: Mapping[str, Tint], *, over_fp32: bool
) -> Chart:
    """Return a chart with a panel for each group, and a legend if its lines cannot have their names at their ends.

    ``lines`` are devices or precisions, with their tints.
    """
    are_dots = len(x.ticks) == 1
    are_named = len(lines) <= MOST_NAMES and max(map(len, lines)) <= LONGEST_NAME
    panels = []
    for title, precision, group in groups:
        marks: list[Mark] = [Rule(at=1.0, axis="x" if are_dots else "y")] if over_fp32 else []
        names: list[str] = []
        for line, tint in lines.items():
            arm = records(group[group["line"] == line].sort_values("batch_size"))
            if not are_dots:
                marks += _line(line, tint, arm, x, is_named=are_named, over_fp32=over_fp32)
                continue
            for row in arm:
                value, low, high = row["value"], row["low"], row["high"]
                if known(value):
                    ends = (low, high) if known(low) else (value, value)
                    marks += chart.estimate((value, *ends), len(names) + 0.5, tint, line)
                names.append(f"{line} {number(value, 3)}{'×' * over_fp32}" if known(value) else f"{line} ✕")
        if are_dots:
            panels.append(replace(chart.rows_panel(title, y, names, marks), precision=precision))
        else:
            panels.append(Panel(title=title, x=x, y=y, marks=marks, precision=precision))
    legend = [] if are_dots or are_named else list(lines.items())
    return replace(bare, panels=panels, columns=min(3, len(panels)), legend=legend)


def _line(
    line: str, tint: Tint, arm: Sequence[Mapping[Hashable, Any]], x: Axis, *, is_named: bool, over_fp32: bool
) -> list[Mark]:
    """Describe a line with its whiskers, and crosses at batch sizes that did not fit."""
    marks: list[Mark] = []
    points, whiskers, says = [], [], []
    for row in arm:
        at, value, low, high = (row[column] for column in ("batch_size", "value", "low", "high"))
        if not known(value):
            marks.append(Text(x=at, text="✕", tint=tint))
            continue
        points.append((at, value))
        says.append(f"{dict(x.ticks)[at]}: {times(value, low, high)}")
        if known(low):
            whiskers.append((at, low, high))
    in_words = f"{line}, {x.label} {'; '.join(says)}" if over_fp32 else line
    if points:
        name = line if is_named and not tint.startswith(chart.REST) else ""
        marks.append(Line(points=points, whiskers=whiskers, tint=tint, name=name, says=in_words))
    return marks
