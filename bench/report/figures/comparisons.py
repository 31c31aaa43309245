"""Figures that compare more than precisions: setups as a heat map with its ratios as a CSV, and a factor's values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from bench.report.analysis.factors import BATCH_SIZE, Varied
from bench.report.analysis.matrix import Matrix, Setup
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Chart, Panel
from bench.report.format import number
from bench.report.reading.labels import slug
from bench.results.files import write_atomically
from bench.spec.text import quoted

MOST_SETUPS = 20
"""Setups of the largest matrix that can be read as a figure."""
DARK = 0.6
"""Share of the strongest tint above which a cell's text is white."""
LONGEST_NAME = 44
UNDECIDED, UNMEASURED, UNEQUAL = "≈", "?", "*"
"""Marks of a ratio whose interval holds 1, of one that has no interval, and of one between unequal batch sizes."""
LEGEND = {
    UNDECIDED: "the 95 % interval holds 1",
    UNMEASURED: "one process or seed, so there is no interval",
    UNEQUAL: "unequal batch sizes, so a step is not the same work for both",
}
WITHOUT = " No ratio has an interval: each setup has one process or seed. Do not decide on small differences."
COLUMNS = ["basis", "setup", "batch_size", "over_setup", "over_batch_size", "times_as_fast", "low", "high"]
COLUMNS += ["equal_batch"]
"""Of the CSV of a matrix."""
MOST_TICKS = 20
"""An axis with more values than this has no tick at each."""
APART = 0.11
"""Share of an axis below which two short labels would touch."""


def heat_map(matrix: Matrix) -> Chart | None:
    """Describe a matrix for the page: how many times as fast a row's setup is as a column's; None of very many."""
    if len(matrix.setups) > MOST_SETUPS:
        return None
    setups, size = matrix.setups, len(matrix.setups)
    logs = {
        (row, column): math.log2(matrix.over(setups[row], setups[column]).center)
        for row, column in itertools.product(range(size), repeat=2)
    }
    texts, reach = written(matrix), max(0.05, *map(abs, logs.values()))
    marks: list[chart.Mark] = []
    for (row, column), log in logs.items():
        heat = log / reach
        marks.append(chart.Bar(x=(column, column + 1), y=(row, row + 1), tint=chart.PLAIN, heat=heat))
        marks.append(chart.Text(x=column + 0.5, y=row + 0.5, text=texts[row][column], inverse=abs(heat) > DARK))
    numbers = [(place + 0.5, str(place + 1)) for place in range(size)]
    x = Axis(label=f"over setup number, {matrix.batches.split(',')[0]}", scale="words", ticks=numbers)
    names = [f"{place}. {short(setup.name)}" for place, setup in enumerate(setups, 1)]
    about = ". ".join(["Each figure is how many times as fast its row is as its column", *_legend(texts)]) + "."
    caption, panels = f"{matrix.title}: times as fast, by {matrix.basis}", [chart.rows_panel("", x, names, marks)]
    return Chart(name=matrix.slug, caption=caption, about=about, panels=panels, columns=1, in_files=False)


def short(name: str) -> str:
    """Keep both ends of a long name: the device and the precision."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def written(matrix: Matrix) -> list[list[str]]:
    """Write the cells of a matrix, each with a mark of an interval that holds 1 or, where others have one, is missing.

    Where none has one, a sentence of ``remarks`` replaces a mark on every cell.
    """
    marked = _has_intervals(matrix)
    return [[_cell(matrix, row, column, marked) for column in matrix.setups] for row in matrix.setups]


def _cell(matrix: Matrix, row: Setup, column: Setup, marked: bool) -> str:
    if row is column:
        return "1"
    over = matrix.over(row, column)
    mark = UNMEASURED if over.low is None or over.high is None else UNDECIDED if over.low <= 1 <= over.high else ""
    return f"{number(over.center, 3)}{mark if marked else ''}{UNEQUAL if row.batch != column.batch else ''}"


def _has_intervals(matrix: Matrix) -> bool:
    return any(matrix.over(*pair).low is not None for pair in itertools.permutations(matrix.setups, 2))


def _legend(texts: list[list[str]]) -> list[str]:
    """Explain the marks that are in a matrix, one text each."""
    every = "".join(itertools.chain(*texts))
    return [f"{mark}: {meaning}" for mark, meaning in LEGEND.items() if mark in every]


def remarks(matrix: Matrix) -> list[str]:
    """Return remarks on a matrix: its basis, where all its ratios are, and the setups that it lacks."""
    absent = [f"Without a figure: {', '.join(matrix.absent)}."] if matrix.absent else []
    without = "" if _has_intervals(matrix) else WITHOUT
    where = f"all ratios, with their intervals, are in {file_name(matrix)}"
    return [f"By {matrix.basis}, {matrix.batches}: {where}.{without}", *absent]


def file_name(matrix: Matrix) -> str:
    """Return the name of a matrix's CSV."""
    return f"{matrix.slug}.csv"


def write_csv(matrix: Matrix, folder: Path) -> None:
    """Write every ratio of the matrix, one a line, into ``folder``."""
    rows = []
    for row, column in itertools.product(matrix.setups, repeat=2):
        setups = (quoted(row.name), row.batch, quoted(column.name), column.batch)
        equal = "yes" if row.batch == column.batch else "no"
        rows.append((matrix.basis, *setups, *matrix.over(row, column).ends, equal))
    table = pd.DataFrame(rows, columns=COLUMNS)
    write_atomically(folder / file_name(matrix), table.to_csv(index=False, lineterminator="\n"))


def against_value(varied: Varied) -> Chart | None:
    """Describe speedup against the value, a panel for each group with all else equal; None where values are words."""
    rows = varied.rows.assign(number=pd.to_numeric(varied.rows["value"], errors="coerce"))
    timed = rows[rows["speedup"].notna()]
    if rows["number"].isna().any() or timed["number"].nunique() < 2:
        return None
    panels = [_sweep(group, varied.name) for _, group in replace(varied, rows=timed).groups()]
    return Chart(
        name=slug(f"sweep-{varied.suite}-{varied.name}"),
        caption=f"{varied.suite}: speedup against {varied.name}",
        about="Speedup over fp32 at the same value, with its 95 % interval.",
        panels=panels,
        columns=min(3, max(2, len(panels))),
        legend=chart.legend(timed),
    )


def _sweep(group: pd.DataFrame, name: str) -> Panel:
    values = sorted(map(float, group["number"].unique()))
    ticks = list(zip(positions(values, values), map("{:g}".format, values), strict=True))
    first = group.iloc[0]
    parts = [str(first["where"]), str(first["rest"])]
    parts += [f"batch {first['batch_size']:.0f}"] if name != BATCH_SIZE else []
    x = Axis(label=name, ticks=ticks if len(values) <= MOST_TICKS else ())
    marks = chart.speedups(group.assign(at=positions(group["number"], values)), "at", "value")
    return Panel(title=", ".join(filter(None, parts)), x=x, y=chart.speedup_axis(group), marks=marks)


def positions(numbers: Iterable[float], values: Sequence[float]) -> list[float]:
    """Return where numbers are on the axis: evenly spaced by order where labels next to each other would touch."""
    tightest = min(np.diff(values), default=1.0)
    even = len(values) <= MOST_TICKS and tightest < APART * (values[-1] - values[0])
    return [float(values.index(number)) if even else float(number) for number in numbers]
