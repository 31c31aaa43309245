"""The table of each model with every precision on each device."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.reading.load import load
from bench.report.tables.measurements import by_workload
from bench.report.tables.table import Table
from tests.report.builders import GPU, RunBuilder
from tests.report.tables.lines import column
from tests.rows import edit_rows


def tables_of(*folders: Path) -> list[Table]:
    """The tables of some runs, one for each model."""
    summary = summarise(load([*folders]).trials)
    return by_workload(summary, answers(summary))


def strong(table: Table) -> list[str]:
    """The precisions of the rows that stand out."""
    precisions = column(table, "precision")
    return [precisions[place] for place in table.strong]


def test_the_advised_row_stands_out_and_one_that_ties_with_it_is_marked(tmp_path):
    run = RunBuilder(tmp_path / "run").speed("amp-fp16")
    run.speed("amp-bf16", [1.99, 2.03, 1.98])
    (table,) = tables_of(run.folder)
    assert strong(table) == ["amp-bf16"]
    assert column(table, "precision") == ["fp32", "amp-fp16 ≈", "amp-bf16"]
    assert "≈ as fast as the advised one." in table.footnotes
    stay = RunBuilder(tmp_path / "stay").speed(speedups=(0.5, 0.51, 0.49))
    (table,) = tables_of(stay.folder)
    assert strong(table) == ["fp32"]


@pytest.mark.parametrize(
    ("accuracies", "sizes", "expected"),
    [
        ([], ((64, 128, 256), (64, 128)), {128}),  # the largest that both have
        ([90.0], ((64, 128, 256), (64, 128)), {64}),
        ([], ((64, 256), (128,)), {256, 128}),  # none in common: each one's largest
    ],
)
def test_devices_are_shown_at_the_batch_that_was_trained_else_at_the_largest_common_to_all(
    tmp_path, accuracies, sizes, expected
):
    folders = []
    for card, of_card in zip("AB", sizes, strict=True):
        device = replace(GPU, name=card)
        run = RunBuilder(tmp_path / card, device=device)
        for batch in of_card:
            run.speed(batch=batch)
        for name in ("fp32", "amp-bf16"):
            run.train(name, accuracies, batch=64)
        folders.append(run.folder)
    (table,) = tables_of(*folders)
    shown = {int(batch) for batch in column(table, "batch size")}
    assert shown == expected


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ((9.0, 2.0, 2.2, 2.1), "2.100 (2.00–2.20)"),
        ((9.0,), "9.000"),
    ],
)
def test_time_per_epoch_is_shown_with_the_fastest_and_the_slowest_after_the_first(
    tmp_path, times, shown
):
    run = RunBuilder(tmp_path / "run").speed()
    run.train("fp32", [90.0], epochs=len(times))

    def timed(row: dict[str, str]) -> None:
        epoch = int(row["epoch"])
        row["train_s"] = str(times[epoch - 1])

    edit_rows(run.folder, timed, "epochs.csv")
    (table,) = tables_of(run.folder)
    assert column(table, "time/epoch (s)")[0] == shown
