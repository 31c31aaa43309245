"""The speedup matrix as tables, and as a CSV beside the report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from bench.report.analysis.matrix import EPOCHS, STEPS, Matrix, Setup
from bench.report.format import UNKNOWN, estimate, number
from bench.report.tables.table import Column, Table, figures, or_status, table, words
from bench.spec.text import quoted

LARGEST = 12
"""Setups that one table shows at most."""
UNDECIDED, UNMEASURED, UNEQUAL = "≈", "?", "*"
"""Marks of a ratio whose interval holds 1, of one that has no interval, and of one between unequal batch sizes."""
LEGEND = {
    UNDECIDED: "the 95 % interval holds 1",
    UNMEASURED: "one process or seed, so there is no interval",
    UNEQUAL: "unequal batch sizes, so a step is not the same work for both",
}
UNITS = {STEPS: "samples/s", EPOCHS: "time/epoch (s)"}
HOW = (
    "Between precisions that were timed side by side: the paired interval over fresh processes (or seeds). Between all "
    "others: Welch's interval over the processes (or seeds) of each."
)


def has_intervals(matrix: Matrix) -> bool:
    """Say whether any two setups have an interval; where none has, one sentence replaces a mark on every cell."""
    pairs = itertools.permutations(matrix.setups, 2)
    return any(matrix.over(row, column).low is not None for row, column in pairs)


def written(matrix: Matrix, row: Setup, column: Setup, marked: bool) -> str:
    """Write one cell of the matrix; where ``marked``, with a mark of an interval that holds 1 or is missing."""
    if row is column:
        return "1"
    over = matrix.over(row, column)
    if not marked:
        mark = ""
    elif over.low is None or over.high is None:
        mark = UNMEASURED
    else:
        mark = UNDECIDED if over.low <= 1 <= over.high else ""
    return f"{number(over.center, 3)}{mark}{_unequal(row, column)}"


def _unequal(row: Setup, column: Setup) -> str:
    return UNEQUAL if row.batch != column.batch else ""


def legend(matrix: Matrix) -> list[str]:
    """Explain the marks that are in a matrix, one text each."""
    marked, pairs = has_intervals(matrix), itertools.permutations(matrix.setups, 2)
    text = "".join(written(matrix, row, column, marked) for row, column in pairs)
    return [f"{mark}: {meaning}" for mark, meaning in LEGEND.items() if mark in text]


def tables(matrix: Matrix) -> list[Table | None]:
    """Return the matrix and its intervals; of more than ``LARGEST`` setups a ranking, and one matrix a precision."""
    about = f"How many times as fast the row is as the column, by {matrix.basis}, {matrix.batches}. "
    about += "Columns are the rows' numbers. "
    about += "".join(f"{text}. " for text in legend(matrix))
    if has_intervals(matrix):
        about += "Intervals are those of these very boards: another board of the same name may differ by more."
    else:
        about += "No ratio has an interval: each setup has one process or seed. Do not decide on small differences."
    notes = [f"Without a figure: {', '.join(matrix.absent)}."] if matrix.absent else []
    notes.append(f"All ratios with their intervals: {matrix.slug}.csv.")
    title = f"Speedup matrix by {matrix.basis}"
    if len(matrix.setups) <= LARGEST:
        return _tables(matrix, matrix.setups, title, about, notes)
    found = [_ranking(matrix, about, notes)]
    for name in dict.fromkeys(setup.precision for setup in matrix.setups):
        alike = [setup for setup in matrix.setups if setup.precision == name]
        if 1 < len(alike) <= LARGEST:
            found += _tables(matrix, alike, f"{title}: {name} alone")
    return found


def _named(matrix: Matrix) -> list[Column]:
    """Return the columns that name a setup and show its own figure, of rows of a number and a setup."""
    return [
        words("setup", lambda row: f"{row[0]}. {row[1].name}"),
        figures(UNITS[matrix.basis], lambda row: or_status(row[1].status, number(row[1].figure))),
    ]


def _tables(
    matrix: Matrix, setups: Sequence[Setup], title: str, about: str = "", notes: Sequence[str] = ()
) -> list[Table | None]:
    rows, marked = list(enumerate(setups, 1)), has_intervals(matrix)

    def against(write: Callable[[Setup, Setup], str]) -> list[Column]:
        def column(place: int, over: Setup) -> Column:
            return figures(str(place), lambda row: write(row[1], over))

        return [column(*row) for row in rows]

    setup, figure = _named(matrix)
    ratios = against(lambda row, column: written(matrix, row, column, marked))
    if not marked:
        return [table(title, rows, [setup, figure, *ratios], about, notes)]
    intervals = against(lambda row, column: _bounds(matrix, row, column))
    return [
        table(title, rows, [setup, figure, *ratios], about, notes),
        table(f"{title}: 95 % intervals", rows, [setup, *intervals], HOW),
    ]


def _bounds(matrix: Matrix, row: Setup, column: Setup) -> str:
    over = matrix.over(row, column)
    if row is column or over.low is None or over.high is None:
        return UNKNOWN
    return f"{number(over.low, 3)} – {number(over.high, 3)}{_unequal(row, column)}"


def _ranking(matrix: Matrix, about: str, notes: Sequence[str]) -> Table | None:
    slowest = matrix.setups[-1]

    def over_slowest(row: tuple[int, Setup]) -> str:
        setup = row[1]
        return "1" if setup is slowest else f"{estimate(matrix.over(setup, slowest))}{_unequal(setup, slowest)}"

    columns = [*_named(matrix), figures("× the slowest [95 % interval]", over_slowest)]
    return table(f"Ranking by {matrix.basis}", enumerate(matrix.setups, 1), columns, about, notes)


def write_csv(matrix: Matrix, folder: Path) -> Path:
    """Write every ratio of the matrix, one a line, into ``folder``; return the file's path."""
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
    path = folder / f"{matrix.slug}.csv"
    pd.DataFrame(rows).to_csv(path, index=False, lineterminator="\n")
    return path
