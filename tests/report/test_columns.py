"""The column dictionary says what the columns are, and only of columns that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from bench.report.reading.load import TEXT
from bench.results.records import Status
from bench.results.store import BLOCK_COLUMNS, EPOCH_COLUMNS, FILES, NUMERIC_COLUMNS, TRIAL_COLUMNS
from bench.spec.phases import PHASES

README = Path(__file__).parents[2] / "results" / "README.md"


@pytest.mark.parametrize("name", FILES)
def test_every_column_is_documented_in_order_and_nothing_else_is(name: str) -> None:
    section = re.split(rf"^## {re.escape(name)}$", README.read_text(encoding="utf-8"), flags=re.M)[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.M) == FILES[name]


def test_the_reader_knows_no_word_column_that_is_not_there() -> None:
    assert set(TRIAL_COLUMNS + EPOCH_COLUMNS + BLOCK_COLUMNS + NUMERIC_COLUMNS) >= TEXT


def test_every_phase_and_every_status_is_explained() -> None:
    page = README.read_text(encoding="utf-8")
    trials = page.split("## trials.csv")[1]
    assert [phase for phase in PHASES if f"`{phase}`" not in trials.split("| --- |")[0]] == []
    (words,) = re.findall(r"^\| `phase` \| (.*) \|$", trials, flags=re.M)
    assert re.split(r", | or ", words) == list(PHASES)
    statuses = page.split("## Statuses")[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", statuses, flags=re.M) == list(get_args(Status))
