"""The plots of each subject: speed and memory against batch size here, the course of training in ``curves``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from bench.report.analysis.verdict import reference_batch
from bench.report.figures import axes as house
from bench.report.figures.axes import Panel, Plot
from bench.report.figures.curves import draw_course
from bench.report.figures.drawing import Drawing, Job, started
from bench.report.format import memory_unit
from bench.report.reading.labels import slugs
from bench.report.reading.load import SUBJECT
from bench.spec.precisions import BASELINE, precision_rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Many devices in one figure: a line for each device, a mark for each precision, at the batch size of its verdict.


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
TAKEN = [*SUBJECT, "where", "precision", "batch_size", "low", "high", "accuracy_sd", "step_ms", "train_status"]
TAKEN += [figure.column for figure in FIGURES]
"""Columns of the summary that are needed here."""


def at_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep of each subject the rows at the batch size of its verdict, and number the subjects from the top.

    Args:
        rows: rows of the summary, of one workload.

    Returns:
        The rows with ``line``, ``label``, and ``accuracy_low`` and ``accuracy_high``, one standard deviation over
        seeds from the mean. A label tells the batch size where it is not the same for all.
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
        rows: rows of the summary with ``TAKEN``.
        name: name of the files, without suffix.
        workload: what was trained, for the title.
        folder: where the files go.
    """
    found = at_verdicts(rows)
    panels: list[Panel] = [
        partial(_panel, figure=figure) for figure in FIGURES if np.isfinite(found[figure.column]).any()
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
    names = sorted(rows["precision"].unique(), key=precision_rank)
    if figure is SPEEDUP:
        axes.axvline(1.0, color=house.colour(BASELINE), linewidth=1.4, linestyle="--")
    for index, name in enumerate(names):
        arm = rows[(rows["precision"] == name) & np.isfinite(rows[figure.column])]
        center = arm[figure.column].to_numpy() / size
        aside = 0.16 * (index - (len(names) - 1) / 2)
        look: dict[str, Any] = {"color": house.colour(name), "marker": house.marker(name), "label": name}
        axes.errorbar(
            center, arm["line"].to_numpy() + aside, xerr=_spread(arm, figure, center), linestyle="none", **look
        )
    _lines(axes, rows)
    if figure is not ACCURACY:
        axes.set_xlim(left=0)
    axes.set_title(figure.title)
    axes.set_xlabel(unit)


def _spread(arm: pd.DataFrame, figure: Figure, center: np.ndarray) -> list[np.ndarray] | None:
    if not figure.low:
        return None
    ends = [arm[end].to_numpy(dtype=float) for end in (figure.low, figure.high)]
    return [np.nan_to_num(np.abs(end - center)) for end in ends]


def _lines(axes: Axes, rows: pd.DataFrame) -> None:
    """Make y a list of devices, the first on top."""
    labels: Sequence[str] = rows.drop_duplicates("line")["label"].tolist()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(house.in_full())


Choice = Literal["overview", "all", "none"]
"""Which figures are drawn."""
MOST = 12
"""With more figures of single devices than this, recipes of several devices have one of all their devices instead."""
SEVERAL = 3
"""Devices of one recipe from which on that is worth doing."""
LEFT_OUT = (
    "The {count} figures of this recipe on single devices are left out of a report of so many; "
    "run_bench.py report --figures all draws them."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Figures of recipes that are being drawn, beside whatever else is done meanwhile."""

    names: list[str]
    """Workloads, in their order."""
    workloads: list[str]
    """Of each figure."""
    drawing: Drawing
    replaced: dict[str, int]
    """Workloads with an overview, and how many figures of single devices it stands for."""

    def finish(self) -> dict[str, list[Plot]]:
        """Return the plots of each workload, when all are drawn."""
        plots: dict[str, list[Plot]] = {name: [] for name in self.names}
        for workload, plot in zip(self.workloads, self.drawing.plots(), strict=True):
            plots[workload] += [plot] if plot else []
        return plots

    def left_out(self) -> dict[str, str]:
        """Say of each workload which figures were not drawn, and how to get them."""
        return {name: LEFT_OUT.format(count=count) for name, count in self.replaced.items()}


@contextmanager
def begin(
    summary: pd.DataFrame,
    epochs: pd.DataFrame,
    folder: Path,
    figures: Choice = "overview",
    drawers: Executor | None = None,
) -> Iterator[Figures]:
    """Begin to draw into ``folder`` all that there are data for.

    Args:
        summary: rows of ``summary.summarise``.
        epochs: rows of ``Runs.epochs``.
        folder: where the files go.
        figures: ``overview`` draws, where there would be more than ``MOST`` figures of single devices, one of all
            devices of each recipe that was measured on ``SEVERAL`` or more; ``all`` each device; ``none`` nothing.
        drawers: processes that are ready to draw.
    """
    jobs = _jobs(summary, epochs, folder) if figures != "none" else {}
    crowded = figures == "overview" and sum(map(len, jobs.values())) > MOST
    replaced: dict[str, int] = {}
    names = [str(name) for name in summary["workload"].unique()]
    files = dict(zip(names, slugs([f"devices {name}" for name in names]), strict=True))
    for name in names:
        rows = summary[summary["workload"] == name]
        if crowded and jobs[name] and len(rows[SUBJECT].drop_duplicates()) >= SEVERAL:
            replaced[name] = len(jobs[name])
            jobs[name] = [partial(draw_overview, rows[TAKEN], name=files[name], workload=name, folder=folder)]
    workloads = [name for name, found in jobs.items() for _ in found]
    with started([job for found in jobs.values() for job in found], drawers) as drawing:
        yield Figures(names=names, workloads=workloads, drawing=drawing, replaced=replaced)


def draw(
    summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path, figures: Choice = "overview"
) -> dict[str, list[Plot]]:
    """Draw as ``begin`` does, and wait for it; return the plots of each workload."""
    with begin(summary, epochs, folder, figures) as begun:
        return begun.finish()


def _jobs(summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path) -> dict[str, list[Job]]:
    """Return what draws the figures of single devices, by workload."""
    jobs: dict[str, list[Job]] = {str(name): [] for name in summary["workload"].unique()}
    courses = dict(list(epochs.groupby(SUBJECT, sort=False))) if len(epochs) else {}
    for key, rows in summary.groupby(SUBJECT, sort=False):
        first = rows.iloc[0]
        name, subject = str(first["slug"]), f"{first['workload']} on {first['where']}"
        own = jobs[str(first["workload"])]
        if _panels(rows):
            caption = f"{subject}: speed and memory"
            own.append(partial(_draw_speed, rows[DRAWN], name=f"{name}-speed", caption=caption, folder=folder))
        for batch, trained in courses[key].groupby("batch_size") if key in courses else ():
            caption = f"{subject}: training at batch size {batch:.0f}"
            figure = f"{name}-training-b{batch:.0f}"
            own.append(partial(draw_course, trained, name=figure, caption=caption, folder=folder))
    return jobs


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
