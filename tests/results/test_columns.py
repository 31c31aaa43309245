"""The registry of columns, and the dictionary of columns that is made from it."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from bench.results.columns import COLUMNS, derived
from bench.results.records import Status
from bench.spec.phases import MEASURING


@pytest.mark.parametrize("phase", MEASURING.values(), ids=list(MEASURING))
def test_a_phases_csv_has_the_columns_of_all_phases_and_its_own(phase) -> None:
    columns = COLUMNS[phase.file]
    own = {field.name for field in dataclasses.fields(phase.row)} if phase.row else set()
    assert {"trial", "status", "wall_s", *own} - {*derived(phase)} <= {*columns}
    assert {*derived(phase)}.isdisjoint(columns)
    assert {"replicate", "seed"} & {*columns} == ({phase.key} if phase.key else set())


def test_every_status_is_explained() -> None:
    page = (Path(__file__).parents[2] / "results" / "README.md").read_text(encoding="utf-8")
    statuses = page.split("## Statuses")[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", statuses, flags=re.M) == list(get_args(Status))


def test_quantities_have_their_unit_in_the_name() -> None:
    quantity = re.compile(r"time|power|bytes|memory|peak|temperature|clock|utiliz")
    measured = 0
    for columns in COLUMNS.values():
        for field in columns.values():
            if field.kind == "number" and quantity.search(field.name):
                measured += 1
                assert field.unit, field.name
    assert measured
