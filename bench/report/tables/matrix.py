"""The speedup matrix as tables, and as a CSV beside the report."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from bench import stats
from bench.report.analysis.matrix import EPOCHS, STEPS, Matrix, Setup
from bench.report.tables.format import UNKNOWN, number, ratio
from bench.report.tables.tables import Table, table, told

LARGEST = 12
"""Setups that one table still shows."""
UNDECIDED, UNMEASURED, UNEQUAL = "≈", "?", "*"
"""Marks of a ratio whose interval holds 1, of one that has no interval, and of one between unequal batch sizes."""
LEGEND = {
    UNDECIDED: "the 95 % interval holds 1",
    UNMEASURED: "one process or seed, so there is no interval",
    UNEQUAL: "unequal batch sizes, so the two did other work in a step",
}
UNITS = {STEPS: "samples/s", EPOCHS: "time/epoch (s)"}
HOW = (
    "Between precisions that were timed side by side, the paired interval over fresh processes (or seeds); between all "
    "others Welch's, over the processes (or seeds) of each."
)


def cell(interval: stats.Interval) -> str:
    """Write a ratio with three digits, marked where it may as well be 1 and where nothing tells."""
    if interval.low is None or interval.high is None:
        return f"{number(interval.center, 3)}{UNMEASURED}"
    return f"{number(interval.center, 3)}{UNDECIDED if interval.low <= 1 <= interval.high else ''}"


def has_intervals(matrix: Matrix) -> bool:
    """Say whether any two setups have an interval; where none has, a mark on every cell says less than one sentence."""
    pairs = itertools.permutations(matrix.setups, 2)
    return any(matrix.over(row, column).low is not None for row, column in pairs)


def written(matrix: Matrix, row: Setup, column: Setup, marked: bool) -> str:
    """Write one cell of the matrix, ``marked`` as ``cell`` does."""
    over = matrix.over(row, column)
    return "1" if row is column else f"{cell(over) if marked else number(over.center, 3)}{_unequal(row, column)}"


def _unequal(row: Setup, column: Setup) -> str:
    return UNEQUAL if row.batch != column.batch else ""


def legend(matrix: Matrix) -> list[str]:
    """Return what the marks mean that are in a matrix, one text each."""
    marked, pairs = has_intervals(matrix), itertools.permutations(matrix.setups, 2)
    text = "".join(written(matrix, row, column, marked) for row, column in pairs)
    return [f"{mark}: {meaning}" for mark, meaning in LEGEND.items() if mark in text]


def tables(matrix: Matrix) -> list[Table]:
    """Return the matrix and its intervals; of more than ``LARGEST`` setups a ranking, and one matrix a precision."""
    about = f"How many times as fast the row is as the column, by {matrix.basis}, {matrix.batches}. "
    about += "Columns are the rows' numbers. "
    about += "".join(f"{said}. " for said in legend(matrix))
    if has_intervals(matrix):
        about += "Intervals are of these very boards: another board of the same name may differ by more."
    else:
        about += "No ratio has an interval, for each setup has one process or seed: do not decide on small differences."
    notes = [f"Without a figure: {', '.join(matrix.absent)}."] if matrix.absent else []
    notes.append(f"All ratios with their intervals: {matrix.slug}.csv.")
    if len(matrix.setups) <= LARGEST:
        return list(_tables(matrix, matrix.setups, f"Speedup matrix by {matrix.basis}", about, notes))
    found = [_ranking(matrix, about, notes)]
    for name in dict.fromkeys(setup.precision for setup in matrix.setups):
        alike = [setup for setup in matrix.setups if setup.precision == name]
        if 1 < len(alike) <= LARGEST:
            found += _tables(matrix, alike, f"Speedup matrix by {matrix.basis}: {name} alone", "", [])
    return found


def _tables(matrix: Matrix, setups: Sequence[Setup], title: str, about: str, notes: list[str]) -> Iterator[Table]:
    heads, marked = [str(place) for place in range(1, len(setups) + 1)], has_intervals(matrix)
    labels = [f"{place}. {setup.name}" for place, setup in enumerate(setups, 1)]
    rows = [
        [label, _figure(row), *(written(matrix, row, column, marked) for column in setups)]
        for label, row in zip(labels, setups, strict=True)
    ]
    made = table(title, ["setup", UNITS[matrix.basis], *heads], rows, about=about)
    yield replace(made, footnotes=[*made.footnotes, *notes])
    if marked:
        rows = [
            [label, *(UNKNOWN if row is column else _ends(matrix, row, column) for column in setups)]
            for label, row in zip(labels, setups, strict=True)
        ]
        yield Table(title=f"{title}: 95 % intervals", headers=["setup", *heads], rows=rows, about=HOW)


def _figure(setup: Setup) -> str:
    return told(setup.status, number(setup.figure))


def _ends(matrix: Matrix, row: Setup, column: Setup) -> str:
    interval = matrix.over(row, column)
    if interval.low is None or interval.high is None:
        return UNKNOWN
    return f"{number(interval.low, 3)} – {number(interval.high, 3)}{_unequal(row, column)}"


def _ranking(matrix: Matrix, about: str, notes: list[str]) -> Table:
    slowest = matrix.setups[-1]
    rows = []
    for place, setup in enumerate(matrix.setups, 1):
        over = matrix.over(setup, slowest)
        text = "1" if setup is slowest else f"{ratio(over.center, over.low, over.high)}{_unequal(setup, slowest)}"
        rows.append([f"{place}. {setup.name}", _figure(setup), text])
    headers = ["setup", UNITS[matrix.basis], "× the slowest [95 % interval]"]
    made = table(f"Ranking by {matrix.basis}", headers, rows, about=about)
    return replace(made, footnotes=[*made.footnotes, *notes])


def write_csv(matrix: Matrix, folder: Path) -> Path:
    """Write every ratio of the matrix, one a line, into ``folder``; return the file's path."""
    rows = []
    for row in matrix.setups:
        for column in matrix.setups:
            over = matrix.over(row, column)
            rows.append(
                {
                    "basis": matrix.basis,
                    "setup": row.name,
                    "batch_size": row.batch,
                    "over_setup": column.name,
                    "over_batch_size": column.batch,
                    "times_as_fast": over.center,
                    "low": over.low,
                    "high": over.high,
                    "equal_batch": "yes" if row.batch == column.batch else "no",
                }
            )
    path = folder / f"{matrix.slug}.csv"
    pd.DataFrame(rows).to_csv(path, index=False, lineterminator="\n")
    return path
