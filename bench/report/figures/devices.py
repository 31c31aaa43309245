"""Figures of devices: speed and memory of each against batch size, or of all devices of a recipe in one figure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from bench.report.analysis.batches import reference_batch
from bench.report.figures import figure
from bench.report.figures.figure import Panel, Plot
from bench.report.figures.training import draw_course
from bench.report.format import memory_unit
from bench.report.reading.labels import slugs
from bench.report.reading.load import SUBJECT
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Job = Callable[[], Plot | None]
"""Draws one figure, if there is anything to draw."""
Choice = Literal["overview", "all", "none"]
"""Which figures are drawn."""
MOST = 12
"""Most figures of single devices; with more, recipes of several devices get one figure of all devices instead."""
SEVERAL = 3
"""Fewest devices of a recipe for such a figure."""
LEFT_OUT = (
    "The {count} figures of this recipe on single devices are left out, because the report has many; "
    "run_bench.py report --figures all draws them."
)
CHARACTER = 0.03
"""Width of a digit as a share of a panel's axis: 5.7 of about 190 points."""


class Measure(NamedTuple):
    """A panel of the figure of all devices: its columns of the summary, its title and its unit."""

    column: str
    title: str
    unit: str
    low: str = ""
    high: str = ""


SPEEDUP = Measure("speedup", "Speedup over fp32", "speedup (×), 95 % interval", "low", "high")
ACCURACY = Measure("accuracy_pct", "Test accuracy", "%, ± one standard deviation", "accuracy_low", "accuracy_high")
MEASURES = (
    SPEEDUP,
    Measure("samples_per_s", "Throughput", "samples/s"),
    Measure("memory_bytes", "Peak memory", ""),
    Measure("time_per_epoch_s", "Time per epoch", "s"),
    ACCURACY,
)


def draw(
    summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path, figures: Choice = "overview"
) -> tuple[list[tuple[str, Plot | None]], dict[str, str]]:
    """Draw the figures of all recipes; return each with its workload, and a remark by workload on figures left out.

    Where there would be more than ``MOST`` figures of single devices, ``overview`` draws one of all devices of each
    recipe that was measured on ``SEVERAL`` or more.
    """
    jobs = _of_devices(summary, epochs, folder)
    crowded = figures == "overview" and sum(map(len, jobs.values())) > MOST
    remarks = {}
    for name, file in zip(jobs, slugs([f"devices {name}" for name in jobs]), strict=True):
        rows = summary[summary["workload"] == name]
        if crowded and jobs[name] and len(rows[SUBJECT].drop_duplicates()) >= SEVERAL:
            remarks[name] = LEFT_OUT.format(count=len(jobs[name]))
            jobs[name] = [partial(draw_overview, rows, name=file, workload=name, folder=folder)]
    return [(name, job()) for name, own in jobs.items() for job in own], remarks


def _of_devices(
    summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path
) -> dict[str, list[Callable[[], Plot | None]]]:
    """Return the functions that draw the figures of single devices, by workload."""
    jobs: dict[str, list[Callable[[], Plot | None]]] = {str(name): [] for name in summary["workload"].unique()}
    courses = dict(list(epochs.groupby(SUBJECT, sort=False)))
    for key, rows in summary.groupby(SUBJECT, sort=False):
        workload, where, name = (str(rows[column].iloc[0]) for column in ("workload", "where", "slug"))
        panels = [partial(panel, rows=rows) for panel, column in SPEED_PANELS.items() if rows[column].notna().any()]
        if panels:
            caption = f"{workload} on {where}: speed and memory"
            jobs[workload].append(partial(figure.save, [panels], name=f"{name}-speed", caption=caption, folder=folder))
        for batch, trained in courses[key].groupby("batch_size") if key in courses else ():
            caption = f"{workload} on {where}: training at batch size {batch:.0f}"
            file = f"{name}-training-b{batch:.0f}"
            jobs[workload].append(partial(draw_course, trained, name=file, caption=caption, folder=folder))
    return jobs


def _speedup(axes: Axes, rows: pd.DataFrame) -> None:
    rows = rows[rows["speedup"].notna()]
    several, arms = rows["batch_size"].nunique() > 1, figure.arms(rows, "batch_size")
    for index, (name, arm) in enumerate(arms):
        offset = 2 ** (0.05 * (index - (len(arms) - 1) / 2))
        axes.errorbar(
            arm["batch_size"].to_numpy() * offset if several else np.array([float(index)]),
            arm["speedup"].to_numpy(),
            yerr=figure.errors(arm["speedup"], arm["low"], arm["high"]),
            capsize=3,
            linestyle="-" if several else "none",
            label=name if several else None,
            **figure.look(name),
        )
    _x_axis(axes, rows)
    figure.speedup_axis(axes)
    axes.set_title("Speedup over fp32")


def _throughput(axes: Axes, rows: pd.DataFrame) -> None:
    _against_batch(axes, rows, "samples_per_s")
    axes.set_title("Throughput")
    axes.set_ylabel("samples/s")


def _memory(axes: Axes, rows: pd.DataFrame) -> None:
    unit, size, _ = memory_unit(rows["memory_bytes"].max())
    _against_batch(axes, rows, "memory_bytes", size)
    axes.set_title("Peak memory")
    axes.set_ylabel(unit)


SPEED_PANELS: dict[Callable[..., None], str] = {
    _speedup: "speedup",
    _throughput: "samples_per_s",
    _memory: "memory_bytes",
}
"""Each panel, with the column that it draws."""


def _against_batch(axes: Axes, rows: pd.DataFrame, column: str, scale: float = 1) -> None:
    """Draw a column as lines over batch sizes or, at one batch size, as bars."""
    rows = rows[rows[column].notna()]
    several = rows["batch_size"].nunique() > 1
    for index, (name, arm) in enumerate(figure.arms(rows, "batch_size")):
        if several:
            axes.plot(arm["batch_size"], arm[column] / scale, label=name, **figure.look(name))
        else:
            axes.bar(index, arm[column].iloc[0] / scale, width=0.6, color=figure.colour(name))
    _x_axis(axes, rows)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(figure.in_full)


def _x_axis(axes: Axes, rows: pd.DataFrame) -> None:
    """Make x an axis of batch sizes or, with only one batch size, of precisions."""
    sizes = [int(size) for size in sorted(rows["batch_size"].unique())]
    if len(sizes) > 1:
        batch_axis(axes, sizes)
        return
    names = [name for name, _ in figure.arms(rows)]
    margin = 0.6 if len(names) > 1 else 1.0
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-margin, len(names) - 1 + margin)
    axes.set_xlabel(f"precision, at batch size {sizes[0]}")
    axes.grid(visible=False, axis="x")


def batch_axis(axes: Axes, sizes: list[int]) -> None:
    """Make x a log2 axis of batch sizes, with a tick at each size that was measured, labels permitting."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_xlabel("batch size")
    axes.xaxis.set_minor_locator(FixedLocator(sizes if len(sizes) <= figure.MOST_TICKS else []))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(*zip(*batch_labels(sizes), strict=True))
    axes.tick_params(axis="x", which="major", length=0, pad=6)
    axes.grid(visible=False, axis="x")


def batch_labels(sizes: list[int]) -> list[tuple[float, str]]:
    """Place labels of sizes on a log2 axis; sizes whose labels would overlap share one."""
    span = max(np.log2(sizes[-1] / sizes[0]), 1.0)

    def center(group: list[int]) -> float:
        return float(np.log2(group).mean())

    def label(group: list[int]) -> str:
        return "\n".join(map(str, group)) if len(group) <= 2 else f"{group[0]}\n… {group[-1]}"

    def width(group: list[int]) -> float:
        return CHARACTER * max(map(len, label(group).split("\n")))

    groups = [[size] for size in sizes]
    while len(groups) > 1:
        gaps = [
            (center(after) - center(before)) / span - (width(before) + width(after)) / 2
            for before, after in itertools.pairwise(groups)
        ]
        tightest = int(np.argmin(gaps))
        if gaps[tightest] >= CHARACTER:
            break
        groups[tightest : tightest + 2] = [groups[tightest] + groups[tightest + 1]]
    return [(2 ** center(group), label(group)) for group in groups]


def draw_overview(rows: pd.DataFrame, *, name: str, workload: str, folder: Path) -> Plot | None:
    """Draw all devices of one workload from its rows of the summary; None if there is nothing to draw."""
    reference = at_verdicts(rows)
    measures = [measure for measure in MEASURES if np.isfinite(reference[measure.column]).any()]
    panels: list[Panel] = [partial(_panel, rows=reference, measure=measure) for measure in measures]
    if not panels:
        return None
    sizes, count = reference["batch_size"].unique(), reference["line"].nunique()
    caption = f"{workload} on {count} devices"
    caption += f" at batch size {sizes[0]:.0f}" if len(sizes) == 1 else ", each at the batch size of its verdict"
    inches = (2.5, 0.9 + 0.34 * count)
    return figure.save([panels], name=name, caption=caption, folder=folder, panel_inches=inches, share_y=True)


def at_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep each subject's rows at the batch size of its verdict, and number the subjects from the top.

    It adds the columns ``line``, ``label`` (with the batch size unless all have the same), and ``accuracy_low`` and
    ``accuracy_high``, one standard deviation over seeds below and above the mean.
    """
    groups = [group[group["batch_size"] == reference_batch(group)] for _, group in rows.groupby(SUBJECT, sort=False)]
    reference = pd.concat([group.assign(line=line) for line, group in enumerate(groups)], ignore_index=True)
    sizes = reference["batch_size"].map("{:.0f}".format)
    reference["label"] = reference["where"] + (", batch " + sizes if sizes.nunique() > 1 else "")
    deviation = reference["accuracy_sd"].fillna(0)
    mean = reference["accuracy_pct"]
    return reference.assign(accuracy_low=mean - deviation, accuracy_high=mean + deviation)


def _panel(axes: Axes, rows: pd.DataFrame, measure: Measure) -> None:
    """Draw one measure, the precisions of a device one below the other so that none hides another."""
    unit, size = measure.unit, 1
    if measure.column == "memory_bytes":
        unit, size, _ = memory_unit(rows["memory_bytes"].max())
    arms = figure.arms(rows)
    if measure is SPEEDUP:
        axes.axvline(1.0, color=figure.colour(BASELINE), linewidth=1.4, linestyle="--")
    for index, (name, arm) in enumerate(arms):
        finite = arm[np.isfinite(arm[measure.column])]
        center = finite[measure.column] / size
        lines = finite["line"] + 0.16 * (index - (len(arms) - 1) / 2)
        errors = figure.errors(center, finite[measure.low], finite[measure.high]) if measure.low else None
        axes.errorbar(
            center.to_numpy(), lines.to_numpy(), xerr=errors, linestyle="none", label=name, **figure.look(name)
        )
    labels = rows.drop_duplicates("line")["label"].tolist()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(figure.in_full)
    if measure is not ACCURACY:
        axes.set_xlim(left=0)
    axes.set_title(measure.title)
    axes.set_xlabel(unit)
