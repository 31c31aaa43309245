"""Figures that no measurement gives are refused with the file and the line; what can be left out is, with a warning."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.report.reading.load import load
from bench.results.columns import COLUMNS, SCHEMA
from bench.results.records import Block, Column, Explained, TrialResult
from bench.results.store import Store
from bench.spec.errors import UsageError
from tests.report import fleet
from tests.report.builders import RunBuilder, timed
from tests.report.fleet import original

STEPS_MS = {"fp32": 10.0, "amp-bf16": 5.0}
ROUNDS, DISCARDED, STEPS = 6, 2, 3


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return original(tmp_path / "run", train=False)


@pytest.fixture
def with_blocks(tmp_path: Path) -> Path:
    """A speed trial with all its blocks, two of its eight rounds disturbed."""
    builder = RunBuilder(tmp_path / "run")
    trial = builder.trial("speed", list(STEPS_MS), 64)
    blocks = [
        Block(
            trial=trial.id,
            precision=name,
            round=number,
            position=position,
            steps=STEPS,
            time_ms=STEPS * STEPS_MS[name] * (1 + number / 1000),
            start_s=float(number),
            discarded="throttled" if number < DISCARDED else "",
        )
        for number in range(DISCARDED + ROUNDS)
        for position, name in enumerate(["fp32", "amp-bf16", "amp-bf16", "fp32"])
    ]
    with Store(builder.folder) as store:
        store.add(blocks)
    speeds = {
        name: timed(step_ms * 1.0045, 64, discarded_rounds=DISCARDED, rounds=ROUNDS)
        for name, step_ms in STEPS_MS.items()
    }
    results = [TrialResult(precision=name, status="ok", speed=speed) for name, speed in speeds.items()]
    return builder.add(trial, *results).folder


def spoil(folder: Path, line: int, name: str = "trials.csv", **values: str) -> None:
    """Change values in one line of a CSV, the header being line 1."""
    seen = [1]

    def change(row: dict[str, str]) -> None:
        seen[0] += 1
        if seen[0] == line:
            row.update(values)

    fleet.edit_rows(folder, change, name)


def edit_lines(folder: Path, name: str, change: slice) -> None:
    """Remove lines of a CSV, the header being line 0."""
    path = folder / name
    kept = path.read_text().splitlines(keepends=True)
    del kept[change]
    path.write_text("".join(kept))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load([folder])


def remarks(folder: Path) -> tuple[str, ...]:
    return load([folder]).runs[0].remarks


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
        ({"speedup": "9"}, "speedup '9' lies outside its own interval"),
        ({"samples_per_s": "25000"}, "samples_per_s '25000' is not batch_size over step_ms"),
        ({"batch_size": "64"}, "samples_per_s '25600' is not batch_size over step_ms"),
        ({"checkpoint_bytes": "2e15"}, "checkpoint_bytes '2e+15' is more memory than a machine has"),
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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_s": "-1"}, "train_s '-1' cannot be below 0"),
        ({"samples_per_s": "900"}, "samples_per_s '900' is not samples over train_s"),
        ({"epoch": "0"}, "epoch '0' must be above 0"),
        ({"test_accuracy_pct": "101"}, "test_accuracy_pct '101' cannot be above 100"),
    ],
)
def test_so_it_is_in_the_other_files(tmp_path, values, message):
    run = original(tmp_path / "run")
    spoil(run, 2, "epochs.csv", **values)
    refused(run, f"epochs.csv', line 2: {message}")


def test_a_rounded_throughput_is_fine(run):
    fleet.edit_rows(run, lambda row: row["step_ms"] and row.update(step_ms=f"{float(row['step_ms']):.3g}"))
    assert len(load([run]).trials) == 8


def test_the_line_is_right_after_a_detail_with_line_breaks(tmp_path):
    run = RunBuilder(tmp_path / "run").lost("memory", "fp32", "failed", "one\ntwo\nthree").speed()
    spoil(run.folder, 3, step_ms="-1")
    refused(run.folder, "line 5: step_ms '-1'")


def test_several_bad_lines_are_counted(run):
    fleet.edit_rows(run, lambda row: row["step_ms"] and row.update(step_ms="-1"))
    with pytest.raises(UsageError, match=r"line 2: .* So is it in 5 more lines"):
        load([run])


@pytest.mark.parametrize(("gib", "too_much"), [(79.0, False), (81.0, True)])
def test_a_peak_above_the_devices_own_memory_is_refused_with_its_line(run, gib, too_much):
    fleet.edit_run(run, lambda info: info["environment"]["devices"][0].update(memory_total_bytes=80 * 2**30))
    # The first row is of a trial that was tried again: the line is that of the file, not of what is left of it.
    lines = (run / "trials.csv").read_text().splitlines(keepends=True)
    (run / "trials.csv").write_text("".join([lines[0], lines[1].replace(",ok,", ",failed,"), *lines[1:]]))
    spoil(run, 9, peak_allocated_bytes=f"{gib * 2**30:.0f}")
    if too_much:
        with pytest.raises(UsageError, match=r"trials.csv', line 9: peak_allocated_bytes .* than the device has"):
            load([run])
    else:
        assert len(load([run]).trials) == 8


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
    assert read.runs[0].remarks[0] == "trials.csv ends in the middle of a line, which is left out."
    path.write_text("".join([*lines[:2], lines[2][:40] + "\n", *lines[3:]]))
    with pytest.raises(UsageError, match=r"trials.csv', line 3: \d+ fields of \d+, so the line was cut off"):
        load([run])


def test_a_short_line_of_blocks_is_refused_too(with_blocks):
    with (with_blocks / "blocks.csv").open("a") as file:
        file.write(f"{SCHEMA},trial,fp32,0,1\n")
    with pytest.raises(UsageError, match=r"blocks.csv', line 34: .*cut off"):
        load([with_blocks])


def test_rows_twice_without_a_failure_count_once_with_a_warning_and_a_retried_trial_has_none(run, tmp_path):
    path = run / "trials.csv"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows, *rows[1:3]]))
    read = load([run])
    assert len(read.trials) == len(rows) - 1
    assert "trials.csv has 2 rows twice, first mlp-0-b128-speed-r0 in fp32, line 2" in read.runs[0].remarks[0]
    retried = RunBuilder(tmp_path / "again").lost("memory", "fp32", "failed", "crash").memory("fp32", 10)
    assert remarks(retried.folder) == ()


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
    assert list(trials) == [*COLUMNS["trials.csv"], "target_ci"]


def test_columns_in_another_order_and_swapped_names_are_refused(run):
    trials = run / "trials.csv"
    lines = trials.read_text().splitlines()
    swapped = lines[0].replace("step_ms,samples_per_s", "samples_per_s,step_ms")
    trials.write_text("\n".join([swapped, *lines[1:]]) + "\n")
    refused(run, "trials.csv', line 1: samples_per_s stands where step_ms belongs")
    trials.write_text("\n".join(",".join(reversed(line.split(","))) for line in lines) + "\n")
    refused(run, "fit_step_s stands where schema belongs")
    trials.write_text("\n".join(lines[1:]) + "\n")
    refused(run, "has no column schema")


def test_a_file_without_rows_needs_its_columns_too_for_rows_would_be_written_below_them(run):
    blocks = run / "blocks.csv"
    assert load([run]).blocks.empty
    blocks.write_text(blocks.read_text().replace(",discarded", ""))
    refused(run, "lacks the column discarded")


@pytest.mark.parametrize("line", [2, 4])
def test_rows_of_another_schema_are_refused(run, line):
    spoil(run, line, schema="4")
    refused(run, "holds rows of schema 4")


def test_rows_of_another_schema_are_told_from_a_changed_header(run):
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


def test_figures_of_numerics_that_are_none_of_their_kind_are_refused(tmp_path):
    run = fleet.with_words(tmp_path / "run", "")
    assert len(load([run]).numerics) == len(fleet.FIGURES)
    fleet.edit_rows(run, lambda row: row["name"] == "-20" and row.update(name="-2e1"), "numerics.csv")
    refused(run, "line 3: name '-2e1' is no figure of its kind")


@pytest.fixture
def explained(tmp_path: Path) -> Path:
    """A run with a figure of each sort of the explain phase, from line 2 on."""
    builder = RunBuilder(tmp_path / "run")
    trial = builder.trial("explain", ["fp32"], 64)
    figures: list[dict[str, Any]] = [
        {"kind": "step", "name": "timed", "round": 0, "value": 9.5},
        {"kind": "class", "name": "communication", "round": 0, "value": 0.0},
        {"kind": "best", "name": "mm float32[8x8]", "count": 2, "value": 0.1},
        {"kind": "step", "name": "waiting", "value": 0.0},
        {"kind": "types", "name": "float32", "value": 100.00000000000001},
        {"kind": "padded", "name": "mm float32[8x8]", "count": 1.0, "value": 0.9},
        {"kind": "bytes", "name": "_to_copy float32[0]", "value": 0.0},
    ]
    with Store(builder.folder) as store:
        store.add([Explained(trial=trial.id, precision="fp32", **figure) for figure in figures])
    return builder.add(trial, TrialResult(precision="fp32", status="ok")).folder


@pytest.mark.parametrize(
    ("line", "values", "message"),
    [
        (2, {"value": "0"}, "value '0' must be above 0"),
        (2, {"value": "-5"}, "value '-5' cannot be below 0"),
        (2, {"round": "1.5"}, "round '1.5' is no whole number"),
        (2, {"round": "-1"}, "round '-1' cannot be below 0"),
        (2, {"round": ""}, "round is missing"),
        (3, {"value": "-0.1"}, "value '-0.1' cannot be below 0"),
        (4, {"value": "0"}, "value '0' must be above 0"),
        (4, {"kind": "product", "value": "0"}, "value '0' must be above 0"),
        (4, {"kind": "cached", "value": "0"}, "value '0' must be above 0"),
        (4, {"count": "0"}, "count '0' must be above 0"),
        (4, {"count": ""}, "count is missing"),
        (5, {"value": "101"}, "value '101' is a share of more than the whole, 100"),
        (6, {"value": "101"}, "value '101' is a share of more than the whole, 100"),
        (7, {"count": "2"}, "count '2' is a share of more than the whole, 1"),
    ],
)
def test_a_figure_of_the_explain_phase_that_is_impossible_is_refused(explained, line, values, message):
    assert len(load([explained]).explained) == 7
    spoil(explained, line, "explain.csv", **values)
    refused(explained, f"explain.csv', line {line}: {message}")


def test_figures_in_a_precision_that_their_trial_did_not_have_are_told_and_left_out(explained):
    assert remarks(explained) == ()
    spoil(explained, 4, "explain.csv", precision="bf32")
    (remark,) = remarks(explained)
    assert re.search(r"explain.csv has 1 rows .* in bf32, line 4; they are left out", remark)
    assert len(load([explained]).explained) == 6


# Blocks that are not those that the speeds were made from.


def test_blocks_that_fit_are_not_remarked_on(with_blocks):
    assert remarks(with_blocks) == ()


def test_a_lost_block_is_told_with_its_trial_and_no_other(with_blocks):
    edit_lines(with_blocks, "blocks.csv", slice(-2, -1))
    (remark,) = remarks(with_blocks)
    assert "of mlp-0-b64-speed-r0 in amp-bf16 trials.csv (line 3) has 12 blocks that count and 4 that do not" in remark
    assert "blocks.csv has 11 and 4. Lines" in remark


def test_lost_rounds_and_rounds_that_count_no_more_are_told_of_all_arms(with_blocks):
    fleet.edit_rows(with_blocks, lambda row: row["round"] == "5" and row.update(discarded="by hand"), "blocks.csv")
    expected = "12 blocks that count and 4 that do not, blocks.csv has 10 and {}, and 1 more row is like it"
    assert expected.format(6) in remarks(with_blocks)[0]
    edit_lines(with_blocks, "blocks.csv", slice(1, 9))
    assert expected.format(2) in remarks(with_blocks)[0]


def test_a_file_without_a_block_is_told_and_a_missing_one_once(with_blocks):
    edit_lines(with_blocks, "blocks.csv", slice(1, None))
    assert "blocks.csv has 0 and 0" in remarks(with_blocks)[0]
    (with_blocks / "blocks.csv").unlink()
    assert remarks(with_blocks) == ("blocks.csv is missing, so what is made from it is not in the report.",)


def test_other_times_are_told(with_blocks):
    def triple(row: dict[str, str]) -> None:
        if row["precision"] == "amp-bf16":
            row["time_ms"] = repr(3 * float(row["time_ms"]))

    fleet.edit_rows(with_blocks, triple, "blocks.csv")
    (remark,) = remarks(with_blocks)
    assert "in amp-bf16 trials.csv (line 3) has a step of 5.022 ms, blocks.csv has a median of 15.07 ms." in remark
