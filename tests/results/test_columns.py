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
    columns = list(COLUMNS[phase.file])
    assert columns[:5] == ["trial", "suite", "parameters", "device", "architecture"]
    assert [name for name in ("replicate", "seed") if name in columns] == ([phase.key] if phase.key else [])
    own = [field.name for field in dataclasses.fields(phase.row)] if phase.row else []
    own = [name for name in own if name not in derived(phase)]
    assert columns[columns.index("started") + 1 :][: len(own)] == own


def test_kinds_and_valid_values_follow_the_fields_of_the_records() -> None:
    speed, blocks, epochs = (COLUMNS[name] for name in ("speed.csv", "blocks.csv", "epochs.csv"))
    kinds = [speed[name].kind for name in ("suite", "wall_s", "paired", "techniques", "parameters")]
    assert kinds == ["word", "number", "yes or no", "list", "JSON object"]
    assert speed["status"].words == get_args(Status)
    assert [speed[name].required for name in ("batch_size", "replicate", "warmup_steps")] == [True, False, False]
    fields = (blocks["time_ms"], epochs["test_accuracy_pct"], epochs["train_loss"], epochs["samples_per_s"])
    assert [field.values for field in fields] == ["ms, > 0", "%, ≥ 0", "number", "1/s, > 0"]


def test_what_follows_from_other_rows_is_not_stored() -> None:
    speed = derived(MEASURING["speed"])
    assert "log_speedup" in speed
    assert not {*speed} & {*COLUMNS["speed.csv"]}


def test_every_status_is_explained() -> None:
    page = (Path(__file__).parents[2] / "results" / "README.md").read_text(encoding="utf-8")
    statuses = page.split("## Statuses")[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", statuses, flags=re.M) == list(get_args(Status))


def test_quantities_have_their_unit_in_the_name() -> None:
    columns = [field for file in COLUMNS.values() for field in file.values() if field.kind == "number"]
    quantity = re.compile(r"time|power|bytes|memory|peak|temperature|clock|utiliz")
    measured = [field for field in columns if quantity.search(field.name)]
    assert measured
    assert {field.name for field in measured if not field.unit} == set()
