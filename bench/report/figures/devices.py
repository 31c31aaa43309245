"""Figures against batch size, all devices on one axis, of speedups and other metrics; and against a factor's values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.sweeps import BATCH_SIZE, Sweep
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Chart, Line, Mark, Panel, Rule, Text, Tint
from bench.report.figures.svg import CHARACTER, HEIGHT, WIDEST, panel_width
from bench.report.figures.training import course
from bench.report.format import at_batch, capital, known, memory_unit, number, records, times
from bench.report.reading.labels import slug, slugs
from bench.report.reading.load import CELL, SUBJECT
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import MEMORY, SPEED, THROUGHPUT, untabled
from bench.spec.precisions import BASELINE, precision_rank

Choice = Literal["overview", "all", "none"]
"""Which figures are drawn."""
SPEEDUP = "speedup-vs-batch"
"""The names of its figures begin with this."""
MOST_TRAINED = 2
"""Most devices of a recipe whose trainings are drawn, unless all are asked for."""
LEFT_OUT = "The course of training on {count} devices is drawn by run_bench.py report --figures all."
AROUND = 68
"""Width of what is left and right of a panel's axes, in pixels."""
LINE = 12.5
"""Height of a line of labels, in pixels."""
LONGEST_LABEL, LONGEST_NAME = 0.4, 0.62
"""Most of a panel's width for labels at the ends of lines, and next to dots."""
LOG_FROM = 30.0
"""A metric whose largest figure is this many times the smallest has a logarithmic axis."""
MOST_TICKS = 20
"""An axis with more values of a factor than this has no tick at each."""
LOST = "✕: that batch size did not fit in memory"


def charts(
    summary: pd.DataFrame, epochs: pd.DataFrame, figures: Choice = "overview"
) -> Iterator[tuple[str, Chart | str | Callable[[], Chart | None] | None]]:
    """Describe the figures of all recipes, each with its workload; a remark is on figures that are left out.

    Those against batch size are described when they are called, by the process that draws them.

    The speedups come first, with an empty workload, because they are figures of the whole report. Only they are drawn
    to files, unless ``all`` figures are.
    """
    workloads = [(str(name), rows) for name, rows in summary.groupby("workload", sort=False)]
    files, tints = slugs([name for name, _ in workloads]), tints_of(summary)
    shared: dict[str, Any] = {"tints": tints, "kind": "devices" if summary["device_kind"].eq("cpu").any() else "GPUs"}
    for (name, rows), file in zip(workloads, files, strict=True):
        about = {"workload": name, "name": f"{SPEEDUP}-{file}", **shared}
        yield "", partial(_figure, rows, SPEED, about)
    for (name, rows), file in zip(workloads, files, strict=True):
        for metric in (THROUGHPUT, MEMORY, *untabled()):
            about = {"workload": name, "name": f"{metric.name}-vs-batch-{file}", **shared}
            yield name, partial(_figure, rows, metric, about | {"in_files": figures == "all"})
        yield from ((name, each) for each in _courses(rows, epochs, figures))


def _figure(rows: pd.DataFrame, metric: Metric, about: dict[str, Any]) -> Chart | None:
    """Describe a metric of a recipe against batch size; of step times the speedups."""
    figures = speedups_of(rows) if metric is SPEED else figures_of(rows, metric)
    return against_batch(figures, metric, over_fp32=metric is SPEED, **about)


def _courses(rows: pd.DataFrame, epochs: pd.DataFrame, figures: Choice) -> Iterator[Chart | str | None]:
    """Describe the trainings of a recipe, a figure for each device and batch size."""
    trained = epochs.merge(rows[[*SUBJECT, "workload", "where", "slug"]].drop_duplicates(), on=SUBJECT)
    groups = trained.groupby(["where", "slug", "batch_size"], sort=False)
    if figures != "all" and trained["where"].nunique() > MOST_TRAINED:
        yield LEFT_OUT.format(count=trained["where"].nunique())
        return
    for (where, subject, batch), group in groups:
        workload = str(group["workload"].iloc[0])
        caption = f"{workload} on {where}: training at batch size {batch:.0f}"
        name = f"{subject}-training-b{batch:.0f}"
        yield course(group, name=name, caption=caption, workload=workload, where=str(where))


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
    over_fp32: bool = False,
    in_files: bool = True,
    kind: str = "GPUs",
) -> Chart | None:
    """Describe a metric against batch size: a panel for each precision with a line for each device.

    One device has one panel, with a line for each precision. Where there is one batch size, dots replace the lines.

    Args:
        rows: figures, with the columns ``device`` (a short name), ``precision``, ``batch_size``, ``value``, ``low`` and
            ``high`` (the ends of its 95 % interval; NaN where there is none) and ``status`` (``oom`` is drawn as a
            cross).
        metric: the metric.
        workload: the recipe, as the page's filter names it.
        name: of the files.
        tints: of the devices, by name.
        over_fp32: whether the figures are changes from fp32, so that fp32 itself is left out.
        in_files: whether the figure is drawn to files, too.
        kind: of the devices.

    Returns:
        The figure; None where nothing was measured.
    """
    rows = rows[rows["precision"] != BASELINE] if over_fp32 else rows
    measured = rows[rows["value"].notna()]
    if measured.empty:
        return None
    rows, unit = _scaled(rows[rows["value"].notna() | rows["status"].eq("oom")], metric)
    devices = [device for device in tints if device in set(rows["device"])]
    precisions = sorted(measured["precision"].unique(), key=precision_rank)
    lines = devices if len(devices) > 1 else precisions
    rows = rows[rows["device"].isin(devices) & rows["precision"].isin(precisions)]
    drawn = rows.assign(line=rows["device" if len(devices) > 1 else "precision"])
    figure = SharedAxes(
        drawn, lines, tints, unit, over_fp32=over_fp32, across=len(precisions) if len(devices) > 1 else 1
    )
    groups = [(each, drawn[drawn["precision"] == each]) for each in precisions] if len(devices) > 1 else [("", drawn)]
    panels = [figure.panel(precision, group) for precision, group in groups]
    what = "speedup" if over_fp32 else metric.label
    sizes = rows["batch_size"].unique()
    against = (
        f"{what} vs batch size" if len(sizes) > 1 else f"{what}{at_batch(next(iter(records(rows))), ' at batch size ')}"
    )
    where = f" on {devices[0]}" if len(devices) == 1 else f", all {kind} on one axis"
    return Chart(
        name=name,
        caption=f"{capital(against)}{where}: {workload}",
        about=" ".join(_about(rows, over_fp32=over_fp32, rest=len(devices) - len(chart.LOOKS))),
        panels=panels,
        columns=figure.columns,
        legend=[] if figure.labelled else [(line, figure.tint(line)) for line in lines],
        in_files=in_files,
        workload=workload,
    )


def against_value(sweep: Sweep) -> Chart | None:
    """Describe speedup against the value, a panel for each group with all else equal; None where values are words.

    Values that are too close to be read, or not above 0, are evenly spaced.
    """
    all_else = sweep.groups().ngroup()
    rows = sweep.rows.assign(value=sweep.rows["speedup"], line=sweep.rows["precision"], status="ok")
    rows["batch_size"] = pd.to_numeric(sweep.rows["value"], errors="coerce")
    timed = rows[rows["value"].notna()]
    values = sorted(timed["batch_size"].unique().tolist())
    if rows["batch_size"].isna().any() or len(values) < 2:
        return None
    names: dict[float, str] = {}
    if values[0] <= 0 or len(labelled(values, CHARACTER / WIDEST)) < len(values) <= MOST_TICKS:
        names = {float(place): f"{value:g}" for place, value in enumerate(values, 1)}
        timed = timed.assign(batch_size=timed["batch_size"].map(lambda value: values.index(value) + 1.0))
    groups = [
        timed.loc[group.index].assign(device=_all_else(group.iloc[0], sweep))
        for _, group in sweep.rows.loc[timed.index].groupby(all_else)
    ]
    lines = [name for name, _ in chart.arms(timed)]
    axes = SharedAxes(timed, lines, {}, "", over_fp32=True, across=len(groups), along=sweep.name, names=names)
    return Chart(
        name=slug(f"sweep-{sweep.suite}-{sweep.name}"),
        caption=f"{sweep.suite}: speedup against {sweep.name}",
        about="Speedup over fp32 at the same value, with its 95 % interval.",
        panels=[axes.panel("", group) for group in groups],
        columns=axes.columns,
        legend=[] if axes.labelled else chart.legend(timed),
    )


def _all_else(row: pd.Series, sweep: Sweep) -> str:
    """Name what is equal in a panel."""
    batch = "" if sweep.name == BATCH_SIZE else f"batch {row['batch_size']:.0f}"
    return ", ".join(filter(None, [str(row["where"]), str(row["rest"]), batch]))


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


class SharedAxes:
    """The axes that the panels of a figure share, its lines, and the room for their labels."""

    def __init__(
        self,
        rows: pd.DataFrame,
        lines: Sequence[str],
        tints: Mapping[str, Tint],
        unit: str,
        *,
        over_fp32: bool,
        across: int,
        along: str = "batch size",
        names: Mapping[float, str] = MappingProxyType({}),
    ) -> None:
        """Arrange rows as ``against_batch`` takes them, with the column ``line``.

        ``along`` labels the axis of batch sizes, which may stand in for another quantity with ``names`` of its values.
        """
        self.lines, self.tints, self.unit, self.over_fp32 = lines, tints, unit, over_fp32
        self.sizes, self.along, self.names = sorted(rows["batch_size"].unique().tolist()), along, names
        self.is_dots = len(self.sizes) == 1
        self.columns = max(2, across if across <= 4 else 3)
        label = CHARACTER * (max(map(len, lines)) + 2 + 7 * self.is_dots)
        if self.is_dots:
            fitting = (n for n in range(self.columns, 1, -1) if label <= LONGEST_NAME * (panel_width(n) - AROUND))
            self.columns = next(fitting, 1)
        self.width = panel_width(self.columns) - AROUND
        self.labelled = self.is_dots or (label <= LONGEST_LABEL * self.width and len(lines) * LINE <= HEIGHT)
        self.room = min(LONGEST_NAME, label / self.width) if self.labelled else 0.02
        ends = [rows[name].dropna() for name in ("value", "low", "high")]
        low, high = min(each.min() for each in ends if len(each)), max(each.max() for each in ends if len(each))
        self.is_log = not over_fp32 and high > LOG_FROM * low > 0
        self.low, self.high = self._limits(float(low), float(high))

    def _limits(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends of the axis of figures."""
        if self.is_log:
            return low / 1.2, high * 1.2
        if not self.over_fp32:
            return 0.0, 1.06 * high or 1.0
        low, high = min(1.0, low), max(1.0, high)
        spare = 0.08 * max(high - low, 0.1)
        return low - spare, high + spare

    def tint(self, line: str) -> Tint:
        """Return the tint of a device or a precision."""
        return self.tints.get(line, line)

    def share(self, value: float) -> float:
        """Return how far up the axis of figures a value is."""
        at, low, high = (math.log(each) if self.is_log else each for each in (value, self.low, self.high))
        return float((at - low) / (high - low))

    def at(self, share: float) -> float:
        """Return the value at a share of the axis of figures."""
        if self.is_log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)

    def panel(self, precision: str, group: pd.DataFrame) -> Panel:
        """Describe the panel of a precision; without one, that of a device."""
        title = precision or str(group["device"].iloc[0])
        label = "speedup over fp32 (×)" if self.over_fp32 else self.unit
        scale: chart.Scale = "log" if self.is_log else "linear"
        rule = [Rule(at=1.0, axis="x" if self.is_dots else "y")] if self.over_fp32 else []
        arms = {line: group[group["line"] == line].sort_values("batch_size") for line in reversed(self.lines)}
        if self.is_dots:
            end = self.at(1 / (1 - self.room))
            x = Axis(label=label, scale=scale, low=self.low, high=end)
            marks = [mark for line, arm in arms.items() if len(arm) for mark in self._dot(line, arm)]
            y, rows = Axis(scale="words"), len(self.lines)
            return Panel(title=title, x=x, y=y, marks=[*rule, *marks], rows=rows, precision=precision)
        marks = [mark for line, arm in arms.items() for mark in self._line(line, arm)]
        marks += [*self._crosses(group), *(self._labels(arms) if self.labelled else [])]
        y = Axis(label=label, scale=scale, low=self.low, high=self.high)
        return Panel(title=title, x=self._sizes(), y=y, marks=[*rule, *marks], precision=precision)

    def _ends(self) -> tuple[float, float]:
        """Return the ends of the axis of batch sizes; on its right there is room for labels."""
        low, last = self.sizes[0] / 1.15, self.sizes[-1] * 1.05
        return low, float(low * (last / low) ** (1 / (1 - self.room)))

    def _sizes(self) -> Axis:
        """Return a logarithmic axis of batch sizes, with a tick at each as far as they can be read."""
        low, high = self._ends()
        shown = labelled(self.sizes, CHARACTER / self.width / (1 - self.room))
        ticks = [(float(size), self.names.get(size, f"{size:.10g}")) for size in shown]
        return Axis(label=self.along, scale="log", ticks=ticks, low=low, high=high)

    def _line(self, line: str, arm: pd.DataFrame) -> list[Mark]:
        """Describe a line with its whiskers."""
        rows = records(arm[arm["value"].notna()])
        whiskers = [(row["batch_size"], row["low"], row["high"]) for row in rows if known(row["low"])]
        points = [(row["batch_size"], row["value"]) for row in rows]
        says = self._says(line, rows)
        return [Line(points=points, whiskers=whiskers, tint=self.tint(line), says=says)] if points else []

    def _says(self, line: str, rows: Sequence[Mapping[Hashable, Any]]) -> str:
        if not self.over_fp32:
            return line
        each = (f"{row['batch_size']:.10g}: {times(row['value'], row['low'], row['high'])}" for row in rows)
        return f"{line}, {self.along} {'; '.join(each)}"

    def _crosses(self, group: pd.DataFrame) -> list[Mark]:
        """Describe crosses at batch sizes that did not fit, at the foot of the panel, as many abreast as have room."""
        low, high = self._ends()
        cross = 1.5 * CHARACTER / self.width
        closest = min(math.log(other / size) for size, other in itertools.pairwise(self.sizes))
        abreast = max(1, int(closest / math.log(high / low) / cross))
        marks: list[Mark] = []
        lost = group[group["value"].isna()]
        for size, rows in ((size, lost[lost["batch_size"] == size]) for size in self.sizes):
            for place, line in enumerate(rows["line"]):
                row, column = divmod(place, abreast)
                in_row = min(abreast, len(rows) - row * abreast)
                x = size * (high / low) ** ((column - (in_row - 1) / 2) * cross)
                y = self.at(0.04 + row * LINE / HEIGHT)
                marks.append(Text(x=x, y=y, text="✕", tint=self.tint(line)))
        return marks

    def _labels(self, arms: Mapping[str, pd.DataFrame]) -> list[Mark]:
        """Describe the names of lines, each as near the end of its line as the others let it be."""
        timed = {line: arm[arm["value"].notna()] for line, arm in arms.items()}
        ends = {line: tuple(arm[["batch_size", "value"]].iloc[-1]) for line, arm in timed.items() if len(arm)}
        named = [line for line in ends if not self.tint(line).startswith(chart.REST)]
        named.sort(key=lambda line: self.share(ends[line][1]))
        places = apart([self.share(ends[line][1]) for line in named], LINE / HEIGHT)
        low, high = self._ends()
        last = max((x for x, _ in ends.values()), default=low)
        x, start = (last * (high / low) ** (characters * CHARACTER / self.width) for characters in (1.2, 0.9))
        marks: list[Mark] = []
        for place, line in zip(places, named, strict=True):
            y, tint = self.at(place), self.tint(line)
            marks.append(Text(x=x, y=y, text=line, anchor="start", tint=tint))
            if ends[line][0] < last:
                marks.append(Line(points=[ends[line], (start, y)], tint=tint, dots=False, leads=True))
        return marks

    def _dot(self, line: str, arm: pd.DataFrame) -> list[Mark]:
        """Describe a row of a dot plot: the dot with its whiskers, and its name."""
        (row,) = records(arm)
        y, tint = self.lines.index(line) + 0.5, self.tint(line)
        if not known(row["value"]):
            return [Text(x=self.at(0.02), y=y, text=f"✕ {line}", anchor="start", tint=tint)]
        ends = [(end, y) for end in (row["low"], row["high"]) if known(end)]
        whole = [Line(points=ends, tint=tint, dots=False)] if ends else []
        dot = Line(points=[(row["value"], y)], tint=tint, says=self._says(line, [row]))
        right = max([row["value"], *(end for end, _ in ends)])
        text = f"{line} {number(row['value'], 3)}{'×' * self.over_fp32}"
        aside = 1.2 * CHARACTER / self.width / (1 - self.room)
        return [*whole, dot, Text(x=self.at(self.share(right) + aside), y=y, text=text, anchor="start", tint=tint)]


def apart(shares: Sequence[float], gap: float) -> list[float]:
    """Move places on an axis from 0 to 1 as little as need be to have a gap between them.

    It is isotonic regression by pooling adjacent violators (Barlow et al., Statistical Inference under Order
    Restrictions, 1972) of what is left of each place without the gaps before it.

    Args:
        shares: the places, from low to high.
        gap: the least distance.
    """
    pools: list[list[float]] = []
    for place, share in enumerate(shares):
        pools.append([share - place * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    level = [float(np.mean(pool)) for pool in pools for _ in pool]
    highest = 1 - gap * (len(shares) - 0.5)
    return [min(max(each, gap / 2), highest) + place * gap for place, each in enumerate(level)]


def labelled(sizes: list[float], character: float) -> list[float]:
    """Return the sizes whose labels have room on a logarithmic axis: the first, the last, and what fits between.

    The width of a digit, ``character``, is a share of the axis.
    """
    span = math.log2(sizes[-1] / sizes[0]) + math.log2(1.15 * 1.05)

    def fits(size: float, other: float) -> bool:
        width = character * len(f"{size:.10g}{other:.10g}") / 2
        return math.log2(other / size) / span >= width + character

    kept = [sizes[0]]
    for size in sizes[1:-1]:
        if fits(kept[-1], size) and fits(size, sizes[-1]):
            kept.append(size)
    return [*kept, sizes[-1]] if len(sizes) > 1 and fits(kept[-1], sizes[-1]) else kept
