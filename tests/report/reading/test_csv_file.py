"""Figures that no measurement gives are refused with the file and the line; what can be left out is, with a warning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.report.reading.load import load
from bench.results.columns import COLUMNS, SCHEMA
from bench.results.records import Column, TrialResult
from bench.spec.errors import UsageError
from tests.report import fleet
from tests.report.builders import RunBuilder, write_report
from tests.report.fleet import original


def spoil(folder: Path, line: int, name: str = "trials.csv", **values: str) -> None:
    """Change values in one line of a CSV, the header being line 1."""
    seen = [1]

    def change(row):
        seen[0] += 1
        if seen[0] == line:
            row.update(values)

    fleet.edit_rows(folder, change, name)


@pytest.mark.parametrize(
    ("values", "said"),
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
        ({"precision": ""}, "precision is empty"),
        ({"foreign_load_pct": "130"}, "foreign_load_pct '130' cannot be above 100"),
        ({"speedup": "9"}, "speedup '9' lies outside its own interval"),
        ({"samples_per_s": "25000"}, "samples_per_s '25000' is not batch_size over step_ms"),
        ({"batch_size": "64"}, "samples_per_s '25600' is not batch_size over step_ms"),
        ({"checkpoint_bytes": "2e15"}, "checkpoint_bytes '2e+15' is more memory than a machine has"),
        ({"step_ms": "quick"}, "step_ms 'quick' is no number"),
    ],
)
def test_an_impossible_value_is_refused_with_file_line_and_value(tmp_path, values, said):
    run = original(tmp_path / "run", train=False)
    spoil(run, 3, **values)
    with pytest.raises(UsageError) as caught:
        load([run])
    assert f"trials.csv', line 3: {said}" in str(caught.value).replace("cannot be read: ", "").replace(
        "csv' line", "csv', line"
    )


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("epochs.csv", {"train_s": "-1"}, "train_s '-1' cannot be below 0"),
        ("epochs.csv", {"samples_per_s": "900"}, "samples_per_s '900' is not samples over train_s"),
        ("epochs.csv", {"epoch": "0"}, "epoch '0' must be above 0"),
        ("epochs.csv", {"test_accuracy_pct": "101"}, "cannot be above 100"),
    ],
)
def test_so_it_is_in_the_other_files(tmp_path, name, values, said):
    run = original(tmp_path / "run")
    spoil(run, 2, name, **values)
    with pytest.raises(UsageError, match=rf"{name}', line 2: .*{said}"):
        load([run])


def test_a_rounded_throughput_is_fine(tmp_path):
    run = original(tmp_path / "run", train=False)
    fleet.edit_rows(run, lambda row: row["step_ms"] and row.update(step_ms=f"{float(row['step_ms']):.3g}"))
    assert len(load([run]).trials) == 8


def test_the_line_is_right_after_a_detail_with_line_breaks(tmp_path):
    run = RunBuilder(tmp_path / "run")
    broken = TrialResult(precision="fp32", status="failed", detail="one\ntwo\nthree")
    run.add(run.trial("memory", ["fp32"], 128), broken).speed()
    spoil(run.folder, 3, step_ms="-1")
    with pytest.raises(UsageError, match=r"line 5: step_ms '-1'"):
        load([run.folder])


def test_several_bad_lines_are_counted(tmp_path):
    run = original(tmp_path / "run", train=False)
    fleet.edit_rows(run, lambda row: row["step_ms"] and row.update(step_ms="-1"))
    with pytest.raises(UsageError, match=r"line 2: .* So is it in 5 more lines"):
        load([run])


@pytest.mark.parametrize(("gib", "refused"), [(79.0, False), (81.0, True)])
def test_a_peak_above_the_devices_own_memory_is_refused_with_its_line(tmp_path, gib, refused):
    run = original(tmp_path / "run", train=False)
    fleet.edit_run(run, lambda info: info["environment"]["devices"][0].update(memory_total_bytes=80 * 2**30))
    # The first row is of a trial that was tried again: the line is that of the file, not of what is left of it.
    first = run / "trials.csv"
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join([lines[0], lines[1].replace(",ok,", ",failed,"), *lines[1:]]))
    spoil(run, 9, peak_allocated_bytes=f"{gib * 2**30:.0f}")
    if not refused:
        assert len(load([run]).trials) == 8
        return
    with pytest.raises(
        UsageError, match=r"trials.csv', line 9: peak_allocated_bytes .* more memory than the device has"
    ):
        load([run])


def test_what_diverged_may_be_nan_or_infinite_and_differences_may_be_negative(tmp_path):
    run = original(tmp_path / "run")
    spoil(run, 2, "epochs.csv", train_loss="inf", test_loss="nan")
    spoil(run, 2, long_block_pct="-3", switch_transient_pct="-0.5", communication_pct="-1")
    assert len(load([run]).epochs) == 8


def test_a_line_cut_off_in_the_middle_of_a_file_is_refused_and_the_last_one_left_out_with_a_warning(tmp_path):
    run = original(tmp_path / "run", train=False)
    path = run / "trials.csv"
    lines = path.read_text().splitlines(keepends=True)
    whole = len(load([run]).trials)
    path.write_text("".join(lines) + lines[-1][:40])
    read = load([run])
    assert len(read.trials) == whole
    assert read.runs[0].remarks[0] == "trials.csv ends in the middle of a line, which is left out."
    assert "Run run: trials.csv ends in the middle" in write_report([run], tmp_path / "out", figures="none").read_text()
    path.write_text("".join([*lines[:2], lines[2][:40] + "\n", *lines[3:]]))
    with pytest.raises(UsageError, match=r"trials.csv', line 3: \d+ fields of \d+, so the line was cut off"):
        load([run])


def test_a_short_line_of_blocks_is_refused_too(tmp_path):
    run = original(tmp_path / "run", train=False)
    blocks = run / "blocks.csv"
    trial = load([run]).trials.query("phase == 'speed'").iloc[0]["trial"]
    blocks.write_text(blocks.read_text() + f"{SCHEMA},{trial},fp32,0,0,5,10.0,1.0,0,\n{SCHEMA},{trial},fp32,0,1\n")
    with pytest.raises(UsageError, match=r"blocks.csv', line 3: .*cut off"):
        load([run])


def test_rows_twice_without_a_failure_count_once_with_a_warning_and_a_retried_trial_has_none(tmp_path):
    run = original(tmp_path / "run", train=False)
    path = run / "trials.csv"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows, *rows[1:3]]))
    read = load([run])
    assert len(read.trials) == len(rows) - 1
    assert "trials.csv has 2 rows twice, first mlp-0-b128-speed-r0 in fp32, line 2" in read.runs[0].remarks[0]
    retried = RunBuilder(tmp_path / "again").lost("memory", "fp32", "failed", "crash").memory("fp32", 10)
    assert load([retried.folder]).runs[0].remarks == ()


def test_a_column_added_after_a_run_was_written_is_empty_there_and_no_other_may_lack(tmp_path, monkeypatch):
    run = original(tmp_path / "run")
    path = run / "trials.csv"
    path.write_text(path.read_text().replace(",compute_dtypes,flops_per_step,", ",lost,gone,", 1))
    with pytest.raises(UsageError, match="lacks the column compute_dtypes"):
        load([run])
    for name in ("compute_dtypes", "flops_per_step"):
        field = replace(COLUMNS["trials.csv"][name], column=Column(added_later=True))
        monkeypatch.setitem(COLUMNS["trials.csv"], name, field)
    trials = load([run]).trials
    assert (trials["compute_dtypes"] == "").all()
    assert trials["flops_per_step"].isna().all()
    assert list(trials) == list(COLUMNS["trials.csv"])


@pytest.mark.parametrize("schema", [0, 4, 6, None, "three", 5.5])
def test_any_other_schema_is_refused_in_a_sentence(tmp_path, schema):
    run = original(tmp_path / "run", train=False)
    (run / "run.json").write_text(json.dumps({"schema": schema}))
    with pytest.raises(UsageError, match=rf"has schema {json.dumps(schema)}; this version reads schema {SCHEMA}"):
        load([run])


def test_a_file_whose_rows_are_of_two_schemas_is_refused_where_one_is_unknown(tmp_path):
    run = original(tmp_path / "run", train=False)
    spoil(run, 4, schema="4")
    with pytest.raises(UsageError, match="holds rows of schema 4"):
        load([run])
