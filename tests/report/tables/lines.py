"""Tables of a run's report, and their rows by their headers."""

from pathlib import Path

from bench.report.page import compose
from bench.report.reading.load import load
from bench.report.tables.table import Table, material_of


def titled(folder: Path, title: str) -> Table | None:
    """The table of this title in a run's report; None where it has none."""
    material = material_of(load([folder]))
    for section in compose(material).sections.values():
        for table in section.tables:
            if table.title == title:
                return table
    return None


def lines(table: Table | None) -> list[dict[str, str]]:
    assert table is not None
    rows = []
    for row in table.rows:
        cells = zip(table.headers, row, strict=True)
        rows.append(dict(cells))
    return rows


def column(table: Table | None, header: str) -> list[str]:
    return [line[header] for line in lines(table)]


def words(table: Table) -> list[str]:
    """The headers of the columns that are aligned to the left."""
    return [column.header for column in table.columns if column.align == "left"]
