"""The matrix of setups: which is there, by which figure, at which batch size, and over which other."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.report.analysis.summary import summarise, without_unsupported
from bench.report.format import ratio
from bench.report.reading.load import load
from bench.report.tables.setups import setups
from bench.report.tables.table import Material, Table
from tests.report import fleet
from tests.report.builders import GPU, RunBuilder
from tests.report.fleet import copy, original
from tests.rows import rows, write_rows

STEPS, EPOCHS = "mlp: throughput", "mlp: time per epoch"
OWN = 3
"""Columns before the ratios."""


def matrices(*folders: Path) -> dict[str, Table]:
    runs = load(list(folders))
    summary = summarise(runs.trials)
    made = setups(Material(runs=runs, summary=summary, rows=without_unsupported(summary)))
    return {table.title: table for table in made if isinstance(table, Table)}


def names(table: Table) -> list[str]:
    return [row[0].partition(". ")[2] for row in table.rows]


def over(table: Table, row: str, column: str) -> str:
    """The cell of a setup over a slower one."""
    return table.rows[names(table).index(row)][OWN + names(table).index(column) - 1]


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Three machines: the second twice as fast as the first, the third four times."""
    first = copy(original(tmp_path / "raw"), tmp_path / "one", device="Card A", architecture="Volta")
    two = copy(tmp_path / "raw", tmp_path / "two", device="Card B", architecture="Ampere", faster=2.0)
    return [first, two, copy(tmp_path / "raw", tmp_path / "four", device="Card C", architecture="Hopper", faster=4.0)]


def test_every_setup_stands_over_every_slower_one(three):
    matrix = matrices(*three)[STEPS]
    assert set(names(matrix)) == {f"Card {card}, {arm}" for card in "ABC" for arm in ("fp32", "amp-bf16")}
    assert (names(matrix)[0], names(matrix)[-1]) == ("Card C, amp-bf16", "Card A, fp32")
    assert [[cell == "–" for cell in row[OWN:]] for row in matrix.rows] == [
        [column < row for column in range(5)] for row in range(6)
    ]
    assert over(matrix, "Card C, fp32", "Card A, fp32") == "4.000"
    row = summarise(load(three).trials).query("device == 'Card A' and precision == 'amp-bf16'").iloc[0]
    assert over(matrix, "Card A, amp-bf16", "Card A, fp32") == ratio(row["speedup"])


def test_time_per_epoch_has_a_matrix_for_each_data_that_was_trained_on(three):
    assert over(matrices(*three)[EPOCHS], "Card B, fp32", "Card A, fp32").startswith("2.0")
    fleet.edit_rows(three[2], lambda row: row.update(data="folder:/other"))
    assert not any("Card C" in name for name in names(matrices(*three)[EPOCHS]))
    assert "Card C (folder:/other), fp32" in names(matrices(*three)[STEPS])


def test_two_setups_and_two_recipes_have_no_matrix(tmp_path):
    run = original(tmp_path / "run")
    assert matrices(run, original(tmp_path / "other", suite="resnet20")) == {}


def test_what_did_not_fit_at_the_common_batch_is_compared_at_its_own(three, tmp_path):
    run = RunBuilder(tmp_path / "small", device=replace(GPU, name="Card D")).speed(batch=64)
    for arm in ("fp32", "amp-bf16"):
        run.lost("speed", arm, "oom")
    rows = matrices(*three, run.folder)[STEPS].rows
    assert {row[1] for row in rows if "Card D" in row[0]} == {"64"}


def test_arms_timed_side_by_side_have_the_ratio_of_their_speedups(tmp_path):
    run = RunBuilder(tmp_path / "run").together({"amp-fp16": (2.20, 2.22, 2.18), "amp-bf16": (2.0, 2.0, 2.0)})
    matrix = matrices(run.folder)[STEPS]
    expected = run.row("amp-fp16")["speedup"] / run.row("amp-bf16")["speedup"]
    assert over(matrix, "Test 1, amp-fp16", "Test 1, amp-bf16") == ratio(expected)


def test_what_tells_setups_apart_is_in_their_names(three):
    for name in ("memory.csv", "speed.csv", "train.csv", "blocks.csv", "epochs.csv"):
        measured = rows(three[1], name)
        others = [
            {**row, "placement": place, "device": device, "trial": row["trial"].replace("mlp-0-", f"mlp-{place}-")}
            for place, device in (("1", "Card B"), ("0+1", "2 × Card B"))
            for row in measured
        ]
        write_rows(three[1], name, [*measured, *others])
    assert {"Card B (GPU 0), fp32", "Card B (GPU 1), fp32", "2 × Card B, fp32", "Card A, fp32"} < set(
        names(matrices(*three)[STEPS])
    )
