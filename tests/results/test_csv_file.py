"""A CSV is read as typed columns; what no run writes is refused with the file, the line and the
column.
"""

import re
from pathlib import Path

import pytest

from bench.report.reading.load import load
from bench.results.columns import COLUMNS
from bench.results.csv_file import read
from bench.spec.errors import UsageError
from tests.report.builders import RunBuilder
from tests.rows import rows, write_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return RunBuilder(tmp_path / "run").speed().train("fp32", [90.0, 90.4]).folder


@pytest.fixture
def speed(run: Path) -> Path:
    return run / "speed.csv"


def spoil(path: Path, line: int, **values: str) -> None:
    """Change values in one line of a CSV, the header being line 1."""
    written = rows(path.parent, path.name)
    written[line - 2].update(values)
    write_rows(path.parent, path.name, written)


def refused(path: Path, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{path.name}', {message}")):
        read(path)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("speed.csv", "samples_per_step", "-3.5"),
        ("speed.csv", "samples_per_step", "0"),
        ("speed.csv", "samples_per_step", "inf"),
        ("speed.csv", "samples_per_step", "quick"),
        ("speed.csv", "wall_s", "-1"),
        ("speed.csv", "status", "fine"),
        ("speed.csv", "status", ""),
        ("speed.csv", "parameters", "[]"),
        ("speed.csv", "steady", "perhaps"),
        ("epochs.csv", "train_s", "-1"),
        ("blocks.csv", "steps", ""),
    ],
)
def test_an_impossible_value_is_refused_with_file_line_and_column(run, name, column, value):
    spoil(run / name, 3, **{column: value})
    refused(run / name, f"line 3: {column} cannot be '{value}'")


def test_what_diverged_may_be_nan_or_infinite(run):
    spoil(run / "epochs.csv", 2, train_loss="inf", test_loss="nan")
    assert len(load([run]).details["epochs"]) == 4


def test_a_line_cut_off_in_the_middle_of_a_file_is_refused_and_the_last_one_left_out(speed):
    before = read(speed)
    text = speed.read_text()
    lines = text.splitlines()
    torn = lines[2][:40]
    speed.write_text(text + torn)
    assert read(speed).equals(before)
    lines[2] = torn
    speed.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match=r"speed.csv', line 3: \w+ cannot be"):
        read(speed)


@pytest.mark.parametrize("odd", [b'"', b"\xff"])
def test_a_file_with_a_quote_or_a_byte_that_no_run_writes_is_refused_by_its_name(speed, odd):
    data = speed.read_bytes()
    speed.write_bytes(data.replace(b",mlp,", b"," + odd + b"mlp,", 1))
    with pytest.raises(UsageError, match=r"speed\.csv'(, line 2: \w+ cannot| cannot be read: )"):
        read(speed)


def test_a_column_that_is_not_there_is_empty_unless_every_row_has_a_value(speed):
    text = speed.read_text()
    speed.write_text(text.replace(",paired,", ",lost,", 1))
    frame = read(speed)
    assert (frame["paired"] == "").all()
    assert list(frame) == [*COLUMNS["speed.csv"]]
    speed.write_text(text.replace(",batch_size,", ",size,", 1))
    refused(speed, "line 1 lacks the column batch_size")
    _, _, without_header = text.partition("\n")
    speed.write_text(without_header)
    refused(speed, "line 1 lacks the column")


@pytest.mark.parametrize("name", ["speed.csv", "epochs.csv"])
def test_a_file_with_its_columns_in_another_order_and_saved_by_a_spreadsheet_reads_as_before(
    run, name
):
    path = run / name
    before = read(path)
    text = ""
    for line in path.read_text().splitlines():
        cells = line.split(",")
        cells.reverse()
        text += f"mine,{','.join(cells)}\r\n"
    path.write_text(text, encoding="utf-8-sig", newline="")
    assert read(path).equals(before)


def test_words_that_look_like_numbers_stay_words(speed):
    spoil(speed, 2, suite="12345e678901", detail="nan")
    row = read(speed).iloc[0]
    assert row["suite"] == "12345e678901"
    assert row["detail"] == "nan"
    assert row["placement"] == "0"
