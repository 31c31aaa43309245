"""Figures against batch size, all devices on one axis, of speedups and other metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Chart, Choice, Curve, Mark, Panel, Rule, Text, Tint
from bench.report.format import at_batch, capital, known, memory_unit, number, records
from bench.report.parts import OVERVIEW
from bench.report.reading.labels import slugs
from bench.report.reading.load import CELL
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import MEMORY, SPEED, THROUGHPUT, untabled
from bench.spec.precisions import BASELINE

# The names of its figures begin with this.
SPEEDUP = "speedup-vs-batch"
# A metric whose largest figure is this many times the smallest has a logarithmic axis: on a linear
# one the smallest would lie on the axis.
LOG_FROM = 30.0


def charts(
    summary: pd.DataFrame, figures: Choice = "overview"
) -> Iterator[tuple[str, Chart | None]]:
    """Describe the figures of all recipes, each with its place.

    The speedups come first, in the overview; others are in the section of their recipe. Only
    speedups are drawn to files, unless ``all`` figures are.
    """
    workloads = summary.groupby("workload", sort=False)
    # In the order of the groups, which are not sorted.
    names = summary["workload"].unique().tolist()
    files = slugs(names)
    tints = tints_of(summary)
    for metric in (SPEED, THROUGHPUT, MEMORY, *untabled()):
        is_speedup = metric is SPEED
        start = SPEEDUP if is_speedup else f"{metric.name}-vs-batch"
        for (workload, rows), file in zip(workloads, files, strict=True):
            described = against_batch(
                rows,
                metric,
                workload=str(workload),
                name=f"{start}-{file}",
                tints=tints,
                in_files=is_speedup or figures == "all",
            )
            yield OVERVIEW if is_speedup else str(workload), described


def tints_of(summary: pd.DataFrame) -> dict[str, Tint]:
    """Return the tint of each device by its label, the same in every figure of a report."""
    tints = {}
    for place, label in enumerate(summary["label"].unique()):
        tints[str(label)] = f"device-{place}"
    return tints


def _figures(summary: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the rows with what is drawn: ``value``, ``low``, ``high`` and ``status``.

    Those without a value are lost: they did not fit in memory. Only speedups have intervals.
    """
    status = summary[metric.status]
    rows = summary.assign(status=status, low=math.nan, high=math.nan)
    if metric is SPEED:
        rows = _speedups(rows)
    else:
        rows["value"] = rows[metric.figure]
    has_value = rows["value"].notna()
    # A precision that was measured nowhere has no line for its losses to stand on.
    with_values = rows.loc[has_value, "precision"]
    is_drawn = rows["precision"].isin(with_values)
    is_lost = rows["status"] == "oom"
    return rows[is_drawn & (has_value | is_lost)]


def _speedups(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of other precisions than fp32, with their speedups and intervals.

    Where fp32 does not fit, no precision has a speedup, and none is drawn as if it fitted.
    """
    rows = rows.assign(
        value=rows["speedup"],
        low=rows["speedup_low"],
        high=rows["speedup_high"],
    )
    is_fp32 = rows["precision"] == BASELINE
    fp32_is_lost = is_fp32 & (rows["status"] == "oom")
    cells = [rows[name] for name in CELL]
    is_without = fp32_is_lost.groupby(cells, sort=False).transform("any").astype(bool)
    is_measured = rows["status"].isin(MEASURED)
    rows.loc[is_without & is_measured, "status"] = "oom"
    return rows[~is_fp32]


def against_batch(
    summary: pd.DataFrame,
    metric: Metric,
    *,
    workload: str,
    name: str,
    tints: Mapping[str, Tint],
    in_files: bool = True,
) -> Chart | None:
    """Describe a metric against batch size: a panel for each precision with a line for each device.

    One device has one panel, with a line for each precision. Where there is one batch size, dots
    replace the lines.

    Args:
        summary: rows of the summary, of one recipe.
        metric: the metric; of step times the speedup over fp32, which itself is left out.
        workload: the recipe, as the page's filter names it.
        name: of the files.
        tints: of the devices, by label.
        in_files: whether the figure is drawn to files, too.

    Returns:
        The figure; None where nothing was measured.
    """
    is_speedup = metric is SPEED
    rows = _figures(summary, metric)
    if rows.empty:
        return None
    if is_speedup:
        y = _speedup_axis(rows)
    else:
        rows, y = _in_unit(rows, metric)
    x = _batch_axis(rows)
    has_lines = len(x.ticks) > 1
    devices = set(rows["label"])
    lines = {label: tint for label, tint in tints.items() if label in devices}
    if len(devices) > 1:
        kind = "devices" if rows["device_kind"].eq("cpu").any() else "GPUs"
        where = f", all {kind} on one axis"
        rows = rows.assign(line=rows["label"])
        groups = chart.arms(rows)
    else:
        (device,) = devices
        where = f" on {device}"
        rows = rows.assign(line=rows["precision"])
        lines = dict(chart.legend(rows))
        groups = [(device, rows)]
    panels = []
    for title, group in groups:
        if has_lines:
            panel = _lines(group, x, y, lines, is_speedup)
        else:
            panel = _dots(group, y, lines, is_speedup)
        # The page filters by precision, which a panel of one device has several of.
        precision = title if len(devices) > 1 else ""
        panels.append(replace(panel, title=title, precision=precision))
    about = []
    if is_speedup:
        about.append("Speedup over fp32, with 95 % intervals; above 1 is faster.")
        is_cut = (rows["low"] < y.low) | (rows["high"] > y.high)
        if is_cut.any():
            about.append("An interval that reaches the edge goes on beyond it.")
    if rows["value"].isna().any():
        about.append("✕: that batch size did not fit in memory, in that precision or in fp32.")
    what = "speedup" if is_speedup else metric.label
    against = " vs batch size" if has_lines else at_batch(records(rows)[0], " at batch size ")
    return Chart(
        name=name,
        caption=f"{capital(what)}{against}{where}: {workload}",
        about=" ".join(about),
        panels=panels,
        legend=list(lines.items()) if has_lines else [],
        in_files=in_files,
    )


def _batch_axis(rows: pd.DataFrame) -> Axis:
    """Return the axis of batch sizes, with a tick for each, and room for dots at its ends."""
    sizes = rows["batch_size"]
    ticks = []
    for size in sorted(sizes.unique()):
        ticks.append((float(size), f"{size:.10g}"))
    return Axis(
        label="batch size",
        scale="log",
        ticks=ticks,
        low=sizes.min() / 1.15,
        high=1.15 * sizes.max(),
    )


def _in_unit(rows: pd.DataFrame, metric: Metric) -> tuple[pd.DataFrame, Axis]:
    """Return figures in a unit that suits them, with the axis that all panels share."""
    unit = metric.unit
    size = 1
    if unit == "bytes":
        unit, size = memory_unit(rows["value"].max())
    values = rows["value"] / size
    least = values.min()
    most = values.max()
    if most > LOG_FROM * least > 0:
        axis = Axis(
            label=unit,
            scale="log",
            low=least / 1.2,
            high=1.2 * most,
        )
    else:
        # An axis from 0 to 0 would have no length.
        high = 1.06 * most or 1.0
        axis = Axis(label=unit, low=0.0, high=high)
    return rows.assign(value=values), axis


def _speedup_axis(rows: pd.DataFrame) -> Axis:
    """Return the axis of speedups, which all panels share, with 1 in it.

    An interval that would dwarf the figures goes on beyond it.
    """
    least = rows["value"].min()
    most = rows["value"].max()
    lowest = max(rows["low"].min(), least / 2)
    highest = min(rows["high"].max(), 2 * most)
    low = min(1.0, least, lowest)
    high = max(1.0, most, highest)
    spare = 0.08 * max(high - low, 0.1)
    return Axis(
        label="speedup over fp32 (×)",
        low=low - spare,
        high=high + spare,
    )


def _dots(
    group: pd.DataFrame,
    x: Axis,
    lines: Mapping[str, Tint],
    is_speedup: bool,
) -> Panel:
    """Describe figures as rows, each with its interval and with its value in its name.

    ``group`` has ``line``, ``value``, ``low`` and ``high``; without a value it did not fit.
    """
    marks: list[Mark] = []
    unit = ""
    if is_speedup:
        marks.append(Rule(at=1.0, axis="x"))
        unit = "×"
    names: list[str] = []
    for line, tint in lines.items():
        for row in records(group[group["line"] == line]):
            value = row["value"]
            if not known(value):
                names.append(f"{line} ✕")
                continue
            low = value
            high = value
            if known(row["low"]):
                low = max(row["low"], x.low)
                high = min(row["high"], x.high)
            # In the middle of its row.
            y = len(names) + 0.5
            marks += chart.estimate(value, low, high, y, tint)
            figure = number(value, 3) + unit
            names.append(f"{line} {figure}")
    return chart.rows_panel("", x, names, marks)


def _lines(
    group: pd.DataFrame,
    x: Axis,
    y: Axis,
    lines: Mapping[str, Tint],
    is_speedup: bool,
) -> Panel:
    """Describe lines with their whiskers, and crosses at batch sizes that did not fit.

    ``group`` is as of ``_dots``, with ``batch_size``.
    """
    marks: list[Mark] = []
    if is_speedup:
        marks.append(Rule(at=1.0, axis="y"))
    group = group.sort_values("batch_size")
    for line, tint in lines.items():
        points = []
        whiskers = []
        for row in records(group[group["line"] == line]):
            size = row["batch_size"]
            if not known(row["value"]):
                marks.append(Text(x=size, text="✕", tint=tint))
                continue
            points.append((size, row["value"]))
            if known(row["low"]):
                whiskers.append((size, row["low"], row["high"]))
        if points:
            marks.append(Curve(points=points, whiskers=whiskers, tint=tint))
    return Panel(
        title="",
        x=x,
        y=y,
        marks=marks,
    )
