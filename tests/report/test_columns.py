"""The column dictionary says what the columns are, and only of columns that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.report.load import TEXT
from bench.store import BLOCK_COLUMNS, EPOCH_COLUMNS, FILES, NUMERIC_COLUMNS, TRIAL_COLUMNS

README = Path(__file__).parents[2] / "results" / "README.md"


@pytest.mark.parametrize("name", FILES)
def test_every_column_is_documented_in_order_and_nothing_else_is(name: str) -> None:
    section = re.split(rf"^## {re.escape(name)}$", README.read_text(encoding="utf-8"), flags=re.M)[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.M) == FILES[name]


def test_the_reader_knows_no_word_column_that_is_not_there() -> None:
    assert set(TRIAL_COLUMNS + EPOCH_COLUMNS + BLOCK_COLUMNS + NUMERIC_COLUMNS) >= TEXT
