"""The matrix of setups as a heat map that diverges at 1, and all its ratios as a CSV in the report's folder."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pandas as pd

from bench.report.analysis.matrix import Matrix, Setup
from bench.report.figures.chart import PLAIN, Axis, Bar, Chart, Mark, Text, rows_panel
from bench.report.format import number
from bench.results.files import write_atomically
from bench.spec.text import quoted

MOST_SETUPS = 20
"""Setups of the largest matrix that can be read as a figure."""
MOST_IN_FILES = 12
"""Setups of the largest one that is drawn to files."""
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


def heat_map(matrix: Matrix) -> Chart | None:
    """Describe a matrix of at most ``MOST_SETUPS``: how many times as fast a row's setup is as a column's."""
    if len(matrix.setups) > MOST_SETUPS:
        return None
    setups, size = matrix.setups, len(matrix.setups)
    logs = {
        (row, column): math.log2(matrix.over(one, other).center)
        for (row, one), (column, other) in itertools.product(enumerate(setups), repeat=2)
    }
    texts, reach = written(matrix), max(0.05, *map(abs, logs.values()))
    marks: list[Mark] = []
    for (row, column), log in logs.items():
        heat = log / reach
        marks.append(Bar(x=(column, column + 1), y=(row, row + 1), tint=PLAIN, heat=heat))
        marks.append(Text(x=column + 0.5, y=row + 0.5, text=texts[row][column], inverse=abs(heat) > DARK))
    numbers = [(place + 0.5, str(place + 1)) for place in range(size)]
    x = Axis(label=f"over setup number, {matrix.batches.split(',')[0]}", scale="words", ticks=numbers)
    panel = rows_panel("", x, [f"{place}. {short(setup.name)}" for place, setup in enumerate(setups, 1)], marks)
    return Chart(
        name=matrix.slug,
        caption=f"{matrix.title}: times as fast, by {matrix.basis}",
        about=". ".join(["Each figure is how many times as fast its row is as its column", *_legend(texts)]) + ".",
        panels=[panel],
        columns=1,
        in_files=size <= MOST_IN_FILES,
    )


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
    rows = [
        {
            "basis": matrix.basis,
            "setup": quoted(row.name),
            "batch_size": row.batch,
            "over_setup": quoted(column.name),
            "over_batch_size": column.batch,
            "times_as_fast": over.center,
            "low": over.low,
            "high": over.high,
            "equal_batch": "yes" if row.batch == column.batch else "no",
        }
        for row, column in itertools.product(matrix.setups, repeat=2)
        for over in [matrix.over(row, column)]
    ]
    write_atomically(folder / file_name(matrix), pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
