"""Figures that compare more than precisions: the speedup matrix, and the values of a parameter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bench.report.analysis.matrix import Matrix
from bench.report.figures import figure
from bench.report.figures.figure import Plot
from bench.report.tables.comparisons import BATCH_SIZE, Swept
from bench.report.tables.matrix import LARGEST, has_intervals, legend, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = "Blues"
"""Darker is faster. Lightness falls steadily, so that a black-and-white print has the same order."""
DARK = 0.55
"""Lightness of a cell, 0 to 1, below which its text is white."""
LONGEST_NAME = 44
APART = 0.11
"""Share of an axis below which two short labels would touch."""


def draw_matrix(matrix: Matrix, folder: Path) -> Plot | None:
    """Draw a matrix of at most ``LARGEST`` setups; a larger one could not be read."""
    size = len(matrix.setups)
    if size > LARGEST:
        return None
    caption = f"{matrix.title}: times as fast, by {matrix.basis}"
    inches = (3.2 + 0.62 * size, 1.0 + 0.5 * size)
    panel = partial(_heatmap, matrix=matrix)
    return figure.save([[panel]], name=matrix.slug, caption=caption, folder=folder, panel_inches=inches)


def _heatmap(axes: Axes, *, matrix: Matrix) -> None:
    """Draw every ratio as a cell with its value."""
    setups, marked = matrix.setups, has_intervals(matrix)
    logs = np.log2([[matrix.over(row, column).center for column in setups] for row in setups])
    reach = max(float(np.abs(logs).max()), 0.05)
    image = axes.imshow(logs, cmap=COLOURS, vmin=-reach, vmax=reach, aspect="auto")
    for (row, one), (column, other) in itertools.product(enumerate(setups), repeat=2):
        red, green, blue, _ = image.to_rgba(logs[row, column])
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < DARK  # luma, as ITU-R BT.601 weighs colours
        text = written(matrix, one, other, marked)
        axes.text(column, row, text, ha="center", va="center", color="white" if dark else figure.INK, fontsize=8)
    axes.set_yticks(range(len(setups)), [f"{place}. {_short(one.name)}" for place, one in enumerate(setups, 1)])
    axes.set_xticks(range(len(setups)), [str(place) for place in range(1, len(setups) + 1)])
    axes.tick_params(length=0)
    axes.set_xlabel("\n".join([f"over setup number, {matrix.batches.split(',')[0]}", *legend(matrix)]))
    axes.grid(visible=False)
    axes.set_xticks(np.arange(len(setups) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(setups) - 1) + 0.5, minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(visible=True, which="minor", color="white", linewidth=1.2)
    axes.set_axisbelow(False)


def _short(name: str) -> str:
    """Keep both ends of a long name: the device and the precision."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def draw_sweep(sweep: Swept, folder: Path) -> Plot | None:
    """Draw speedup against the value, a panel for each group with all else equal; None where values are words."""
    rows = sweep.rows.assign(number=pd.to_numeric(sweep.rows["value"], errors="coerce"))
    timed = rows[rows["speedup"].notna()]
    if rows["number"].isna().any() or timed["number"].nunique() < 2:
        return None
    name = re.sub(r"[^a-z0-9]+", "-", f"sweep-{sweep.suite}-{sweep.name}".lower())
    caption = f"{sweep.suite}: speedup against {sweep.name}"
    groups = replace(sweep, rows=timed).groups()
    grid = figure.grid([partial(_sweep, group=group, name=sweep.name) for _, group in groups])
    return figure.save(grid, name=name, caption=caption, folder=folder)


def _sweep(axes: Axes, *, group: pd.DataFrame, name: str) -> None:
    values = sorted(group["number"].unique())
    for precision, arm in figure.arms(group, "number"):
        spread = figure.errors(arm["speedup"], arm["low"], arm["high"])
        at = positions(arm["number"], values)
        axes.errorbar(at, arm["speedup"], yerr=spread, capsize=3, label=precision, **figure.look(precision))
    if len(values) <= figure.MOST_TICKS:
        axes.set_xticks(positions(values, values), [f"{value:g}" for value in values])
        axes.tick_params(axis="x", rotation=45 if len(values) > 4 else 0)
    axes.set_xlabel(name)
    figure.speedup_axis(axes)
    first = group.iloc[0]
    parts = [str(first["where"]), str(first["rest"])]
    parts += [f"batch {first['batch_size']:.0f}"] if name != BATCH_SIZE else []
    axes.set_title(", ".join(filter(None, parts)))


def positions(numbers: Iterable[float], values: Sequence[float]) -> list[float]:
    """Return where numbers are on the axis: evenly spaced by order where labels next to each other would touch."""
    tightest = min(np.diff(values), default=1.0)
    even = len(values) <= figure.MOST_TICKS and tightest < APART * (values[-1] - values[0])
    return [float(values.index(number)) if even else float(number) for number in numbers]
