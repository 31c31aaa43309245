"""What is read: checked, and with a retried trial's last answer only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.report.reading.folders import labels, report_name
from bench.report.reading.load import load
from bench.results.columns import SCHEMA
from bench.results.records import TrialResult
from bench.results.store import Store
from bench.run.session import report_folder
from bench.spec.errors import UsageError
from tests.report import fleet
from tests.report.builders import RunBuilder, epoch_of, write_report


def test_a_folder_that_is_no_run_is_refused_and_the_runs_beside_it_named(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "real").speed()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no run\.json.*real"):
        write_report([tmp_path / "empty"], tmp_path / "out")


def test_no_folder_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="no run to report"):
        load([])


def test_a_run_without_finished_trials_is_refused(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "run")
    with pytest.raises(UsageError, match=r"no finished trial.*--resume"):
        load([tmp_path / "run"])


def test_another_schema_is_refused_in_run_json_and_in_rows(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    trials = run.folder / "trials.csv"
    trials.write_text(trials.read_text().replace(f"\n{SCHEMA},", "\n7,"))
    with pytest.raises(UsageError, match="schema 7"):
        load([run.folder])
    (run.folder / "run.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(UsageError, match="schema 99"):
        load([run.folder])


@pytest.mark.parametrize(("found", "shown"), [('"1"', '"1"'), ("true", "true"), ('"three"', '"three"'), ("99", "99")])
def test_a_schema_that_is_no_number_is_shown_as_it_stands(tmp_path: Path, found: str, shown: str) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    (run.folder / "run.json").write_text(f'{{"schema": {found}}}')
    with pytest.raises(UsageError, match=f"has schema {shown}; this version reads schema {SCHEMA}"):
        load([run.folder])


@pytest.mark.parametrize("rows", ["4", "99"])
def test_rows_of_another_schema_are_told_from_a_changed_header(tmp_path: Path, rows: str) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    trials = run.folder / "trials.csv"
    text = trials.read_text().replace(f"\n{SCHEMA},", f"\n{rows},").replace(",techniques", ",tricks", 1)
    trials.write_text(text)
    with pytest.raises(UsageError, match=f"holds rows of schema {rows}"):
        load([run.folder])


def test_a_run_saved_by_a_spreadsheet_reads_as_before(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed().train("fp32", [90.0])
    plain = load([run.folder])
    for name in ("trials.csv", "epochs.csv"):
        path = run.folder / name
        path.write_text(path.read_text().replace("\n", "\r\n"), encoding="utf-8-sig", newline="")
    saved = load([run.folder])
    assert saved.trials.equals(plain.trials)
    assert saved.epochs.equals(plain.epochs)
    assert saved.runs[0].remarks == plain.runs[0].remarks
    trials = run.folder / "trials.csv"
    trials.write_text(trials.read_text(encoding="utf-8-sig").replace(",10.0,", ",quick,"), encoding="utf-8-sig")
    with pytest.raises(UsageError, match="line 2: step_ms 'quick' is no number"):
        load([run.folder])


def test_columns_in_another_order_and_swapped_names_are_refused(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    trials = run.folder / "trials.csv"
    lines = trials.read_text().splitlines()
    swapped = lines[0].replace("step_ms,samples_per_s", "samples_per_s,step_ms")
    trials.write_text("\n".join([swapped, *lines[1:]]) + "\n")
    with pytest.raises(UsageError, match=r"trials.csv', line 1: samples_per_s stands where step_ms belongs"):
        load([run.folder])
    trials.write_text("\n".join(",".join(reversed(line.split(","))) for line in lines) + "\n")
    with pytest.raises(UsageError, match="fit_step_s stands where schema belongs"):
        load([run.folder])
    trials.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(UsageError, match="has no column schema"):
        load([run.folder])


def test_a_file_without_rows_needs_no_column(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").memory("fp32", 10)
    blocks = run.folder / "blocks.csv"
    blocks.write_text(blocks.read_text().replace(",discarded", ""))
    assert load([run.folder]).blocks.empty


def test_a_broken_run_json_and_a_missing_column_are_told_in_a_sentence(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    good = (run.folder / "run.json").read_text()
    for text in ("{", "[]"):
        (run.folder / "run.json").write_text(text)
        with pytest.raises(UsageError, match="cannot be read"):
            load([run.folder])
    (run.folder / "run.json").write_text(good)
    trials = run.folder / "trials.csv"
    trials.write_text(trials.read_text().replace("step_ms", "step_hours", 1))
    with pytest.raises(UsageError, match="lacks the column step_ms"):
        load([run.folder])


def test_run_json_with_nothing_but_a_schema_is_enough(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    (run.folder / "run.json").write_text(json.dumps({"schema": SCHEMA}))
    assert "amp-bf16" in write_report([run.folder], tmp_path / "out", figures="none").read_text()


def test_a_retried_trial_counts_once_and_by_its_last_row(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").lost("memory", "amp-bf16", "failed", "crashed").memory("amp-bf16", 100)
    rows = load([run.folder]).trials
    assert list(rows["status"]) == ["ok"]


def test_a_retried_epoch_counts_once_and_by_its_last_row(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0], epochs=3)
    trial = run.trial("train", ["fp32"], 128, epochs=3).id
    with Store(run.folder) as store:
        store.add_epochs([epoch_of(trial, "fp32", seed=0, epoch=2, accuracy=10.0, epoch_s=1.0)])
    epochs = load([run.folder]).epochs.set_index("epoch")
    assert len(epochs) == 3
    assert epochs.loc[2, "elapsed_s"] == 2.0


def test_a_line_torn_by_a_crash_is_left_out(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    whole = load([run.folder]).trials
    with (run.folder / "trials.csv").open("a") as file:
        file.write("1,run,mlp-0-b128-sp")
    assert len(load([run.folder]).trials) == len(whole)


def test_words_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    trial = run.trial("memory", ["fp32"], 128)
    run.add(trial, TrialResult(precision="fp32", status="failed", detail="nan"))
    trials = run.folder / "trials.csv"
    trials.write_text(trials.read_text().replace(trial.config, "12345e678901"))
    row = load([run.folder]).trials.iloc[0]
    assert (row["config"], row["detail"], row["placement"]) == ("12345e678901", "nan", "0")


def test_runs_of_one_name_are_told_apart_by_their_folders_and_the_same_run_is_read_once(tmp_path: Path) -> None:
    for place in ("here", "there"):
        RunBuilder(tmp_path / place / "run").speed()
    folders = [tmp_path / "here" / "run", tmp_path / "there" / "run", tmp_path / "here" / "run"]
    assert [run.label for run in load(folders).runs] == ["here/run", "there/run"]


def test_runs_whose_parents_have_one_name_too_stay_two_runs(tmp_path: Path) -> None:
    folders = [tmp_path / node / "results" / "resnet20" for node in ("node1", "node2")]
    for folder in folders:
        RunBuilder(folder).speed()
    RunBuilder(tmp_path / "node2" / "results" / "mlp").speed()
    read = load([*folders, tmp_path / "node2" / "results" / "mlp"])
    assert [run.label for run in read.runs] == ["node1/results/resnet20", "node2/results/resnet20", "mlp"]
    assert read.trials.groupby("run").size().to_dict() == {run.label: 6 for run in read.runs}


def test_a_path_that_is_the_end_of_another_is_told_from_it() -> None:
    assert labels([Path("/results/run"), Path("/a/results/run")]) == ["/results/run", "a/results/run"]


def test_the_folder_of_a_report_is_named_after_its_runs_and_of_others_otherwise() -> None:
    def named(*nodes: str) -> str:
        return report_name([Path(f"/{node}/results/resnet20") for node in nodes])

    assert named("node1") == "resnet20"
    assert named("node1", "node2") == "node1-results-resnet20+node2-results-resnet20"
    assert report_folder([Path("/x/a"), Path("/x/b")]) == Path("reports/a+b")
    many = [named(*(f"node{number}" for number in range(first, first + 30))) for first in (0, 1)]
    assert many[0] != many[1]
    assert max(map(len, many)) < 200


def started(run: RunBuilder, when: str = "2026-01-01T00:00:00+00:00", **changed) -> Path:
    fleet.edit_run(run.folder, lambda info: info.update(started=when, **changed))
    return run.folder


def test_a_copy_of_a_run_counts_once_with_a_remark_and_the_fuller_one_stays(tmp_path: Path) -> None:
    first = started(RunBuilder(tmp_path / "first").speed())
    second = tmp_path / "second"
    shutil.copytree(first, second)
    read = load([first, second])
    assert [run.label for run in read.runs] == ["first"]
    assert len(read.trials) == 6
    assert read.runs[0].remarks[0] == f"{second} is a copy of it, and is left out."
    assert "is a copy of it" in write_report([first, second], tmp_path / "out", figures="none").read_text()
    with (second / "trials.csv").open("a") as file:
        file.write((first / "trials.csv").read_text().splitlines()[1].replace("-speed-", "-speed-x") + "\n")
    assert [run.label for run in load([first, second]).runs] == ["second"]


def test_runs_that_only_share_a_name_or_a_start_are_no_copies(tmp_path: Path) -> None:
    one = RunBuilder(tmp_path / "a" / "run").speed()
    others = [RunBuilder(tmp_path / name / "run").speed() for name in ("b", "c", "d")]
    started(one)
    started(others[0], "2026-01-01T00:00:01+00:00")
    started(others[1])
    fleet.edit_run(others[1].folder, lambda info: info["environment"].update(host="another"))
    started(others[2])
    fleet.edit_run(others[2].folder, lambda info: info["environment"]["devices"][0].update(uuid="GPU-2"))
    assert len(load([one.folder, *(other.folder for other in others)]).runs) == 4


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (("blocks.csv",), "blocks.csv is missing"),
        (("blocks.csv", "epochs.csv"), "blocks.csv and epochs.csv are missing"),
    ],
)
def test_a_missing_file_that_trials_had_filled_is_told_once(tmp_path: Path, gone: tuple[str, ...], said: str) -> None:
    run = RunBuilder(tmp_path / "run").speed().train("fp32", [90.0])
    for name in gone:
        (run.folder / name).unlink()
    (remark,) = load([run.folder]).runs[0].remarks
    assert remark.startswith(said)
    unfilled = RunBuilder(tmp_path / "unfilled").memory("fp32", 10).lost("speed", "fp32", "oom")
    for name in ("blocks.csv", "epochs.csv", "numerics.csv"):
        (unfilled.folder / name).unlink()
    assert load([unfilled.folder]).runs[0].remarks == ()
