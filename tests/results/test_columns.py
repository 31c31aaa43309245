"""The registry of columns, and the dictionary of columns that is made from it."""

import re
from pathlib import Path
from typing import get_args

from bench.results.columns import COLUMNS
from bench.results.records import Status


def test_every_status_is_explained() -> None:
    page = Path(__file__).parents[2] / "results" / "README.md"
    _, _, section = page.read_text(encoding="utf-8").partition("## Statuses")
    statuses, _, _ = section.partition("##")
    explained = re.findall(r"^\| `(\w+)` \|", statuses, flags=re.M)
    assert explained == list(get_args(Status))


def test_quantities_have_their_unit_in_the_name() -> None:
    quantity = re.compile(r"time|power|bytes|memory|peak|temperature|clock|utiliz")
    without_unit = set()
    for columns in COLUMNS.values():
        for field in columns.values():
            if field.kind == "number" and not field.unit:
                without_unit.add(field.name)
    assert "seed" in without_unit
    for name in without_unit:
        assert not quantity.search(name)
