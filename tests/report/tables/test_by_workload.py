"""The table of each model with every precision on each device."""

from pathlib import Path

import pytest

from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.reading.load import load
from bench.report.tables.measurements import by_workload
from tests.report import fleet
from tests.report.builders import RunBuilder
from tests.report.tables.lines import lines


def answered(*folders: Path):
    """The tables of some runs, and their answers."""
    summary = summarise(load(list(folders)).trials)
    given = answers(summary)
    return by_workload(summary, given), given


def test_the_advised_row_stands_out_and_one_that_ties_with_it_is_marked(tmp_path: Path) -> None:
    run = (
        RunBuilder(tmp_path / "run")
        .speed("amp-fp16", [2.0, 2.02, 1.98])
        .speed("amp-bf16", [1.99, 2.03, 1.98])
    )
    (table,), _ = answered(run.folder)
    assert [table.rows[place][2] for place in table.strong] == ["amp-bf16"]
    assert [line["precision"] for line in lines(table)] == ["fp32", "amp-fp16 ≈", "amp-bf16"]
    assert "≈ as fast as the advised one." in table.footnotes
    stay = RunBuilder(tmp_path / "stay").speed(speedups=(0.5, 0.51, 0.49))
    (table,), _ = answered(stay.folder)
    assert [table.rows[place][2] for place in table.strong] == ["fp32"]


@pytest.mark.parametrize(
    ("trained", "sizes", "expected"),
    [
        (None, ((64, 128, 256), (64, 128)), ("128", "128")),  # the largest that both have
        (64, ((64, 128, 256), (64, 128)), ("64", "64")),
        (None, ((64, 256), (128,)), ("256", "128")),  # none in common: each one's largest
    ],
)
def test_devices_are_shown_at_the_batch_that_was_trained_else_at_the_largest_common_to_all(
    tmp_path: Path,
    trained: int | None,
    sizes: tuple[tuple[int, ...], ...],
    expected: tuple[str, ...],
) -> None:
    folders = []
    for name, of_device in zip("ab", sizes, strict=True):
        run = RunBuilder(tmp_path / f"run-{name}")
        for batch in of_device:
            run.speed(batch=batch)
        if trained:
            run.train("fp32", [90.0], batch=trained).train("amp-bf16", [90.0], batch=trained)
        folders.append(
            fleet.copy(run.folder, tmp_path / name, device=f"Card {name}", architecture="Volta")
        )
    (table,), given = answered(*folders)
    shown = {line["device"]: line["batch size"] for line in lines(table)}
    assert tuple(shown.values()) == expected
    assert [str(answer.batch) for answer in given] == [*expected]


@pytest.mark.parametrize(
    ("times", "shown"), [((9.0, 2.0, 2.2, 2.1), "2.100 (2.00–2.20)"), ((9.0,), "9.000")]
)
def test_time_per_epoch_is_shown_with_the_fastest_and_the_slowest_after_the_first(
    tmp_path: Path, times: tuple[float, ...], shown: str
) -> None:
    run = RunBuilder(tmp_path / "run").speed().train("fp32", [90.0], epochs=len(times), epoch_s=3.0)
    fleet.edit_rows(
        run.folder, lambda row: row.update(train_s=str(times[int(row["epoch"]) - 1])), "epochs.csv"
    )
    (table,), _ = answered(run.folder)
    assert lines(table)[0]["time/epoch (s)"] == shown
