"""Figures of devices: speed and memory of each, or of all devices of a recipe in one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from bench.report.analysis.batches import reference_batch
from bench.report.figures import axes as house
from bench.report.figures.axes import Panel, Plot
from bench.report.figures.training import draw_course
from bench.report.format import memory_unit
from bench.report.reading.labels import slugs
from bench.report.reading.load import SUBJECT
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Choice = Literal["overview", "all", "none"]
"""Which figures are drawn."""
MOST = 12
"""With more figures of single devices than this, recipes of several devices have one of all their devices instead."""
SEVERAL = 3
"""Devices of one recipe from which on it has such a figure."""
LEFT_OUT = (
    "The {count} figures of this recipe on single devices are left out, because the report has many; "
    "run_bench.py report --figures all draws them."
)
Job = Callable[[], Plot | None]
"""Draws one figure, if there is anything to draw."""


def draw(
    summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path, figures: Choice = "overview"
) -> tuple[dict[str, list[Plot]], dict[str, str]]:
    """Draw the figures of all recipes into ``folder``.

    Args:
        summary: rows of ``summary.summarise``.
        epochs: rows of ``Runs.epochs``.
        folder: where the files go.
        figures: ``overview`` draws, where there would be more than ``MOST`` figures of single devices, one of all
            devices of each recipe that was measured on ``SEVERAL`` or more; ``all`` each device; ``none`` nothing.

    Returns:
        The plots of each workload, and a remark on each workload of which figures were left out.
    """
    if figures == "none":
        return {}, {}
    jobs = _of_devices(summary, epochs, folder)
    crowded = figures == "overview" and sum(map(len, jobs.values())) > MOST
    files = slugs([f"devices {name}" for name in jobs])
    remarks = {}
    for (name, own), file in zip(jobs.items(), files, strict=True):
        rows = summary[summary["workload"] == name]
        if crowded and own and len(rows[SUBJECT].drop_duplicates()) >= SEVERAL:
            remarks[name] = LEFT_OUT.format(count=len(own))
            own[:] = [functools.partial(draw_overview, rows, name=file, workload=name, folder=folder)]
    return {name: [plot for job in own if (plot := job())] for name, own in jobs.items()}, remarks


def _of_devices(summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path) -> dict[str, list[Job]]:
    """Return what draws the figures of single devices, by workload."""
    jobs: dict[str, list[Job]] = {str(name): [] for name in summary["workload"].unique()}
    courses = dict(list(epochs.groupby(SUBJECT, sort=False))) if len(epochs) else {}
    for key, rows in summary.groupby(SUBJECT, sort=False):
        first = rows.iloc[0]
        name, subject = str(first["slug"]), f"{first['workload']} on {first['where']}"
        own = jobs[str(first["workload"])]
        panels = [panel for panel, column in SPEED_PANELS.items() if rows[column].notna().any()]
        if panels:
            caption = f"{subject}: speed and memory"
            file = f"{name}-speed"
            own.append(functools.partial(house.save, [panels], rows, name=file, caption=caption, folder=folder))
        for batch, trained in courses[key].groupby("batch_size") if key in courses else ():
            caption = f"{subject}: training at batch size {batch:.0f}"
            file = f"{name}-training-b{batch:.0f}"
            own.append(functools.partial(draw_course, trained, name=file, caption=caption, folder=folder))
    return jobs


def _batches(rows: pd.DataFrame) -> list[int]:
    return [int(size) for size in sorted(rows["batch_size"].unique())]


def _x_axis(axes: Axes, rows: pd.DataFrame) -> None:
    """Make x an axis of batch sizes or, of figures at one batch size, of precisions."""
    sizes = _batches(rows)
    if len(sizes) > 1:
        house.batch_axis(axes, sizes)
    else:
        house.precision_axis(axes, [name for name, _ in house.arms(rows)], sizes[0])


def _speedup(axes: Axes, rows: pd.DataFrame) -> None:
    rows = rows[rows["speedup"].notna()]
    several, arms = len(_batches(rows)) > 1, house.arms(rows, "batch_size")
    house.baseline(axes)
    for index, (name, arm) in enumerate(arms):
        aside = 2 ** (0.05 * (index - (len(arms) - 1) / 2))
        axes.errorbar(
            arm["batch_size"].to_numpy() * aside if several else np.array([float(index)]),
            arm["speedup"].to_numpy(),
            yerr=house.errors(arm["speedup"], arm["low"], arm["high"]),
            capsize=3,
            linestyle="-" if several else "none",
            label=name if several else None,
            **house.look(name),
        )
    _x_axis(axes, rows)
    house.speedup_axis(axes)
    axes.set_title("Speedup over fp32")


def _against_batch(axes: Axes, rows: pd.DataFrame, column: str, scale: float = 1) -> None:
    """Draw a column as lines over batch sizes or, at one batch size, as bars."""
    rows = rows[rows[column].notna()]
    several = len(_batches(rows)) > 1
    for index, (name, arm) in enumerate(house.arms(rows, "batch_size")):
        if several:
            axes.plot(arm["batch_size"], arm[column] / scale, label=name, **house.look(name))
        else:
            axes.bar(index, arm[column].iloc[0] / scale, width=0.6, color=house.colour(name))
    _x_axis(axes, rows)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(house.in_full())


def _throughput(axes: Axes, rows: pd.DataFrame) -> None:
    _against_batch(axes, rows, "samples_per_s")
    axes.set_title("Throughput")
    axes.set_ylabel("samples/s")


def _memory(axes: Axes, rows: pd.DataFrame) -> None:
    unit, size, _ = memory_unit(rows["memory_bytes"].max())
    _against_batch(axes, rows, "memory_bytes", size)
    axes.set_title("Peak memory")
    axes.set_ylabel(unit)


SPEED_PANELS: dict[Panel, str] = {_speedup: "speedup", _throughput: "samples_per_s", _memory: "memory_bytes"}
"""Each panel, with the column that it draws."""


class Figure(NamedTuple):
    """What a panel shows: columns of the summary, and words."""

    column: str
    title: str
    unit: str
    low: str = ""
    high: str = ""


SPEEDUP = Figure("speedup", "Speedup over fp32", "speedup (×), 95 % interval", "low", "high")
ACCURACY = Figure("accuracy_pct", "Test accuracy", "%, ± one standard deviation", "accuracy_low", "accuracy_high")
FIGURES = (
    SPEEDUP,
    Figure("samples_per_s", "Throughput", "samples/s"),
    Figure("memory_bytes", "Peak memory", ""),
    Figure("time_per_epoch_s", "Time per epoch", "s"),
    ACCURACY,
)


def at_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep each subject's rows at the batch size of its verdict, and number the subjects from the top.

    Args:
        rows: rows of the summary, of one workload.

    Returns:
        The rows with ``line``, ``label``, and ``accuracy_low`` and ``accuracy_high``, one standard deviation over
        seeds from the mean. Labels have the batch size where it is not the same for all.
    """
    kept = [group[group["batch_size"] == reference_batch(group)] for _, group in rows.groupby(SUBJECT, sort=False)]
    found = pd.concat([group.assign(line=line) for line, group in enumerate(kept)], ignore_index=True)
    sizes = found["batch_size"].map("{:.0f}".format)
    found["label"] = found["where"] + (", batch " + sizes if sizes.nunique() > 1 else "")
    spread = found["accuracy_sd"].fillna(0)
    return found.assign(accuracy_low=found["accuracy_pct"] - spread, accuracy_high=found["accuracy_pct"] + spread)


def draw_overview(rows: pd.DataFrame, *, name: str, workload: str, folder: Path) -> Plot | None:
    """Draw all devices of one workload; None where nothing was measured that could be drawn.

    Args:
        rows: rows of the summary, of one workload.
        name: name of the files, without suffix.
        workload: the recipe's name, for the title.
        folder: where the files go.
    """
    found = at_verdicts(rows)
    panels: list[Panel] = [
        functools.partial(_panel, figure=figure) for figure in FIGURES if np.isfinite(found[figure.column]).any()
    ]
    if not panels:
        return None
    sizes = found["batch_size"].unique()
    caption = f"{workload} on {found['line'].nunique()} devices"
    caption += f" at batch size {sizes[0]:.0f}" if len(sizes) == 1 else ", each at the batch size of its verdict"
    inches = (2.5, 0.9 + 0.34 * found["line"].nunique())
    return house.save([panels], found, name=name, caption=caption, folder=folder, panel_inches=inches, share_y=True)


def _panel(axes: Axes, rows: pd.DataFrame, *, figure: Figure) -> None:
    """Draw one figure: precisions lie a little below each other, so that none hides another."""
    unit, size, _ = memory_unit(rows["memory_bytes"].max()) if figure.column == "memory_bytes" else (figure.unit, 1, 0)
    arms = house.arms(rows)
    if figure is SPEEDUP:
        axes.axvline(1.0, color=house.colour(BASELINE), linewidth=1.4, linestyle="--")
    for index, (name, arm) in enumerate(arms):
        drawn = arm[np.isfinite(arm[figure.column])]
        center = drawn[figure.column] / size
        lines = drawn["line"] + 0.16 * (index - (len(arms) - 1) / 2)
        spread = house.errors(center, drawn[figure.low], drawn[figure.high]) if figure.low else None
        axes.errorbar(
            center.to_numpy(), lines.to_numpy(), xerr=spread, linestyle="none", label=name, **house.look(name)
        )
    labels = rows.drop_duplicates("line")["label"].tolist()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(house.in_full())
    if figure is not ACCURACY:
        axes.set_xlim(left=0)
    axes.set_title(figure.title)
    axes.set_xlabel(unit)
