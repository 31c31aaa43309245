"""A table's rows by their headers."""

from __future__ import annotations

from bench.report.tables.table import Table


def lines(table: Table | None) -> list[dict[str, str]]:
    assert table is not None
    return [dict(zip(table.headers, row, strict=True)) for row in table.rows]


def column(table: Table | None, header: str) -> list[str]:
    return [line[header] for line in lines(table)]


def words(table: Table) -> list[str]:
    """The headers of the columns that are aligned to the left."""
    return [one.header for one in table.columns if one.align == "left"]
