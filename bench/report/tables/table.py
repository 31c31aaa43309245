"""A table: a list of columns, each with its header, its alignment and how a cell is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Literal

import pandas as pd
from rich.cells import cell_len

from bench.report.analysis.doubts import DOUBTS
from bench.report.analysis.verdict import Answer, answers
from bench.report.format import UNKNOWN, at_batch, known, number, ratio, written
from bench.report.reading.load import KEY, Runs
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import QUALITY, untabled
from bench.spec.precisions import BASELINE
from bench.spec.text import plain

Row = dict[Hashable, Any]
# A field of a row, or a function of the row.
Value = str | Callable[[Any], Any]
# Cells that hold no figure.
EMPTY = {UNKNOWN, "baseline"}
LEGEND = {doubt.mark: f"{doubt.about}." for doubt in DOUBTS.values()}
LEGEND["≈"] = "as fast as the advised one."
# Characters in a line where the output is not a terminal.
LOG_WIDTH = 200
# Characters that rich's box adds to each column: a space on both sides, and one between columns.
FRAME = 3


@dataclass(frozen=True, kw_only=True)
class Material:
    """The data that a report's tables are made from."""

    runs: Runs
    summary: pd.DataFrame
    rows: pd.DataFrame
    """Of the summary, without precisions that are unsupported: of a recipe's
    section those of the recipe."""
    figures: Literal["overview", "all", "none"] = "overview"
    """Which figures are drawn, where there are too many to draw all."""

    @cached_property
    def answers(self) -> list[Answer]:
        """What to train with, of each recipe on each device."""
        return answers(self.summary)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The trials of ``rows``, as ``named`` returns them."""
        return self.named(self.runs.trials)

    def named(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a frame of ``runs`` that are of arms in ``rows``, in their order.

        The names of their subject come with them: ``workload``, ``where`` and ``slug``.
        """
        return self.rows[[*KEY, "workload", "where", "slug"]].merge(frame, on=KEY)


# The place of tables that stand in the section of each recipe, under its name.
EACH_RECIPE = "each recipe"


@dataclass(frozen=True, slots=True)
class Entry:
    """Tables of one kind and their place in the report.

    A phase lists its own in its ``REPORT`` (``bench.report.parts``); those of no phase are in
    ``diagnostics.TABLES``. Only report.html shows them.
    """

    place: int
    """Its order among all entries; sections stand where their first one does."""
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
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        width = shutil.get_terminal_size((LOG_WIDTH, 0)).columns
        grid = Grid(box=SIMPLE)
        least = 1
        for place, column in enumerate(self.columns):
            texts = [plain(row[place]) for row in self.rows]
            fixed = None
            header = plain(column.header)
            unbroken = header.split()
            if column.align == "right":
                # A figure is not broken over lines, as words are.
                unbroken += texts
                fixed = max(map(cell_len, unbroken))
            else:
                unbroken += " ".join(texts).split()
            longest = max(map(cell_len, unbroken))
            least += longest + FRAME
            grid.add_column(Text(header), justify=column.align, width=fixed, min_width=longest)
        if least > width:
            return self._row_by_row()
        for row in self.rows:
            grid.add_row(*(Text(plain(cell)) for cell in row))
        console = Console(highlight=False, width=width, color_system=None)
        with console.capture() as capture:
            console.print(grid)
        return capture.get()

    def _row_by_row(self) -> str:
        lines = []
        for row in self.rows:
            cells = zip(self.headers, row, strict=True)
            named = [f"{header}: {cell}" for header, cell in cells if cell != UNKNOWN]
            lines.append(f"- {'; '.join(named)}\n")
        return "".join(lines)


def make_table(
    title: str,
    rows: Iterable[Any],
    columns: Iterable[Column],
    about: str = "",
    *,
    strong: Callable[[Any], bool] | None = None,
) -> Table | None:
    """Build a table with a legend of its marks; None if there are no rows.

    Optional columns without a figure are left out. The rows for which ``strong`` is true stand out.
    """
    rows = list(rows)
    if not rows:
        return None
    visible: dict[Column, list[str]] = {}
    marked = ""
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if column.optional and EMPTY.issuperset(cells):
            continue
        visible[column] = cells
        if column.has_marks:
            marked += "".join(cells)
    places = [place for place, row in enumerate(rows) if strong and strong(row)]
    return Table(
        columns=list(visible),
        rows=list(map(list, zip(*visible.values(), strict=True))),
        title=title,
        about=about,
        footnotes=[f"{mark} {meaning}" for mark, meaning in LEGEND.items() if mark in marked],
        strong=frozenset(places),
    )


def text_column(
    header: str, value: Value, *, wrap: bool = False, has_marks: bool = False
) -> Column:
    """Return a left-aligned column of words; an empty cell becomes a dash."""
    get = value if callable(value) else itemgetter(value)
    return Column(header, lambda row: word(get(row)), align="left", wrap=wrap, has_marks=has_marks)


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
    get = value if callable(value) else itemgetter(value)

    def cell(row: Any) -> str:
        figure = get(row)
        if known(figure) and not isinstance(figure, str):
            size = figure / per
            figure = write(size) if callable(write) else number(size, write)
        if not status:
            return word(figure)
        return or_status(row[status], word(figure), row[lost] if lost else 0)

    return Column(header, cell, has_marks=bool(status))


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
    if status == "unconverged":
        text += "†"
    if known(lost) and lost:
        text += "‡"
    return text


def over_fp32(
    row: Row, center: str = "speedup", low: str = "speedup_low", high: str = "speedup_high"
) -> str:
    """Write a precision's speedup over fp32 with its interval, from the fields named."""
    return "baseline" if row["precision"] == BASELINE else ratio(row[center], row[low], row[high])


def described(metric: Metric, rows: Sequence[Row]) -> Metric:
    """Return a metric as the first of the rows with such a figure describes it."""
    for row in rows:
        if known(row[metric.figure]):
            return metric.of(row)
    return metric


def quality(rows: Sequence[Row]) -> list[Column]:
    """Return the column of a suite's own figure of merit, where rows of one suite have one."""
    metric = described(QUALITY, rows)
    if metric == QUALITY:
        return []
    column = number_column(
        metric.figure_title, metric.figure, status=metric.status, lost="lost_train"
    )
    return optional_columns(column)


def general() -> list[Column]:
    """Return the columns of each metric without a place of its own: figure, change from fp32."""
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
BATCH = optional_columns(number_column("batch size", partial(at_batch, before="")))[0]
PRECISION = text_column("precision", "precision")
# The columns that name what was measured.
ARM_COLUMNS = (DEVICE, BATCH, PRECISION)
