"""Runs are read: checked, and with a retried trial's last answer only."""

import json
import shutil
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.results.run_json import FORMAT
from bench.results.store import Store, stored_results
from bench.spec.errors import UsageError
from tests.report.builders import RunBuilder, text_of, write_report
from tests.report.fleet import edit_run
from tests.rows import edit_rows, rows, write_rows


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no run to report"),
        (["empty"], r"no run\.json"),
        (["begun"], r"no finished trial.*--resume"),
    ],
)
def test_what_is_no_run_with_a_finished_trial_is_refused(tmp_path, names, message):
    RunBuilder(tmp_path / "begun")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=message):
        load([tmp_path / name for name in names])


def test_a_run_without_a_finished_trial_is_left_out_beside_others(tmp_path):
    RunBuilder(tmp_path / "real").memory("fp32", 100)
    RunBuilder(tmp_path / "begun")
    read = load([tmp_path])
    (run,) = read.runs
    (remark,) = read.remarks
    assert run.label == "real"
    assert "begun has no finished trial" in remark


RESULTS = Path(__file__).parents[3] / "results"
COMMITTED = sorted(RESULTS.glob("*/run.json"))


@pytest.mark.parametrize("run_json", COMMITTED, ids=lambda path: path.parent.name)
def test_a_committed_run_is_read_and_could_be_resumed(run_json, tmp_path):
    copied = shutil.copytree(run_json.parent, tmp_path / "run")
    before = load([copied])
    assert stored_results(copied).statuses
    Store(copied)
    after = load([copied])
    assert_frame_equal(after.trials, before.trials)
    for name, frame in before.details.items():
        assert_frame_equal(after.details[name], frame)


def test_run_json_with_nothing_but_its_format_is_enough(tmp_path):
    run = RunBuilder(tmp_path / "run").speed()
    run_json = run.folder / "run.json"
    run_json.write_text(json.dumps({"format": FORMAT}))
    page = write_report([run.folder], tmp_path / "out", figures="none")
    assert "amp-bf16" in text_of(page)


def test_runs_of_one_name_are_two_and_the_same_run_is_read_once(tmp_path):
    here = tmp_path / "here" / "run"
    there = tmp_path / "there" / "run"
    for folder in (here, there):
        RunBuilder(folder).memory("fp32", 100)
    read = load([here, there, here])
    assert list(read.trials["run"]) == ["here/run", "there/run"]


# Images are compared by what they are: one fingerprint is one source, whatever its path.


def on_images(folder: Path, path: str, fingerprint: str | None) -> None:
    """A run that was trained on these images."""
    run = RunBuilder(folder)
    run.speed()
    run.train("fp32", [90.0])
    source = {"source": path, "fingerprint": fingerprint}
    edit_rows(folder, lambda row: row.update(data=path))
    edit_run(folder, lambda run: run.update(data=[source]))


@pytest.mark.parametrize(
    ("path", "fingerprint", "name"),
    [
        ("folder:/y", "f1", "folder:/x"),
        ("folder:/x", "abcdef9", "folder:/x#abcdef"),
        ("folder:/y", None, "folder:/y"),
    ],
)
def test_images_are_called_by_what_they_hold_and_without_fingerprints_by_their_path(
    tmp_path, path, fingerprint, name
):
    on_images(tmp_path / "a", "folder:/x", "f1")
    on_images(tmp_path / "b", path, fingerprint)
    read = load([tmp_path])
    names = {"folder:/x", name}
    assert set(read.trials["data"]) == names
    for file in ("epochs", "blocks"):
        details = read.details[file]
        assert set(details["data"]) == names
    workloads = summarise(read.trials)["workload"]
    assert workloads.nunique() == len(names)


def test_a_row_that_was_copied_by_hand_is_no_process_more_and_the_last_counts(tmp_path):
    run = RunBuilder(tmp_path / "run").speed()
    before = load([run.folder]).trials
    written = rows(run.folder, "speed.csv")
    earlier = [{**row, "status": "failed"} for row in written]
    write_rows(run.folder, "speed.csv", earlier + written)
    after = load([run.folder]).trials
    assert after.equals(before)


def test_a_round_that_lost_a_block_does_not_count(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0], rounds=5)
    *kept, _last_of_bf16 = rows(run.folder, "blocks.csv")
    write_rows(run.folder, "blocks.csv", kept)
    trials = load([run.folder]).trials
    counts = trials.set_index("precision")["rounds"]
    assert counts.to_dict() == {"fp32": 5, "amp-bf16": 4}
