"""A table: columns with their cells, and rows of data."""

import math

from bench.report.tables.table import figures, optional, table, words
from tests.report.tables.lines import words as headers_of_words

ROWS = [
    {"name": "a", "size": 1234.5, "status": "unconverged", "lost": 0, "nothing": None},
    {"name": "", "size": math.nan, "status": "oom", "lost": 2, "nothing": None},
    {"name": "c", "size": 2.0, "status": "ok", "lost": 1, "nothing": None},
]


def test_a_table_writes_each_column_from_each_row_and_explains_its_marks():
    shown = table(
        "Title",
        ROWS,
        [
            words("name", "name"),
            figures("size", "size", 3),
            figures("per 2", "size", lambda value: f"{value:.2f}", per=2),
            figures("marked", "size", 1, status="status", lost="lost"),
        ],
        "About.",
        ["A footnote."],
    )
    assert shown.rows == [
        ["a", "1,234", "617.25", "1,234†"],
        ["–", "–", "–", "oom"],
        ["c", "2.00", "1.00", "2‡"],
    ]
    assert headers_of_words(shown) == ["name"]
    assert [footnote[0] for footnote in shown.footnotes] == ["†", "‡", "A"]


def test_optional_columns_are_left_out_where_they_are_empty_and_a_table_without_rows_is_none():
    columns = [figures("kept", "nothing"), *optional(figures("left out", "nothing"), figures("size", "size"))]
    assert table("", ROWS, columns).headers == ["kept", "size"]
    assert table("", [], columns) is None
