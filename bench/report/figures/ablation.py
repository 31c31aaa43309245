"""An ablation as a step plot: time per epoch, peak memory and accuracy of each ablation step."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.report.analysis.ablation import AblationSummary
from bench.report.figures import figure
from bench.report.figures.figure import Plot
from bench.report.format import MIB, known, number
from bench.spec.precisions import BASELINE
from bench.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = "bar: median step × steps of an epoch\ndot and whisker: fp32's bar ÷ speedup over fp32, with its 95 % interval"
"""Two estimates of time per epoch; the verdict rests on the second, in which the machine's drift cancels."""
MOST = 2.5
"""The axis ends at this multiple of the highest bar: a wider interval is cut off."""


def draw(ladder: AblationSummary, folder: Path) -> Plot | None:
    """Draw time per epoch, peak memory, and accuracy where it was trained; None where no step was timed."""
    rows = ladder.rows
    if rows["step_ms"].isna().all():
        return None
    name = re.sub(r"[^a-z0-9-]+", "-", ladder.slug.lower())
    drawn = {_times: True, _memories: rows["memory_bytes"].notna().any(), _accuracies: rows["accuracy"].notna().any()}
    panels = [partial(panel, rows=rows) for panel, wanted in drawn.items() if wanted]
    return figure.save([panels], name=name, caption=f"Ladder: {ladder.title}", folder=folder, panel_inches=(5.0, 4.3))


def _times(axes: Axes, rows: pd.DataFrame) -> None:
    base = rows.loc[rows["added"] == BASELINE, "epoch_s"].max()
    bounds = np.full((len(rows), 3), np.nan)
    for place, over in enumerate(rows["over_first"]):
        if isinstance(over, Interval) and over.low is not None and over.high is not None:
            bounds[place] = base / over.high, base / over.center, base / over.low
    unit, seconds = figure.time_unit(float(rows["epoch_s"].max()))
    _bars(axes, rows, rows["epoch_s"] / seconds, bounds / seconds)
    axes.set_ylabel(f"time per epoch ({unit})")
    axes.set_title("Time per epoch, 95 % interval against fp32")
    axes.set_xlabel(DRAWN, fontsize=8)


def _memories(axes: Axes, rows: pd.DataFrame) -> None:
    _bars(axes, rows, rows["memory_bytes"] / MIB)
    axes.set_ylabel("peak memory (MiB)")
    axes.set_title("Peak memory, each alone in a process")


def _accuracies(axes: Axes, rows: pd.DataFrame) -> None:
    for place, interval in enumerate(rows["accuracy"]):
        if not isinstance(interval, Interval):
            continue
        error = None if interval.half_width is None else [[interval.half_width]] * 2
        axes.errorbar(place, interval.center, yerr=error, fmt="o", color=figure.INK, capsize=3, markersize=4)
        at = (place, interval.center)
        axes.annotate(f"{interval.center:.2f}", at, (6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_ylabel("test accuracy (%)")
    axes.set_title("Accuracy where trained, 95 % over seeds")
    _x_axis(axes, rows)


def _x_axis(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set_xticks(np.arange(len(rows)), list(rows["added"]), rotation=25, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.grid(visible=False, axis="x")


def _bars(axes: Axes, rows: pd.DataFrame, heights: pd.Series, bounds: np.ndarray | None = None) -> None:
    """Draw bars and steps of these heights, in the colour of the precision that each ablation step computes in.

    ``bounds`` are low, middle and high of each one's interval. What is unknown is NaN.
    """
    centers = np.arange(len(rows))
    colours = [figure.colour(name) for name in rows["precision"]]
    labels = rows["precision"].where(heights.notna(), "_").tolist()  # no legend of "_"
    axes.bar(centers, heights, width=0.7, color=colours, alpha=0.25, zorder=2, label=labels)
    axes.stairs(heights, np.arange(len(rows) + 1) - 0.5, color=figure.INK, linewidth=1.4, zorder=3)
    tops = heights.to_numpy(dtype=float)
    if bounds is not None:
        low, middle, high = bounds.T
        errors = [middle - low, high - middle]
        axes.errorbar(centers, middle, yerr=errors, fmt="o", markersize=4, color=figure.INK, capsize=3, zorder=4)
        tops = np.minimum(np.fmax(tops, high), MOST * float(np.nanmax(tops)))
    style: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "fontsize": 8}
    box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}  # over a bar of its error
    for center, height, top, step, word in zip(centers, heights, tops, rows["step_ms"], rows["status"], strict=True):
        if known(height):
            axes.annotate(number(height), (center, top), **style, bbox=box, zorder=5)
        elif not known(step):
            axes.annotate(f"× {word}", (center, 0), **style, rotation=90, va="bottom", color=figure.INK)
    axes.set_ylim(0, 1.15 * float(np.nanmax(tops)) if np.isfinite(tops).any() else 1.0)
    _x_axis(axes, rows)
