"""The plots of one subject: speed and memory against batch size, and the course of training."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report import axes as house
from bench.report.format import memory_unit
from bench.report.load import SUBJECT
from bench.report.summary import precision_rank
from bench.spec import BASELINE

Panel = Callable[[Axes, pd.DataFrame], None]
PANEL_INCHES = (3.7, 3.5)
NARROWEST_INCHES = 6.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A drawn figure: the name of its files, without suffix, and what it shows."""

    name: str
    caption: str
    svg: str


def draw(summary: pd.DataFrame, epochs: pd.DataFrame, folder: Path) -> dict[str, list[Plot]]:
    """Draw all that there are data for into ``folder``; return the plots of each workload."""
    plots: dict[str, list[Plot]] = {}
    curves = dict(list(epochs.groupby(SUBJECT, sort=False))) if len(epochs) else {}
    for key, rows in summary.groupby(SUBJECT, sort=False):
        first = rows.iloc[0]
        name, subject = str(first["slug"]), f"{first['workload']} on {first['where']}"
        found = plots.setdefault(str(first["workload"]), [])
        if speed := _panels(rows, SPEED_PANELS):
            caption = f"{subject}: speed and memory"
            found.append(_save(speed, rows, f"{name}-speed", caption, folder))
        for batch, trained in curves[key].groupby("batch_size") if key in curves else ():
            if course := _panels(trained, TRAINING_PANELS):
                caption = f"{subject}: training at batch size {batch:.0f}"
                found.append(_save(course, trained, f"{name}-training-b{batch:.0f}", caption, folder))
    return plots


def _panels(rows: pd.DataFrame, panels: dict[Panel, tuple[str, ...]]) -> list[Panel]:
    """Return the panels that there is something to draw in."""
    return [panel for panel, columns in panels.items() if rows[list(columns)].notna().all(axis=1).any()]


def _save(panels: list[Panel], rows: pd.DataFrame, name: str, caption: str, folder: Path) -> Plot:
    width = max(PANEL_INCHES[0] * len(panels), NARROWEST_INCHES)
    with mpl.rc_context(house.STYLE):
        figure = Figure(figsize=(width, PANEL_INCHES[1]), layout="constrained")
        for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
            panel(axes, rows)
        figure.suptitle(textwrap.fill(caption, int(10 * width)), fontsize=11, fontweight="bold")
        handles = {
            text: line for axes in figure.axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if handles:
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), int(width / 1.4))
            )
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # keeps the layout that the first drawing found, and need not find it again
        figure.savefig(folder / f"{name}.png", dpi=144, metadata={"Software": None})
    (folder / f"{name}.svg").write_text(text.getvalue(), encoding="utf-8")
    return Plot(name=name, caption=caption, svg=text.getvalue())


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


def _course(axes: Axes, rows: pd.DataFrame, x: str, y: str, *, style: str = "-", label: str = "") -> None:
    """Draw the mean over seeds, epoch by epoch, and the range of the seeds around it."""
    for name, arm in _arms(rows):
        finite = arm[np.isfinite(arm[y])]
        if finite.empty:
            continue
        epochs = finite.groupby("epoch")
        mean, place = epochs[y].mean(), epochs[x].mean()
        marks = house.marker(name) if len(mean) <= 12 else None
        axes.plot(place, mean, style, color=house.colour(name), marker=marks, markersize=4, label=f"{name}{label}")
        if (epochs.size() > 1).any():
            axes.fill_between(
                place, epochs[y].min(), epochs[y].max(), color=house.colour(name), alpha=0.15, linewidth=0
            )


def _loss(axes: Axes, rows: pd.DataFrame) -> None:
    _course(axes, rows, "epoch", "train_loss", label=" train")
    _course(axes, rows, "epoch", "test_loss", style=":", label=" test")
    losses = rows[["train_loss", "test_loss"]].to_numpy(dtype=float)
    losses = losses[np.isfinite(losses)]
    if losses.size and losses.min() > 0 and losses.max() > 30 * losses.min():
        axes.set_yscale("log")
    house.epoch_axis(axes, int(rows["epoch"].max()))
    axes.set_title("Loss")
    axes.set_ylabel("loss")


def _accuracy(axes: Axes, rows: pd.DataFrame) -> None:
    _course(axes, rows, "epoch", "test_accuracy_pct", style=":", label=" test")
    house.epoch_axis(axes, int(rows["epoch"].max()))
    axes.set_title("Test accuracy")
    axes.set_ylabel("test accuracy (%)")


def _accuracy_over_time(axes: Axes, rows: pd.DataFrame) -> None:
    _course(axes, rows, "elapsed_s", "test_accuracy_pct", style=":", label=" test")
    axes.set_xlim(left=0)
    axes.set_title("Test accuracy against time")
    axes.set_xlabel("training time (s)")
    axes.set_ylabel("test accuracy (%)")


SPEED_PANELS: dict[Panel, tuple[str, ...]] = {
    _speedup: ("speedup",),
    _throughput: ("samples_per_s",),
    _memory: ("memory_bytes",),
}
TRAINING_PANELS: dict[Panel, tuple[str, ...]] = {
    _loss: ("train_loss",),
    _accuracy: ("test_accuracy_pct",),
    _accuracy_over_time: ("test_accuracy_pct", "elapsed_s"),
}
