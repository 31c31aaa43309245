"""The course of training: loss and accuracy against epochs and against training time, seeds as a band."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.report.figures import figure
from bench.report.figures.figure import Panel, Plot

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

TRAIN: Any = "-"
TEST: Any = (0, (3, 1.5))
"""Line styles of training data and test data."""
LOSS: dict[str, Any] = {"train_loss": TRAIN, "test_loss": TEST}
ACCURACY: dict[str, Any] = {"train_accuracy_pct": TRAIN, "test_accuracy_pct": TEST}
CROSS: Any = {"marker": "x", "markersize": 9, "markeredgewidth": 2, "zorder": 5}
MARKS = 8
"""About so many markers on a line; they distinguish the lines where there is no colour."""
LOG_FROM = 30
"""A loss that falls by more than this factor is drawn on a logarithmic axis."""


def draw_course(epochs: pd.DataFrame, *, name: str, caption: str, folder: Path) -> Plot | None:
    """Draw the training of one subject at one batch size, all precisions together; None where no loss is finite.

    There is a row of panels for the loss, and one for accuracy where there is any. A line is the mean over seeds, at
    the mean of their times; a band reaches from the lowest seed to the highest.
    """
    rows = [columns for columns in (LOSS, ACCURACY) if any(_finite(epochs, column) for column in columns)]
    if not rows:
        return None
    grid: list[list[Panel]] = [
        [partial(panel, rows=epochs, columns=columns, x=x) for x in ("epoch", "elapsed_s")] for columns in rows
    ]
    inches, handles = (4.6, 2.9), legend(epochs)
    return figure.save(
        grid, name=name, caption=caption, folder=folder, panel_inches=inches, share_y=True, legend=handles
    )


def _finite(rows: pd.DataFrame, column: str) -> bool:
    return bool(np.isfinite(rows[column]).any())


def panel(axes: Axes, rows: pd.DataFrame, *, columns: dict[str, Any], x: str) -> None:
    """Draw columns, each with its line, against ``epoch`` or ``elapsed_s``."""
    unit, size = figure.time_unit(rows["elapsed_s"].max())
    arms = figure.arms(rows.assign(elapsed_s=rows["elapsed_s"] / size))
    for column, style in columns.items():
        for index, (name, arm) in enumerate(arms):
            _line(axes, arm, x, column, style=style, precision=name, place=index / len(arms))
    what = "accuracy" if columns is ACCURACY else "loss"
    if x == "epoch":
        _epoch_axis(axes, int(rows["epoch"].max()))
        axes.set_ylabel("accuracy (%)" if columns is ACCURACY else what)
    else:
        axes.set_xlim(left=0)
        axes.set_xlabel(f"training time ({unit})")
    axes.set_title(f"{what.capitalize()} against {'epochs' if x == 'epoch' else 'training time'}")
    if columns is LOSS and falls_far(rows[list(LOSS)].to_numpy(dtype=float)):
        figure.log_axis(axes)


def falls_far(losses: np.ndarray) -> bool:
    """Say whether losses are to be drawn on a logarithmic axis."""
    finite = losses[np.isfinite(losses)]
    return bool(len(finite) and finite.min() > 0 and finite.max() > LOG_FROM * finite.min())


def _epoch_axis(axes: Axes, last: int) -> None:
    """Make x an axis of whole epochs."""
    from matplotlib.ticker import NullLocator

    step = max(1, math.ceil(last / 8))
    axes.set_xticks([1, *(epoch for epoch in range(step, last + 1, step) if epoch > 1)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("epoch")
    axes.grid(visible=False, axis="x")


def _line(axes: Axes, arm: pd.DataFrame, x: str, y: str, *, style: Any, precision: str, place: float) -> None:
    """Draw one precision: mean and range over its seeds, and a cross where a seed diverged."""
    finite = arm[np.isfinite(arm[y]) & ~_diverged(arm)]  # NaN weights have an accuracy, which means nothing
    if finite.empty:
        return
    at = finite.assign(x=finite[x], y=finite[y]).groupby("epoch")
    seeds = at.agg(x=("x", "mean"), mean=("y", "mean"), low=("y", "min"), high=("y", "max"))
    step = math.ceil(len(seeds) / MARKS)
    axes.plot(
        seeds["x"],
        seeds["mean"],
        linestyle=style,
        **figure.look(precision),
        markersize=7 - 3 * place,  # where lines coincide, markers lie side by side, or the smaller on the larger
        markevery=(int(place * step), step),
    )
    if (seeds["high"] > seeds["low"]).any():
        color = figure.colour(precision)
        axes.fill_between(seeds["x"], seeds["low"], seeds["high"], color=color, alpha=0.18, linewidth=0)
    if (diverged := _diverged(arm)).any():
        last = finite.sort_values("epoch").groupby("seed").tail(1)
        ended = last[last["seed"].isin(arm.loc[diverged, "seed"])]
        axes.plot(ended[x], ended[y], **CROSS, color=figure.colour(precision), linestyle="none")


def _diverged(rows: pd.DataFrame) -> pd.Series:
    """Say which epochs had a training loss that is not finite; training ends with such a one."""
    return pd.Series(~np.isfinite(rows["train_loss"]), index=rows.index)


def legend(rows: pd.DataFrame) -> list[Artist]:
    """Return the legend: the colours, markers, lines, bands and crosses that are drawn."""
    handles: list[Artist] = [figure.handle(name, **figure.look(name)) for name, _ in figure.arms(rows)]
    if _finite(rows, "train_loss"):
        handles.append(figure.handle("training data", color=figure.INK, linestyle=TRAIN))
    if _finite(rows, "test_loss") or _finite(rows, "test_accuracy_pct"):
        handles.append(figure.handle("test data", color=figure.INK, linestyle=TEST))
    seeds = rows.groupby("precision")["seed"].nunique()
    if seeds.max() > 1:
        count = f"{seeds.max()}" if seeds.nunique() == 1 else f"{seeds.min()} to {seeds.max()}"
        from matplotlib.patches import Patch

        handles.append(Patch(facecolor=figure.INK, alpha=0.18, label=f"range of {count} seeds (line: mean)"))
    if _diverged(rows).any():
        handles.append(figure.handle("a seed diverged after this", **CROSS, color=figure.INK, linestyle="none"))
    return handles
