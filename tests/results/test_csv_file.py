"""Figures that no measurement gives are refused with the file and the line; what can be left out is, with a warning."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.report.reading.load import load
from bench.results.columns import COLUMNS, SCHEMA
from bench.results.records import Column, Explained, TrialResult
from bench.spec.errors import UsageError
from tests.report import fleet
from tests.report.builders import RunBuilder
from tests.report.fleet import original


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return original(tmp_path / "run", train=False)


def spoil(folder: Path, line: int, name: str = "trials.csv", **values: str) -> None:
    """Change values in one line of a CSV, the header being line 1."""
    seen = [1]

    def change(row: dict[str, str]) -> None:
        seen[0] += 1
        if seen[0] == line:
            row.update(values)

    fleet.edit_rows(folder, change, name)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load([folder])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step_ms": "-3.5"}, "step_ms '-3.5' must be above 0"),
        ({"step_ms": "0"}, "step_ms '0' must be above 0"),
        ({"step_ms": ""}, "step_ms is missing in a measured row of phase speed"),
        ({"step_ms": "nan"}, "step_ms is missing in a measured row of phase speed"),
        ({"samples_per_s": "inf"}, "samples_per_s 'inf' is infinite"),
        ({"wall_s": "-1"}, "wall_s '-1' cannot be below 0"),
        ({"status": "fine"}, "status 'fine' is none of ok, unconverged"),
        ({"phase": "nap"}, "phase 'nap' is none of fit, memory"),
        ({"batch_size": ""}, "batch_size is missing"),
        ({"batch_size": "64.5"}, "batch_size '64.5' is no whole number"),
        ({"precision": ""}, "precision is empty"),
        ({"foreign_load_pct": "130"}, "foreign_load_pct '130' cannot be above 100"),
        ({"step_ms": "quick"}, "step_ms 'quick' is no number"),
        ({"placement": ""}, "placement is empty"),
        ({"parameters_json": "[]"}, "parameters_json '[]' is not an object in JSON"),
        ({"device_names": "[[1"}, "device_names '[[1' is not a list in JSON"),
        ({"steady": "perhaps"}, "steady 'perhaps' is neither yes nor no"),
    ],
)
def test_an_impossible_value_is_refused_with_file_line_and_value(run, values, message):
    spoil(run, 3, **values)
    with pytest.raises(UsageError, match=rf"trials.csv'(, | cannot be read: )line 3: {re.escape(message)}"):
        load([run])


def test_so_it_is_in_the_other_files(tmp_path):
    run = original(tmp_path / "run")
    spoil(run, 2, "epochs.csv", train_s="-1")
    refused(run, "epochs.csv', line 2: train_s '-1' cannot be below 0")
    with (run / "blocks.csv").open("a") as file:
        file.write(f"{SCHEMA},trial,fp32,0,1\n")
    refused(run, "blocks.csv', line 2: steps")


def test_the_line_is_right_after_a_detail_with_line_breaks(tmp_path):
    run = RunBuilder(tmp_path / "run").lost("memory", "fp32", "failed", "one\ntwo\nthree").speed()
    spoil(run.folder, 3, step_ms="-1")
    refused(run.folder, "line 5: step_ms '-1'")


def test_several_bad_lines_are_counted(run):
    fleet.edit_rows(run, lambda row: row["step_ms"] and row.update(step_ms="-1"))
    with pytest.raises(UsageError, match=r"line 2: .* So is it in 5 more lines"):
        load([run])


def test_what_diverged_may_be_nan_or_infinite_and_differences_may_be_negative(tmp_path):
    run = original(tmp_path / "run")
    spoil(run, 2, "epochs.csv", train_loss="inf", test_loss="nan")
    spoil(run, 2, long_block_pct="-3", switch_transient_pct="-0.5", communication_pct="-1")
    assert len(load([run]).epochs) == 8


def test_a_line_cut_off_in_the_middle_of_a_file_is_refused_and_the_last_one_left_out_with_a_warning(run):
    path = run / "trials.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + lines[-1][:40])
    read = load([run])
    assert len(read.trials) == len(lines) - 1
    assert read.runs[0].remarks[0] == "The last write to trials.csv was cut off, and does not count."
    path.write_text("".join([*lines[:2], lines[2][:40] + "\n", *lines[3:]]))
    with pytest.raises(UsageError, match=r"trials.csv', line 3: \w+ is empty"):
        load([run])


@pytest.mark.parametrize("name", ["trials.csv", "epochs.csv"])
def test_a_field_that_is_longer_than_any_that_a_run_writes_is_refused_with_its_line(tmp_path, name):
    run = original(tmp_path / "run")
    edited = "detail" if name == "trials.csv" else "precision"
    fleet.edit_rows(run, lambda row: row.update({edited: "x" * 200_000}), name)
    refused(run, f"{name}', line 2 cannot be read: field larger than field limit (131072)")


# The header and the schema.


def test_a_column_added_after_a_run_was_written_is_empty_there_and_no_other_may_lack(run, monkeypatch):
    path = run / "trials.csv"
    path.write_text(path.read_text().replace(",compute_dtypes,flops_per_step,", ",lost,gone,", 1))
    refused(run, "lacks the column compute_dtypes")
    for name in ("compute_dtypes", "flops_per_step"):
        field = replace(COLUMNS["trials.csv"][name], column=Column(added_later=True))
        monkeypatch.setitem(COLUMNS["trials.csv"], name, field)
    trials = load([run]).trials
    assert (trials["compute_dtypes"] == "").all()
    assert trials["flops_per_step"].isna().all()
    assert list(trials)[: len(COLUMNS["trials.csv"])] == [*COLUMNS["trials.csv"]]


def test_columns_may_stand_in_another_order_and_no_header_is_refused(run):
    trials, before = run / "trials.csv", load([run]).trials
    lines = trials.read_text().splitlines()
    trials.write_text("\n".join(",".join(reversed(line.split(","))) for line in lines) + "\n")
    assert load([run]).trials.equals(before)
    trials.write_text("\n".join(lines[1:]) + "\n")
    refused(run, "has no column schema")


def test_a_file_without_rows_needs_its_columns_too_for_rows_would_be_written_below_them(run):
    blocks = run / "blocks.csv"
    assert load([run]).blocks.empty
    blocks.write_text(blocks.read_text().replace(",discarded", ""))
    refused(run, "lacks the column discarded")


def test_rows_of_another_schema_are_refused_and_told_from_a_changed_header(run):
    spoil(run, 4, schema="4")
    refused(run, "holds rows of schema 4")
    trials = run / "trials.csv"
    trials.write_text(trials.read_text().replace(f"\n{SCHEMA},", "\n99,").replace(",techniques", ",tricks", 1))
    refused(run, "holds rows of schema 99")


def test_a_run_saved_by_a_spreadsheet_reads_as_before(tmp_path):
    run = original(tmp_path / "run")
    plain = load([run])
    for name in ("trials.csv", "epochs.csv"):
        path = run / name
        path.write_text(path.read_text().replace("\n", "\r\n"), encoding="utf-8-sig", newline="")
    saved = load([run])
    assert saved.trials.equals(plain.trials)
    assert saved.epochs.equals(plain.epochs)
    assert saved.runs[0].remarks == plain.runs[0].remarks
    trials = run / "trials.csv"
    trials.write_text(trials.read_text(encoding="utf-8-sig").replace(",10.0,", ",quick,"), encoding="utf-8-sig")
    refused(run, "line 2: step_ms 'quick' is no number")


def test_words_that_look_like_numbers_stay_words(tmp_path):
    run = RunBuilder(tmp_path / "run").lost("memory", "fp32", "failed", "nan")
    fleet.edit_rows(run.folder, lambda row: row.update(config="12345e678901"))
    row = load([run.folder]).trials.iloc[0]
    assert (row["config"], row["detail"], row["placement"]) == ("12345e678901", "nan", "0")


@pytest.mark.parametrize(("line", "value"), [(2, "-5"), (3, "-0.1")])
def test_a_figure_of_the_explain_phase_below_0_is_refused(tmp_path, line, value):
    builder = RunBuilder(tmp_path / "run")
    trial = builder.trial("explain", ["fp32"], 64)
    figures = [("step", "timed", 9.5), ("class", "communication", 0.0), ("best", "mm float32[8x8]", 0.1)]
    rows = [
        Explained(trial=trial.id, precision="fp32", kind=kind, name=name, round=0, count=2, value=figure)
        for kind, name, figure in figures
    ]
    run = builder.add(trial, TrialResult(precision="fp32", status="ok"), records=rows).folder
    assert len(load([run]).explained) == 3
    spoil(run, line, "explain.csv", value=value)
    refused(run, f"explain.csv', line {line}: value '{value}' ")
