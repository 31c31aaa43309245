"""Figures that compare more than precisions: setups as a heat map with its ratios as a CSV, and a factor's values."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pandas as pd

from bench.report.analysis.factors import BATCH_SIZE, Varied
from bench.report.analysis.matrix import Matrix, Setup
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Chart
from bench.report.figures.devices import SharedAxes, labelled
from bench.report.figures.svg import CHARACTER, WIDEST
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
    """Describe speedup against the value, a panel for each group with all else equal; None where values are words.

    Values that are too close to be read, or not above 0, are evenly spaced.
    """
    all_else = varied.groups().ngroup()
    rows = varied.rows.assign(value=varied.rows["speedup"], line=varied.rows["precision"], status="ok")
    rows["batch_size"] = pd.to_numeric(varied.rows["value"], errors="coerce")
    timed = rows[rows["value"].notna()]
    values = sorted(timed["batch_size"].unique().tolist())
    if rows["batch_size"].isna().any() or len(values) < 2:
        return None
    names: dict[float, str] = {}
    if values[0] <= 0 or len(labelled(values, CHARACTER / WIDEST)) < len(values) <= MOST_TICKS:
        names = {float(place): f"{value:g}" for place, value in enumerate(values, 1)}
        timed = timed.assign(batch_size=timed["batch_size"].map(lambda value: values.index(value) + 1.0))
    groups = [
        timed.loc[group.index].assign(device=_all_else(group.iloc[0], varied))
        for _, group in varied.rows.loc[timed.index].groupby(all_else)
    ]
    lines = [name for name, _ in chart.arms(timed)]
    axes = SharedAxes(timed, lines, {}, "", over_fp32=True, across=len(groups), along=varied.name, names=names)
    return Chart(
        name=slug(f"sweep-{varied.suite}-{varied.name}"),
        caption=f"{varied.suite}: speedup against {varied.name}",
        about="Speedup over fp32 at the same value, with its 95 % interval.",
        panels=[axes.panel("", group) for group in groups],
        columns=axes.columns,
        legend=[] if axes.labelled else chart.legend(timed),
    )


def _all_else(row: pd.Series, varied: Varied) -> str:
    """Name what is equal in a panel."""
    batch = "" if varied.name == BATCH_SIZE else f"batch {row['batch_size']:.0f}"
    return ", ".join(filter(None, [str(row["where"]), str(row["rest"]), batch]))
