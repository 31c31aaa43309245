"""Figures that compare more than precisions: the speedup matrix, and the values of a parameter."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bench.report.analysis.matrix import Matrix
from bench.report.figures import figure
from bench.report.figures.chart import PLAIN, Axis, Bar, Chart, Mark, Panel, Text
from bench.report.tables.comparisons import BATCH_SIZE, Swept
from bench.report.tables.matrix import LARGEST, has_intervals, legend, written

MOST_SETUPS = 20
"""Setups of the largest matrix that can be read as a figure."""
DARK = 0.6
"""Share of the strongest tint above which a cell's text is white."""
LONGEST_NAME = 44
MOST_TICKS = 20
"""An axis with more values than this has no tick at each."""
APART = 0.11
"""Share of an axis below which two short labels would touch."""


def heat_map(matrix: Matrix) -> Chart | None:
    """Describe a matrix of at most ``MOST_SETUPS``: how many times as fast a row's setup is as a column's."""
    if len(matrix.setups) > MOST_SETUPS:
        return None
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
        about=". ".join(["Each figure is how many times as fast its row is as its column", *legend(matrix)]) + ".",
        panels=[panel],
        columns=1,
        in_files=len(setups) <= LARGEST,
    )


def _short(name: str) -> str:
    """Keep both ends of a long name: the device and the precision."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def against_value(sweep: Swept) -> Chart | None:
    """Describe speedup against the value, a panel for each group with all else equal; None where values are words."""
    rows = sweep.rows.assign(number=pd.to_numeric(sweep.rows["value"], errors="coerce"))
    timed = rows[rows["speedup"].notna()]
    if rows["number"].isna().any() or timed["number"].nunique() < 2:
        return None
    panels = [_sweep(group, sweep.name) for _, group in replace(sweep, rows=timed).groups()]
    return Chart(
        name=re.sub(r"[^a-z0-9]+", "-", f"sweep-{sweep.suite}-{sweep.name}".lower()),
        caption=f"{sweep.suite}: speedup against {sweep.name}",
        about="Speedup over fp32 at the same value, with its 95 % interval.",
        panels=panels,
        columns=min(3, max(2, len(panels))),
        legend=[(name, name) for name, _ in figure.arms(timed)],
    )


def _sweep(group: pd.DataFrame, name: str) -> Panel:
    values = sorted(map(float, group["number"].unique()))
    ticks = zip(positions(values, values), map("{:g}".format, values), strict=True)
    first = group.iloc[0]
    parts = [str(first["where"]), str(first["rest"])]
    parts += [f"batch {first['batch_size']:.0f}"] if name != BATCH_SIZE else []
    return Panel(
        title=", ".join(filter(None, parts)),
        x=Axis(label=name, ticks=list(ticks) if len(values) <= MOST_TICKS else ()),
        y=figure.speedup_axis(group),
        marks=figure.speedups(group.assign(at=positions(group["number"], values)), "at", "value"),
    )


def positions(numbers: Iterable[float], values: Sequence[float]) -> list[float]:
    """Return where numbers are on the axis: evenly spaced by order where labels next to each other would touch."""
    tightest = min(np.diff(values), default=1.0)
    even = len(values) <= MOST_TICKS and tightest < APART * (values[-1] - values[0])
    return [float(values.index(number)) if even else float(number) for number in numbers]
