"""Runs are read: checked, and with a retried trial's last answer only."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.results.records import TrialResult
from bench.results.run_json import FORMAT
from bench.results.store import Store, stored_results
from bench.spec.errors import UsageError
from tests.report import fleet
from tests.report.builders import RunBuilder, epoch_of, text_of, write_report
from tests.report.fleet import copy, original
from tests.rows import rows, write_rows


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ((), "no run to report"),
        (("empty",), r"no run\.json"),
        (("begun",), r"no finished trial.*--resume"),
        (("broken",), r"not of format"),
    ],
)
def test_what_is_no_run_with_a_finished_trial_is_refused(tmp_path: Path, folders, message) -> None:
    for name in ("real", "broken"):
        RunBuilder(tmp_path / name).speed()
    (tmp_path / "broken" / "run.json").write_text("{}")
    RunBuilder(tmp_path / "begun")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=message):
        load([tmp_path / name for name in folders])


def test_a_run_without_a_finished_trial_is_left_out_beside_others(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "real").speed()
    RunBuilder(tmp_path / "begun")
    runs = load([tmp_path])
    assert [run.label for run in runs.runs] == ["real"]
    assert "begun has no finished trial" in runs.remarks[0]


COMMITTED = sorted(
    path.parent for path in (Path(__file__).parents[3] / "results").glob("*/run.json")
)


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_run_is_read_and_could_be_resumed(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "run")
    before = load([copied])
    assert stored_results(copied).statuses
    Store(copied)
    after = load([copied])
    pd.testing.assert_frame_equal(after.trials, before.trials)
    for name, frame in before.details.items():
        pd.testing.assert_frame_equal(after.details[name], frame)


def test_there_are_committed_runs() -> None:
    assert COMMITTED


def test_run_json_with_nothing_but_its_format_is_enough(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    (run.folder / "run.json").write_text(json.dumps({"format": FORMAT}))
    assert "amp-bf16" in text_of(write_report([run.folder], tmp_path / "out", figures="none"))


def test_a_retried_trial_counts_once_and_by_its_last_row_and_epochs(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    trial = run.trial("train", ["fp32"], 128, epochs=2)
    epochs = [
        epoch_of(trial.id, "fp32", seed=0, epoch=number, accuracy=90.0, epoch_s=1.0)
        for number in (1, 2, 3)
    ]
    run.add(trial, TrialResult(arm="fp32", status="failed"), records=epochs[2:])
    run.add(trial, TrialResult(arm="fp32", status="nonfinite"), records=epochs[:2])
    runs = load([run.folder])
    assert (runs.trials["status"].tolist(), runs.details["epochs"]["epoch"].tolist()) == (
        ["nonfinite"],
        [1, 2],
    )


def test_runs_of_one_name_are_two_and_the_same_run_is_read_once(tmp_path: Path) -> None:
    folders = [RunBuilder(tmp_path / parent / "run").speed().folder for parent in ("here", "there")]
    read = load([*folders, folders[0]])
    assert read.trials.groupby("run").size().to_dict() == {"here/run": 6, "there/run": 6}


# Images are compared by what they are: one fingerprint is one source, whatever its path.


def on_images(folder: Path, path: str, fingerprint: str | None) -> Path:
    fleet.edit_rows(folder, lambda row: row.update(data=path))
    kept = [] if fingerprint is None else [{"source": path, "fingerprint": fingerprint}]
    fleet.edit_run(folder, lambda run: run.update(data=kept))
    return folder


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
) -> None:
    first = original(tmp_path / "a")
    second = copy(first, tmp_path / "b", device="Card B", architecture="Ada")
    read = load([on_images(first, "folder:/x", "f1"), on_images(second, path, fingerprint)])
    names = list(dict.fromkeys(["folder:/x", name]))
    for frame in (read.trials, read.details["epochs"], read.details["blocks"]):
        assert list(frame["data"].unique()) == names
    assert summarise(read.trials)["workload"].nunique() == len(names)


def test_of_a_file_that_was_cut_off_the_whole_rows_count(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").memory("fp32", 100)
    trial = run.trial("speed", ["fp32", "amp-bf16"], 128)
    run.add(
        trial,
        *(TrialResult(arm=name, status="failed", detail="gone") for name in trial.arm_names),
    )
    path = run.folder / "speed.csv"
    path.write_text(path.read_text()[:-3])
    runs = load([run.folder])
    assert runs.trials.query("phase == 'speed'")[["precision", "status"]].values.tolist() == [
        ["fp32", "failed"]
    ]


def test_a_row_that_was_copied_by_hand_is_no_process_more(tmp_path):
    run = RunBuilder(tmp_path / "run").speed()
    before = load([run.folder]).trials
    path = run.folder / "speed.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, *lines[1:]]))
    assert load([run.folder]).trials.equals(before)


def test_a_round_that_lost_a_block_does_not_count(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0], rounds=5)
    kept = rows(run.folder, "blocks.csv")
    last = max(int(row["round"]) for row in kept)
    lost = next(row for row in kept if row["round"] == str(last) and row["precision"] == "amp-bf16")
    write_rows(run.folder, "blocks.csv", [row for row in kept if row is not lost])
    counts = load([run.folder]).trials.set_index("precision")["rounds"]
    assert counts.to_dict() == {"fp32": 5, "amp-bf16": 4}
