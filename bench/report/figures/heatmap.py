"""The speedup matrix as a heatmap: darker is faster, also in grey, and every value is printed."""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bench.report.analysis.matrix import Matrix
from bench.report.figures import axes as house
from bench.report.figures.axes import Plot
from bench.report.tables.matrix import LARGEST, has_intervals, legend, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = "Blues"
"""Its lightness falls steadily, so that a black-and-white print has the same order."""
DARK = 0.55
"""Lightness of a cell, 0 to 1, below which its text is white."""


def draw(matrix: Matrix, folder: Path) -> Plot | None:
    """Draw a matrix of at most ``LARGEST`` setups; a larger one could not be read."""
    size = len(matrix.setups)
    if size > LARGEST:
        return None
    caption = f"{matrix.title}: times as fast, by {matrix.basis}"
    inches = (3.2 + 0.62 * size, 1.0 + 0.5 * size)
    panel = partial(_panel, matrix=matrix)
    return house.save([[panel]], pd.DataFrame(), name=matrix.slug, caption=caption, folder=folder, panel_inches=inches)


def _panel(axes: Axes, _rows: pd.DataFrame, *, matrix: Matrix) -> None:
    setups, marked = matrix.setups, has_intervals(matrix)
    logs = np.log2([[matrix.over(row, column).center for column in setups] for row in setups])
    reach = max(float(np.abs(logs).max()), 0.05)
    image = axes.imshow(logs, cmap=COLOURS, vmin=-reach, vmax=reach, aspect="auto")
    for (row, one), (column, other) in itertools.product(enumerate(setups), repeat=2):
        red, green, blue, _ = image.to_rgba(logs[row, column])
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < DARK  # luma, as ITU-R BT.601 weighs colours
        text = written(matrix, one, other, marked)
        axes.text(column, row, text, ha="center", va="center", color="white" if dark else house.INK, fontsize=8)
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


def _short(name: str, most: int = 44) -> str:
    """Keep both ends of a long name: the device and the precision."""
    half = math.floor(most / 2)
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"
