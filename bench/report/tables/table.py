"""A table: a list of columns, each with its header, its alignment and how a cell is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Literal

import pandas as pd
from rich.cells import cell_len

from bench.report.analysis.doubts import DOUBTS
from bench.report.analysis.summary import summarise, without_unsupported
from bench.report.analysis.verdict import Answer, answers
from bench.report.figures.chart import Choice
from bench.report.format import UNKNOWN, at_batch, known, number, ratio, written
from bench.report.reading.load import KEY, Runs
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import QUALITY, untabled
from bench.spec.precisions import BASELINE
from bench.spec.text import plain

Row = dict[Hashable, Any]
# The name of a row's field, or a function of the row.
Value = str | Callable[[Any], Any]
# Cells that hold no figure; a column of fp32's "baseline" alone says nothing.
EMPTY = {UNKNOWN, "baseline"}
LEGEND = {doubt.mark: f"{doubt.about}." for doubt in DOUBTS.values()}
LEGEND["≈"] = "as fast as the advised one."
# Characters in a line where the output is not a terminal: a log's reader can scroll.
LOG_WIDTH = 200
# Characters that rich's box adds to each column: a space on both sides, and one between columns.
FRAME = 3


@dataclass(frozen=True, kw_only=True)
class Material:
    """The data that a report's tables and figures are made from, of all recipes or of one.

    What a table in the section of a recipe shows comes from ``rows``, or from frames of ``runs`` by
    way of ``named``. What compares recipes, and every figure, comes from ``summary``.
    """

    runs: Runs
    """What was read of all runs, whatever recipe the material is of."""
    summary: pd.DataFrame
    """A row for each arm of all recipes, as ``summarise`` returns them."""
    rows: pd.DataFrame
    """Those rows of the summary that are shown: without precisions that are unsupported, and of
    the recipe alone where the material is of one."""
    answers: Sequence[Answer]
    """What to train with, of each recipe on each device, of all recipes."""
    figures: Choice = "overview"

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The trials of ``rows``, as ``named`` returns them."""
        return self.named(self.runs.trials)

    def named(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a frame of ``runs`` that are of arms in ``rows``, in their order.

        The names of their subject come with them: ``workload``, ``where`` and ``slug``.
        """
        return self.rows[[*KEY, "workload", "where", "slug"]].merge(frame, on=KEY)

    def recipes(self) -> Iterator[tuple[str, Material]]:
        """Yield each recipe with its material, which differs in ``rows`` alone."""
        for name, rows in self.rows.groupby("workload", sort=False):
            yield str(name), replace(self, rows=rows)


def material_of(runs: Runs, figures: Choice = "overview") -> Material:
    """Summarise runs, and advise: return the material of the whole report."""
    summary = summarise(runs.trials)
    return Material(
        runs=runs,
        summary=summary,
        rows=without_unsupported(summary),
        answers=answers(summary),
        figures=figures,
    )


# The section of tables that stand in that of each recipe, under its name.
EACH_RECIPE = "each recipe"


@dataclass(frozen=True, slots=True)
class Entry:
    """Tables of one kind and their place in the report.

    A phase lists its own in its ``REPORT`` (``bench.report.parts``); those of no phase are in
    ``diagnostics.TABLES``. Only report.html shows them: report.md is the page's short form, to be
    read where it is pasted.
    """

    place: int
    """Its order among all entries; a section stands where its first table does. Below 50 are those
    of the whole report; from 50 the results of a recipe, from 60 more about them, and from 80 what
    is asked last. It is a number, for a new phase to need no list of the others."""
    section: str
    make: Callable[[Material], Iterable[Table | str | None]]
    """Returns tables, None for those without rows, and remarks to be read below them."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    header: str
    cell: Callable[[Any], str]
    """Returns a row's cell as text."""
    align: Literal["left", "right"] = "right"
    optional: bool = False
    """Whether the column is left out where no row has a figure in it."""
    wrap: bool = False
    """Whether a page may wrap its cells."""
    has_marks: bool = False
    """Whether its cells may end with marks of the legend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with its cells as text, to be rendered as markdown, HTML or terminal output."""

    columns: list[Column]
    rows: list[list[str]]
    title: str
    about: str
    """Sentences on what the table compares."""
    footnotes: list[str]
    strong: frozenset[int] = frozenset()
    """The places of the rows that stand out."""

    @property
    def headers(self) -> list[str]:
        """The columns' headers."""
        return [column.header for column in self.columns]

    @property
    def text(self) -> str:
        """The table as a terminal shows it; row by row where its words do not fit side by side."""
        # Only here, for reports to files need no rich.
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        width = shutil.get_terminal_size((LOG_WIDTH, 0)).columns
        grid = Grid(box=SIMPLE)
        needed = 1
        for place, column in enumerate(self.columns):
            narrowest = self._narrowest(place)
            needed += narrowest + FRAME
            header = Text(plain(column.header))
            grid.add_column(header, justify=column.align, min_width=narrowest)
            if column.align == "right":
                grid.columns[place].width = narrowest
        if needed > width:
            return self._row_by_row()
        for row in self.rows:
            grid.add_row(*(Text(plain(cell)) for cell in row))
        console = Console(highlight=False, width=width, color_system=None)
        with console.capture() as capture:
            console.print(grid)
        return capture.get()

    def _narrowest(self, place: int) -> int:
        """Return the width of a column's longest part that is not broken over lines."""
        column = self.columns[place]
        parts = plain(column.header).split()
        for row in self.rows:
            cell = plain(row[place])
            if column.align == "right":
                # A figure is not broken, as words are.
                parts.append(cell)
            else:
                parts += cell.split()
        return max(map(cell_len, parts))

    def _row_by_row(self) -> str:
        text = ""
        for row in self.rows:
            cells = []
            for header, cell in zip(self.headers, row, strict=True):
                if cell != UNKNOWN:
                    cells.append(f"{header}: {cell}")
            text += f"- {'; '.join(cells)}\n"
        return text


def make_table(
    title: str, rows: Iterable[Any], columns: Iterable[Column], about: str = ""
) -> Table | None:
    """Build a table with a legend of its marks; None if there are no rows.

    Optional columns without a figure are left out.
    """
    rows = list(rows)
    if not rows:
        return None
    visible = {}
    marked = ""
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if column.optional and EMPTY.issuperset(cells):
            continue
        visible[column] = cells
        if column.has_marks:
            marked += "".join(cells)
    footnotes = []
    for mark, meaning in LEGEND.items():
        if mark in marked:
            footnotes.append(f"{mark} {meaning}")
    return Table(
        columns=list(visible),
        rows=[list(row) for row in zip(*visible.values(), strict=True)],
        title=title,
        about=about,
        footnotes=footnotes,
    )


def text_column(
    header: str, value: Value, *, wrap: bool = False, has_marks: bool = False
) -> Column:
    """Return a left-aligned column of words; an empty cell becomes a dash."""
    value_of = _getter(value)

    def cell(row: Any) -> str:
        return word(value_of(row))

    return Column(header, cell, align="left", wrap=wrap, has_marks=has_marks)


def number_column(
    header: str,
    value: Value,
    write: int | Callable[[float], str] = 4,
    *,
    per: float = 1.0,
    status: str = "",
    lost: str = "",
) -> Column:
    """Return a right-aligned column of figures; an unknown figure becomes a dash.

    Args:
        header: the column's header, with the unit.
        value: the field or function that gives the figure; a text is shown unchanged.
        write: number of significant digits, or a function that formats a figure.
        per: divisor, applied before formatting.
        status: the field whose status word is shown where nothing was measured.
        lost: the field with the number of unmeasured trials.
    """
    value_of = _getter(value)
    write_number = write if callable(write) else partial(number, digits=write)

    def cell(row: Any) -> str:
        figure = value_of(row)
        if known(figure) and not isinstance(figure, str):
            figure = write_number(figure / per)
        text = word(figure)
        if status:
            unmeasured = row[lost] if lost else 0
            text = or_status(row[status], text, unmeasured)
        return text

    return Column(header, cell, has_marks=bool(status))


def _getter(value: Value) -> Callable[[Any], Any]:
    return value if callable(value) else itemgetter(value)


def optional_columns(*columns: Column) -> list[Column]:
    """Return columns that are left out where they are empty."""
    return [replace(column, optional=True) for column in columns]


# Cells.


def word(value: object) -> str:
    """Return a word, or a dash where there is none."""
    return str(value) if known(value) and value != "" else UNKNOWN


def whole(value: float) -> str:
    """Write a count."""
    return f"{value:.0f}"


def decimals(value: float) -> str:
    """Write an accuracy in per cent."""
    return f"{value:.2f}" if known(value) else UNKNOWN


def or_status(status: object, text: str, lost: object = 0) -> str:
    """Return a figure, or the status word where there is none.

    The figure is marked † if it is unconverged, and ‡ if ``lost`` trials were not measured.
    """
    if status not in MEASURED:
        return word(status)
    # The marks are those of LEGEND.
    if status == "unconverged":
        text += "†"
    if known(lost) and lost:
        text += "‡"
    return text


def over_fp32(
    row: Row, center: str = "speedup", low: str = "speedup_low", high: str = "speedup_high"
) -> str:
    """Write a precision's speedup over fp32 with its interval, from the fields named."""
    if row["precision"] == BASELINE:
        return "baseline"
    return ratio(row[center], row[low], row[high])


def described(metric: Metric, rows: Sequence[Row]) -> Metric:
    """Return a metric as the first of the rows with such a figure describes it."""
    for row in rows:
        if known(row[metric.figure]):
            return metric.of(row)
    return metric


def quality_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the column of a suite's own figure of merit, where rows of one suite have one."""
    metric = described(QUALITY, rows)
    if metric == QUALITY:
        return []
    title = metric.figure_title
    figure = metric.figure
    return optional_columns(number_column(title, figure, status=metric.status, lost="lost_train"))


def general_columns() -> list[Column]:
    """Return two columns for each metric that no table has a place for: figure and change."""
    columns = []
    for metric in untabled():
        header = metric.header.replace(metric.label, f"{metric.label} vs {BASELINE}", 1)
        columns.append(number_column(metric.figure_title, metric.figure))
        columns.append(number_column(header, partial(changed, metric)))
    return optional_columns(*columns)


def changed(metric: Metric, row: Row) -> str:
    """Write a row's change from fp32 in a metric; "baseline" is fp32's own."""
    if row["precision"] == BASELINE and known(row[metric.figure]):
        return "baseline"
    return written(metric, [row[name] for name in metric.changes])


DEVICE = text_column("device", "where")
# Left out in reports of scripts, which do not tell their batch size.
BATCH = replace(number_column("batch size", partial(at_batch, before="")), optional=True)
PRECISION = text_column("precision", "precision")
# The columns that name what was measured.
ARM_COLUMNS = (DEVICE, BATCH, PRECISION)
