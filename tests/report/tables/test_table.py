"""A table: columns with their cells, and rows of data."""

import math

from bench.report.tables.table import make_table, number_column, optional_columns, text_column
from tests.report.tables.lines import words as headers_of_words

ROWS = [
    {"name": "a", "size": 1234.5, "status": "unconverged", "lost": 0, "nothing": None},
    {"name": "", "size": math.nan, "status": "oom", "lost": 2, "nothing": None},
    {"name": "c", "size": 2.0, "status": "ok", "lost": 1, "nothing": None},
]


def test_a_table_writes_each_column_from_each_row_and_explains_its_marks_but_none_of_a_users():
    shown = make_table(
        "Title",
        ROWS,
        [
            text_column("name", "name"),
            number_column("size", "size", 3),
            number_column("per 2", "size", lambda value: f"{value:.2f}", per=2),
            number_column("marked", "size", 1, status="status", lost="lost"),
        ],
        "About.",
    )
    assert shown.rows == [
        ["a", "1,234", "617.25", "1,234†"],
        ["–", "–", "–", "oom"],
        ["c", "2.00", "1.00", "2‡"],
    ]
    assert headers_of_words(shown) == ["name"]
    assert [footnote[0] for footnote in shown.footnotes] == ["†", "‡"]
    named = [{"name": "my § model"}]
    for has_marks in (False, True):
        column = text_column("name", "name", has_marks=has_marks)
        assert bool(make_table("", named, [column]).footnotes) is has_marks


def test_optional_columns_are_left_out_where_they_are_empty_and_a_table_without_rows_is_none():
    columns = [
        number_column("kept", "nothing"),
        *optional_columns(number_column("left out", "nothing"), number_column("size", "size")),
    ]
    assert make_table("", ROWS, columns).headers == ["kept", "size"]
    assert make_table("", [], columns) is None


def test_a_table_on_a_terminal_is_wrapped_or_written_row_by_row_and_never_cut(monkeypatch):
    row = {
        "device": "P100-PCIE-16GB (run cloud-p100)",
        "use": "amp-fp16",
        "speedup": "1.10× ±2 %",
        "memory": "−35 %",
        "accuracy": "not trained",
        "batch": "512",
        "energy": "−8.8 %",
    }
    shown = make_table("", [row], [text_column(name, name) for name in row])
    for width in (20, 80, 90, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        text = shown.text
        assert text.startswith("- ") or max(map(len, text.splitlines())) <= width
        for cell in (*row, *row.values()):
            for word in cell.split():
                assert word in text
