"""Figures of devices: speed and memory of each against batch size, and all devices of a report in one figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from bench.report.analysis.summary import reference_batch
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Chart, Line, Mark, Panel, Rule, Text
from bench.report.figures.training import course
from bench.report.format import known, memory_unit, number, times
from bench.report.reading.labels import slugs
from bench.report.reading.load import SUBJECT, Run
from bench.spec.metrics import THROUGHPUT, Metric, untabled
from bench.spec.precisions import BASELINE

Job = Callable[[], Chart | None]
"""Describes one figure, if there is anything to draw, once it is called: many descriptions take seconds."""
Choice = Literal["overview", "all", "none"]
"""Which figures are drawn."""
Memory = Mapping[tuple[Hashable, Hashable], float]
"""Bytes that devices have, by run and placement."""
MOST = 12
"""Most figures of single devices; with more, each recipe has one figure of its devices' batch sizes instead."""
MOST_ACROSS = 5
"""Most devices next to each other in such a figure."""
LEFT_OUT = (
    "The {count} figures of this recipe on single devices are left out, because the report has many; "
    "run_bench.py report --figures all draws them."
)


CHARACTER = 0.024
"""Width of a digit as a share of a panel's axis, where three panels stand side by side."""
ACROSS = "devices"
"""The name of the figure of all devices."""
ABOUT_ACROSS = (
    "On a logarithmic axis, at the batch size of each verdict: fp32 is joined to the fastest precision, which need not "
    "be the one advised."
)


def memories(runs: list[Run]) -> Memory:
    """Return how much memory the devices of some runs have."""
    return {
        (run.label, device["placement"]): float(device["memory_total_bytes"])
        for run in runs
        for device in run.devices
        if device.get("memory_total_bytes")
    }


def charts(
    summary: pd.DataFrame, epochs: pd.DataFrame, memory: Memory, figures: Choice = "overview"
) -> Iterator[tuple[str, Chart | str | None]]:
    """Describe the figures of all recipes, each with its workload; a remark is on figures that are left out.

    Where there would be more than ``MOST`` figures of single devices, ``overview`` has one of each recipe instead, on
    the page alone.
    """
    jobs = _of_devices(summary, epochs, memory)
    crowded = figures == "overview" and sum(map(len, jobs.values())) > MOST
    for name, file in zip(jobs, slugs([f"batches {name}" for name in jobs]), strict=True):
        if crowded and jobs[name]:
            yield name, LEFT_OUT.format(count=len(jobs[name]))
            rows = summary[summary["workload"] == name]
            jobs[name] = [partial(batches, rows, memory, name=file)]
        yield from ((name, job()) for job in jobs[name])


def _of_devices(summary: pd.DataFrame, epochs: pd.DataFrame, memory: Memory) -> dict[str, list[Job]]:
    """Return the functions that describe the figures of single devices, by workload."""
    jobs: dict[str, list[Job]] = {str(name): [] for name in summary["workload"].unique()}
    shown = ["speedup", "samples_per_s", "memory_bytes", *(metric.figure for metric in untabled())]
    courses = dict(list(epochs.groupby(SUBJECT, sort=False)))
    for key, rows in summary.groupby(SUBJECT, sort=False):
        workload, where, name = (str(rows[column].iloc[0]) for column in ("workload", "where", "slug"))
        if rows[shown].notna().any(axis=None):
            jobs[workload].append(partial(single, rows, memory, name=f"{name}-speed"))
        for batch, trained in courses[key].groupby("batch_size") if key in courses else ():
            caption = f"{workload} on {where}: training at batch size {batch:.0f}"
            file = f"{name}-training-b{batch:.0f}"
            jobs[workload].append(partial(course, trained, name=file, caption=caption))
    return jobs


# Against batch size.


def single(rows: pd.DataFrame, memory: Memory, *, name: str) -> Chart | None:
    """Describe one device: speedup, throughput and memory against batch size; None where nothing was measured.

    Args:
        rows: rows of the summary, of one subject.
        memory: the devices' memory.
        name: of the files.
    """
    first = rows.iloc[0]
    general = (_figure(rows, metric) for metric in untabled())
    drawn = [_speedup(rows), _figure(rows, THROUGHPUT), _memory(rows, memory), *general]
    panels = [panel for panel in drawn if panel is not None]
    caption = f"{first['workload']} on {first['where']}: speed and memory"
    return _of_panels(panels, rows, name=name, caption=caption, columns=max(1, len(panels)))


def batches(rows: pd.DataFrame, memory: Memory, *, name: str) -> Chart | None:
    """Describe all devices of one recipe: for each speedup and memory against batch size, side by side."""
    devices = [group for _, group in rows.groupby(SUBJECT, sort=False)]
    panels: list[Panel] = []
    columns = min(len(devices), MOST_ACROSS)
    for start in range(0, len(devices), columns):
        some = devices[start : start + columns]
        for panel in (_speedup, partial(_memory, memory=memory)):
            drawn = [panel(group, title=str(group["label"].iloc[0])) for group in some]
            if any(drawn):
                panels += [each or _empty() for each in drawn] + [_empty()] * (columns - len(some))
    caption = f"{rows['workload'].iloc[0]}: speedup and memory against batch size"
    return _of_panels(panels, rows, name=name, caption=caption, columns=columns, in_files=False)


def _of_panels(
    panels: list[Panel], rows: pd.DataFrame, *, name: str, caption: str, columns: int, in_files: bool = True
) -> Chart | None:
    if not any(panel.marks for panel in panels):
        return None
    parts = ["Speedup over fp32 with its 95 % interval."] if rows["speedup"].notna().any() else []
    parts.append("Dashed: the device's memory; ✕: out of memory, drawn at the batch size that did not fit.")
    legend, about = chart.legend(rows[rows[["step_ms", "memory_bytes"]].notna().any(axis=1)]), " ".join(parts)
    return Chart(
        name=name, caption=caption, about=about, panels=panels, columns=columns, legend=legend, in_files=in_files
    )


def _empty() -> Panel:
    return Panel(title="", x=Axis(scale="words"), y=Axis(scale="words"), marks=())


def _sizes(rows: pd.DataFrame, character: float = CHARACTER) -> Axis:
    """Return a logarithmic axis of batch sizes, with a tick at each as far as they can be read."""
    sizes = [int(size) for size in sorted(rows["batch_size"].unique())]
    ticks = [(float(size), str(size)) for size in labelled(sizes, character)]
    return Axis(label="batch size", scale="log", ticks=ticks, low=sizes[0] / 1.25, high=sizes[-1] * 1.25)


def labelled(sizes: list[int], character: float = CHARACTER) -> list[int]:
    """Return the sizes whose labels have room on a logarithmic axis: the first, the last, and what fits between.

    Args:
        sizes: from small to large.
        character: width of a digit, as a share of the axis.
    """
    span = math.log2(sizes[-1] / sizes[0]) + 2 * math.log2(1.25)

    def apart(one: int, other: int) -> bool:
        width = character * (len(str(one)) + len(str(other))) / 2
        return math.log2(other / one) / span >= width + character

    kept = [sizes[0]]
    for size in sizes[1:-1]:
        if apart(kept[-1], size) and apart(size, sizes[-1]):
            kept.append(size)
    return [*kept, sizes[-1]] if len(sizes) > 1 and apart(kept[-1], sizes[-1]) else kept


def _speedup(rows: pd.DataFrame, *, title: str = "Speedup over fp32") -> Panel | None:
    timed = rows[rows["speedup"].notna()]
    if timed.empty:
        return None
    marks = chart.speedups(timed.assign(called=timed["batch_size"].map("batch {:.0f}".format)), "batch_size", "called")
    return Panel(title=title, x=_sizes(rows), y=chart.speedup_axis(timed), marks=marks)


def _figure(rows: pd.DataFrame, metric: Metric) -> Panel | None:
    """Describe a metric's figure against batch size."""
    marks = _lines(rows, metric.figure)
    y = Axis(label=metric.unit, low=0.0)
    return Panel(title=metric.label.capitalize(), x=_sizes(rows), y=y, marks=marks) if marks else None


def _lines(rows: pd.DataFrame, column: str, per: float = 1) -> list[Mark]:
    """Describe a column against batch size, in units of ``per``, a line for each precision."""
    measured = chart.arms(rows[rows[column].notna()], "batch_size")
    return [
        Line(points=list(zip(arm["batch_size"], arm[column] / per, strict=True)), tint=name, says=name)
        for name, arm in measured
    ]


def _memory(rows: pd.DataFrame, memory: Memory, *, title: str = "Peak memory") -> Panel | None:
    most, first = float(rows["memory_bytes"].max()), rows.iloc[0]
    if not known(most):
        return None
    unit, size, _ = memory_unit(most)
    marks = _lines(rows, "memory_bytes", size)
    whole = memory.get((first["run"], first["placement"]), np.nan) / size
    peak, lost = most / size, rows[rows["memory_status"] == "oom"]
    high = 1.1 * peak
    if first["device_kind"] != "cpu" and known(whole) and (len(lost) or peak > 0.5 * whole):
        marks.append(Rule(at=whole, axis="y", label=f"{number(whole, 2)} {unit}"))
        high = 1.12 * max(whole, peak)
        for _, group in lost.groupby("batch_size"):
            for at, name in enumerate(group["precision"]):
                x = float(group["batch_size"].iloc[0]) * 1.1 ** (at - (len(lost) - 1) / 2)
                marks.append(Text(x=x, y=0.97 * whole, text="✕", tint=name))
    return Panel(title=title, x=_sizes(rows), y=Axis(label=unit, low=0.0, high=high), marks=marks)


# All devices.


def across(summary: pd.DataFrame) -> Chart | None:
    """Describe the throughput of all devices, a panel for each recipe; None where there are not two devices."""
    panels = []
    for workload, rows in summary.groupby("workload", sort=False):
        lines = [group for _, group in at_verdicts(rows).groupby("line", sort=False)]
        timed = [group for group in lines if group["samples_per_s"].notna().any()]
        if len(timed) > 1:
            panels.append(_across(str(workload), timed))
    if not panels:
        return None
    legend = chart.legend(summary[summary["samples_per_s"].notna()])
    caption, columns = "Throughput of the step on each device", min(3, len(panels))
    return Chart(name=ACROSS, caption=caption, about=ABOUT_ACROSS, panels=panels, columns=columns, legend=legend)


def _across(workload: str, lines: list[pd.DataFrame]) -> Panel:
    marks: list[Mark] = []
    ends = [float(group["samples_per_s"].max()) for group in lines]
    for place, group in enumerate(lines):
        y = place + 0.5
        timed = group[group["samples_per_s"].notna()]
        fp32 = timed[timed["precision"] == BASELINE]
        best = timed.sort_values("samples_per_s").iloc[-1]
        if len(fp32):
            span = [(float(row["samples_per_s"]), y) for row in (fp32.iloc[0], best)]
            marks.append(Line(points=span, tint=chart.SOFT, dots=False))
        for name, arm in chart.arms(timed):
            row = arm.iloc[0]
            says = f"{row['where']}, {name}: {number(row['samples_per_s'])} samples/s at batch {row['batch_size']}"
            marks.append(Line(points=[(float(row["samples_per_s"]), y)], tint=name, says=says))
        if known(best["speedup"]):
            x = float(best["samples_per_s"]) * (max(ends) / min(ends)) ** 0.05
            text = times(best["speedup"], best["low"], best["high"])
            marks.append(Text(x=x, y=y, text=text, anchor="start"))
    low = min(float(group["samples_per_s"].min()) for group in lines)
    axis = Axis(label="samples/s", scale="log", low=low / 1.3, high=max(ends) * (max(ends) / low) ** 0.3)
    return chart.rows_panel(workload, axis, [str(group["text"].iloc[0]) for group in lines], marks)


def at_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep each subject's rows at the batch size of its verdict, and number the subjects from the top.

    It adds the columns ``line`` and ``text``, which has the batch size unless all have the same.
    """
    groups = [group[group["batch_size"] == reference_batch(group)] for _, group in rows.groupby(SUBJECT, sort=False)]
    reference = pd.concat([group.assign(line=line) for line, group in enumerate(groups)], ignore_index=True)
    sizes = reference["batch_size"].map("{:.0f}".format)
    return reference.assign(text=reference["label"] + (", batch " + sizes if sizes.nunique() > 1 else ""))
