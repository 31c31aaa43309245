"""Figures that compare more than precisions: the speedup matrix, and the values of a parameter."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bench.report.analysis.matrix import Matrix
from bench.report.figures import figure, files
from bench.report.figures.chart import PLAIN, Axis, Bar, Chart, Mark, Panel, Text
from bench.report.figures.figure import Plot
from bench.report.tables.comparisons import BATCH_SIZE, Swept
from bench.report.tables.matrix import LARGEST, has_intervals, legend, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SETUPS = 20
"""Setups of the largest matrix that can be read as a figure."""
DARK = 0.6
"""Share of the strongest tint above which a cell's text is white."""
LONGEST_NAME = 44
APART = 0.11
"""Share of an axis below which two short labels would touch."""


def draw_matrix(matrix: Matrix, folder: Path) -> Plot | None:
    """Draw a matrix: to files of at most ``LARGEST`` setups, on the page of at most ``MOST_SETUPS``."""
    if len(matrix.setups) > MOST_SETUPS:
        return None
    chart = heat_map(matrix)
    return files.draw(chart, folder) if len(matrix.setups) <= LARGEST else files.on_page(chart)


def heat_map(matrix: Matrix) -> Chart:
    """Describe a matrix: how many times as fast the setup of a row is as that of a column."""
    setups, marked, size = matrix.setups, has_intervals(matrix), len(matrix.setups)
    logs = {
        (row, column): math.log2(matrix.over(one, other).center)
        for (row, one), (column, other) in itertools.product(enumerate(setups), repeat=2)
    }
    reach = max(0.05, *map(abs, logs.values()))
    marks: list[Mark] = []
    for (row, column), log in logs.items():
        one, other = setups[row], setups[column]
        text, heat = written(matrix, one, other, marked), log / reach
        marks.append(Bar(x=(column, column + 1), y=(row, row + 1), tint=PLAIN, heat=heat))
        marks.append(Text(x=column + 0.5, y=row + 0.5, text=text, inverse=abs(heat) > DARK))
    panel = Panel(
        title="",
        x=Axis(
            label=f"over setup number, {matrix.batches.split(',')[0]}",
            scale="words",
            ticks=[(place + 0.5, str(place + 1)) for place in range(size)],
        ),
        y=Axis(
            scale="words", ticks=[(place + 0.5, f"{place + 1}. {_short(one.name)}") for place, one in enumerate(setups)]
        ),
        marks=marks,
        rows=size,
    )
    return Chart(
        name=matrix.slug,
        caption=f"{matrix.title}: times as fast, by {matrix.basis}",
        about=" ".join(["Each figure is how many times as fast its row is as its column.", *legend(matrix)]),
        panels=[panel],
        columns=1,
    )


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
