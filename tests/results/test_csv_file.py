"""A CSV is read as typed columns; what no run writes is refused with the file, the line and the column."""

import re
from pathlib import Path

import pytest

from bench.report.reading.load import load
from bench.report.reading.trials import TRIALS
from bench.spec.errors import UsageError
from tests.report.builders import RunBuilder
from tests.report.fleet import original
from tests.rows import edit_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return original(tmp_path / "run")


def spoil(folder: Path, line: int, name: str = "speed.csv", **values: str) -> None:
    """Change values in one line of a CSV, the header being line 1."""
    seen = [1]

    def change(row: dict[str, str]) -> None:
        seen[0] += 1
        if seen[0] == line:
            row.update(values)

    edit_rows(folder, change, name)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load([folder])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("samples_per_step", value) for value in ("-3.5", "0", "inf", "quick")),
        ("wall_s", "-1"),
        ("status", "fine"),
        ("batch_size", ""),
        ("precision", ""),
        ("parameters", "[]"),
        ("steady", "perhaps"),
    ],
)
def test_an_impossible_value_is_refused_with_file_line_and_column(run, column, value):
    spoil(run, 3, **{column: value})
    refused(run, f"speed.csv', line 3: {column} cannot be '{value}'")


def test_so_it_is_in_the_other_files(run):
    spoil(run, 2, "epochs.csv", train_s="-1")
    refused(run, "epochs.csv', line 2: train_s cannot be '-1'")
    with (run / "blocks.csv").open("a") as file:
        file.write("trial,fp32,0,1\n")
    refused(run, "blocks.csv', line 242: steps cannot be ''")


def test_what_diverged_may_be_nan_or_infinite_and_differences_may_be_negative(run):
    spoil(run, 2, "epochs.csv", train_loss="inf", test_loss="nan")
    spoil(run, 2, switch_transient_pct="-0.5", communication_pct="-1")
    assert len(load([run]).details["epochs"]) == 8


def test_a_line_cut_off_in_the_middle_of_a_file_is_refused_and_the_last_one_left_out_with_a_warning(run):
    path = run / "speed.csv"
    lines = path.read_text().splitlines(keepends=True)
    before = len(load([run]).trials)
    path.write_text("".join(lines) + lines[-1][:40])
    read = load([run])
    assert len(read.trials) == before
    assert read.runs[0].remarks[0] == "The last write to speed.csv was cut off, and does not count."
    path.write_text("".join([*lines[:2], lines[2][:40] + "\n", *lines[3:]]))
    with pytest.raises(UsageError, match=r"speed.csv', line 3: \w+ cannot be"):
        load([run])


@pytest.mark.parametrize("odd", [b'"', b"\xff"])
def test_a_file_with_a_quote_or_a_byte_that_no_run_writes_is_refused_by_its_name(run, odd):
    path = run / "speed.csv"
    path.write_bytes(path.read_bytes().replace(b",mlp,", b"," + odd + b"mlp,", 1))
    with pytest.raises(UsageError, match=r"speed\.csv'?(, line 2: \w+ cannot be| cannot be read: )"):
        load([run])


def test_a_column_that_is_not_there_is_empty_unless_every_row_has_a_value(run):
    path = run / "speed.csv"
    path.write_text(path.read_text().replace(",paired,", ",lost,", 1))
    trials = load([run]).trials
    assert (trials["paired"] == "").all()
    assert list(trials)[: len(TRIALS)] == [*TRIALS]
    path.write_text(path.read_text().replace(",batch_size,", ",size,", 1))
    refused(run, "speed.csv', line 1 lacks the column batch_size")


def test_columns_may_stand_in_another_order_and_no_header_is_refused(run):
    epochs = run / "epochs.csv"
    lines = epochs.read_text().splitlines()
    epochs.write_text("\n".join([f"note,{lines[0]}", *(f"mine,{line}" for line in lines[1:])]) + "\n")
    trials, before = run / "speed.csv", load([run]).trials
    lines = trials.read_text().splitlines()
    trials.write_text("\n".join(",".join(reversed(line.split(","))) for line in lines) + "\n")
    assert load([run]).trials.equals(before)
    trials.write_text("\n".join(lines[1:]) + "\n")
    refused(run, "line 1 lacks the column")


def test_a_run_saved_by_a_spreadsheet_reads_as_before(run):
    plain = load([run])
    for name in ("speed.csv", "epochs.csv"):
        path = run / name
        path.write_text(path.read_text().replace("\n", "\r\n"), encoding="utf-8-sig", newline="")
    saved = load([run])
    assert saved.trials.equals(plain.trials)
    assert saved.details["epochs"].equals(plain.details["epochs"])
    assert saved.runs[0].remarks == plain.runs[0].remarks == ()
    trials = run / "speed.csv"
    trials.write_text(trials.read_text(encoding="utf-8-sig").replace(",128,", ",quick,"), encoding="utf-8-sig")
    refused(run, "line 2: batch_size cannot be 'quick'")


def test_words_that_look_like_numbers_stay_words(tmp_path):
    run = RunBuilder(tmp_path / "run").lost("memory", "fp32", "failed", "nan")
    edit_rows(run.folder, lambda row: row.update(suite="12345e678901"))
    row = load([run.folder]).trials.iloc[0]
    assert (row["suite"], row["detail"], row["placement"]) == ("12345e678901", "nan", "0")
