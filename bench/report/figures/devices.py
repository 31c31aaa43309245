"""Figures against batch size, all devices on one axis, of speedups and other metrics; and against a factor's values."""

from __future__ import annotations

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


def charts(summary: pd.DataFrame, figures: Choice = "overview") -> Iterator[tuple[str, Callable[[], Chart | None]]]:
    """Describe the figures of all recipes, each with its workload.

    Those against batch size are described when they are called, by the process that draws them.

    The speedups come first, with an empty workload, because they are figures of the whole report. Only they are drawn
    to files, unless ``all`` figures are.
    """
    workloads = list(summary.groupby("workload", sort=False))
    files, tints = slugs([str(name) for name, _ in workloads]), tints_of(summary)
    for metric in (SPEED, THROUGHPUT, MEMORY, *untabled()):
        is_first = metric is SPEED
        for (name, rows), file in zip(workloads, files, strict=True):
            about = {
                "workload": str(name),
                "name": f"{'speedup' if is_first else metric.name}-vs-batch-{file}",
                "tints": tints,
                "in_files": is_first or figures == "all",
            }
            yield "" if is_first else str(name), partial(_figure, rows, metric, about)


def _figure(rows: pd.DataFrame, metric: Metric, about: dict[str, Any]) -> Chart | None:
    """Describe a metric of a recipe against batch size; of step times the speedups."""
    figures = speedups_of(rows) if metric is SPEED else figures_of(rows, metric)
    return against_batch(figures, metric, **about)


def tints_of(summary: pd.DataFrame) -> dict[str, Tint]:
    """Return the tint of each device by its label, the same in every figure of a report."""
    return {str(label): f"device-{place}" for place, label in enumerate(summary["label"].unique())}


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
    ends = []
    for arm in rows[metric.arm]:
        values = getattr(arm, "values", ()) if metric.replicate != "once" else ()
        interval = stats.student(values) if len(values) > 1 else None
        ends.append((interval.low, interval.high) if interval else (None, None))
    rows[["low", "high"]] = pd.DataFrame(ends, rows.index, ["low", "high"], dtype=float)
    return rows


def against_batch(
    rows: pd.DataFrame, metric: Metric, *, workload: str, name: str, tints: Mapping[str, Tint], in_files: bool = True
) -> Chart | None:
    """Describe a metric against batch size: a panel for each precision with a line for each device.

    One device has one panel, with a line for each precision. Where there is one batch size, dots replace the lines.

    Args:
        rows: figures, with the columns ``device`` (a short name), ``device_kind``, ``precision``, ``batch_size``,
            ``value``, ``low`` and ``high`` (the ends of its 95 % interval; NaN where there is none) and ``status``
            (``oom`` is drawn as a cross).
        metric: the metric; of step times the speedup over fp32, which itself is left out.
        workload: the recipe, as the page's filter names it.
        name: of the files.
        tints: of the devices, by name.
        in_files: whether the figure is drawn to files, too.

    Returns:
        The figure; None where nothing was measured.
    """
    over_fp32 = metric is SPEED
    rows = rows[rows["precision"] != BASELINE] if over_fp32 else rows
    measured = rows[rows["value"].notna()]
    if measured.empty:
        return None
    precisions = sorted(measured["precision"].unique(), key=precision_rank)
    is_shown = rows["value"].notna() | rows["status"].eq("oom")
    rows, unit = _scaled(rows[is_shown & rows["precision"].isin(precisions)], metric)
    devices = [device for device in tints if device in set(rows["device"])]
    sizes = sorted(rows["batch_size"].unique())
    what = "speedup" if over_fp32 else metric.label
    what += " vs batch size" if len(sizes) > 1 else at_batch(records(rows)[0], " at batch size ")
    if len(devices) > 1:
        lines = devices
        where = f", all {'devices' if rows['device_kind'].eq('cpu').any() else 'GPUs'} on one axis"
        groups = [(name, name, rows[rows["precision"] == name].assign(line=rows["device"])) for name in precisions]
    else:
        lines, where = precisions, f" on {devices[0]}"
        groups = [(devices[0], "", rows.assign(line=rows["precision"]))]
    ticks = [(float(size), f"{size:.10g}") for size in sizes]
    x = Axis(label="batch size", scale="log", ticks=ticks, low=sizes[0] / 1.15, high=1.15 * sizes[-1])
    y = speedups(rows) if over_fp32 else of_figures(rows, unit)
    bare = Chart(
        name=name,
        caption=f"{capital(what)}{where}: {workload}",
        about=" ".join(_about(rows, over_fp32=over_fp32)),
        in_files=in_files,
        workload=workload,
    )
    return with_panels(bare, groups, x, y, {line: tints.get(line, line) for line in lines}, over_fp32=over_fp32)


def _scaled(rows: pd.DataFrame, metric: Metric) -> tuple[pd.DataFrame, str]:
    """Return figures in a unit that suits them, with the unit; an interval that would dwarf them is cut off."""
    unit, size = metric.unit, 1
    if unit == "bytes":
        unit, size, _ = memory_unit(float(rows["value"].max()))
    values = rows["value"] / size
    low, high = (rows["low"] / size).clip(lower=values.min() / 2), (rows["high"] / size).clip(upper=2 * values.max())
    return rows.assign(value=values, low=low, high=high), unit


def _about(rows: pd.DataFrame, *, over_fp32: bool) -> Iterator[str]:
    """Yield sentences on how to read a figure."""
    has_intervals = rows["low"].notna().any()
    if over_fp32:
        yield f"Speedup over fp32{' with its 95 % interval' if has_intervals else ''}; above 1 is faster."
    elif has_intervals:
        yield "Whiskers: 95 % intervals."
    if rows["value"].isna().any():
        yield f"✕: that batch size did not fit in memory{' in that precision or in fp32' if over_fp32 else ''}."


def speedups(rows: pd.DataFrame) -> Axis:
    """Return the axis of speedups, which all panels share."""
    ends = rows[["value", "low", "high"]].astype(float)
    low, high = min(1.0, ends.min().min()), max(1.0, ends.max().max())
    spare = 0.08 * max(high - low, 0.1)
    return Axis(label="speedup over fp32 (×)", low=low - spare, high=high + spare)


def of_figures(rows: pd.DataFrame, unit: str) -> Axis:
    """Return the axis of other figures, which all panels share."""
    ends = rows[["value", "low", "high"]].astype(float)
    low, high = ends.min().min(), ends.max().max()
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
    are_named = are_dots or (len(lines) <= MOST_NAMES and max(map(len, lines)) <= LONGEST_NAME)
    panels = []
    for title, precision, group in groups:
        marks: list[Mark] = [Rule(at=1.0, axis="x" if are_dots else "y")] if over_fp32 else []
        names: list[str] = []
        for line, tint in lines.items():
            arm = records(group[group["line"] == line].sort_values("batch_size"))
            if are_dots:
                for row in arm:
                    marks += _dot(line, tint, row, len(names) + 0.5)
                    value = f"{number(row['value'], 3)}{'×' * over_fp32}" if known(row["value"]) else "✕"
                    names.append(f"{line} {value}")
            else:
                marks += _line(line, tint, arm, x, is_named=are_named, over_fp32=over_fp32)
        panel = chart.rows_panel(title, y, names, marks) if are_dots else Panel(title=title, x=x, y=y, marks=marks)
        panels.append(replace(panel, precision=precision))
    return replace(bare, panels=panels, legend=[] if are_named else list(lines.items()))


def _dot(line: str, tint: Tint, row: Mapping[Hashable, Any], y: float) -> list[Mark]:
    """Describe a figure in a row, with its interval."""
    value, low, high = row["value"], row["low"], row["high"]
    if not known(value):
        return []
    return chart.estimate((value, low, high) if known(low) else (value, value, value), y, tint, line)


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
        says.append(f"{dict(x.ticks)[at]}: {times(value, low, high) if over_fp32 else number(value, 3)}")
        if known(low):
            whiskers.append((at, low, high))
    if points:
        in_words = f"{line}, {x.label} {'; '.join(says)}"
        name = line if is_named else ""
        marks.append(Line(points=points, whiskers=whiskers, tint=tint, name=name, says=in_words))
    return marks
