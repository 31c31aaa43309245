import csv
import errno
import itertools
import os
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from bench.phases.memory import MemoryPeak
from bench.results.columns import COLUMNS
from bench.results.csv_file import counting, of_counting, read
from bench.results.records import Block, EpochResult, Sample, Switches, TrialResult
from bench.results.store import Store, answers
from bench.spec.errors import UsageError
from tests.arms import arms
from tests.rows import rows, trial_rows


def result(precision="fp32", status="ok", **more):
    return TrialResult(precision=precision, status=status, **more)


def test_a_result_is_one_row_with_units_in_names_and_empty_unknowns(tmp_path, tiny_trial, cpu):
    memory = MemoryPeak(peak_resident_bytes=1_000_000, model_bytes=0)
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result(row=memory, switches=Switches(loss_scaling=False))])
    (row,) = trial_rows(tmp_path / "run")
    assert list(row) == list(COLUMNS["trials.csv"])
    assert (row["run"], row["suite"], row["batch_size"]) == ("run", "tiny", "4")
    assert (row["peak_resident_bytes"], row["model_bytes"]) == ("1000000", "0")
    assert (row["peak_allocated_bytes"], row["speedup"], row["replicate"]) == ("", "", "")
    assert row["loss_scaling"] == "no"


def test_every_kind_of_record_has_its_file(tmp_path, tiny_trial, cpu):
    with Store(tmp_path / "run") as store:
        store.add([Block(trial="t", precision="fp32", round=0, position=1, steps=2, time_ms=0.1 + 0.2, start_s=5.0)])
        store.add([Sample(time_s=1.0, placement="0", uuid="GPU-a", power_w=250.0)])
        epoch = dict.fromkeys(EpochResult.__slots__) | {"trial": "t", "epoch": 1, "train_loss": 2.0}
        store.add([EpochResult(**epoch)])
    assert float(rows(tmp_path / "run", "blocks.csv")[0]["time_ms"]) == 0.1 + 0.2
    assert rows(tmp_path / "run", "telemetry.csv")[0]["temperature_c"] == ""
    assert rows(tmp_path / "run", "epochs.csv")[0]["test_loss"] == ""


def test_a_run_whose_file_lacks_a_column_gets_it_when_it_goes_on_and_keeps_those_that_somebody_added(
    tmp_path, tiny_trial, cpu
):
    folder = tmp_path / "run"
    with Store(folder) as store:
        reading = Sample(time_s=1.0, placement="0", uuid="GPU-a", power_w=250.0)  # of no trial
        store.add_results(tiny_trial, cpu, [result("fp32", "failed")], [reading, block(tiny_trial)])
    path = folder / "trials.csv"
    path.write_text(path.read_text().replace(",wall_s,", ",note,", 1))
    with Store(folder) as store:
        store.add_results(tiny_trial, cpu, [result(wall_s=3.0, detail="again")], [block(tiny_trial, 7)])
    first, second = trial_rows(folder)
    assert list(second) == [*COLUMNS["trials.csv"], "note"]
    assert [(row["status"], row["wall_s"], row["attempt"]) for row in (first, second)] == [
        ("failed", "", "1"),
        ("ok", "3.0", "2"),
    ]
    assert counted(folder, "blocks.csv")["round"].tolist() == [7]


def test_finished_trials_are_known_by_their_config_and_failed_ones_are_tried_again(tmp_path, tiny_trial, cpu):
    speed = replace(tiny_trial, phase="speed", arms=arms("fp32", "amp-bf16"))
    hung = replace(tiny_trial, seed=7)
    with Store(tmp_path / "run") as store:
        store.add_results(speed, cpu, [result(), result("amp-bf16", "oom", detail="did not fit")])
        store.add_results(hung, cpu, [result(status="timeout")])
    assert answers(tmp_path / "run").statuses == {speed.config: {"fp32": "ok", "amp-bf16": "oom"}}
    assert answers(tmp_path / "nowhere").statuses == {}


def pair_of(trial):
    return replace(trial, phase="speed", arms=arms("fp32", "amp-bf16"))


def block(trial, number=0):
    return Block(trial=trial.id, precision="fp32", round=number, position=1, steps=2, time_ms=1.0, start_s=5.0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def counted(folder, name="trials.csv"):
    """The rows of a CSV that a reader counts."""
    trials = counting(read(folder / "trials.csv"))
    return trials if name == "trials.csv" else of_counting(read(folder / name), trials)


def test_a_trial_that_was_cut_off_anywhere_is_absent_and_resuming_leaves_the_files_as_before_it(
    tmp_path, tiny_trial, cpu, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    folder, kept = tmp_path / "run", []
    detail = 'it said "no", then\nstopped'
    for number in (0, 1):
        trial = replace(pair_of(tiny_trial), replicate=number)
        with Store(folder) as store:
            store.add_results(trial, cpu, [result(detail=detail), result("amp-bf16", detail=detail)], [block(trial)])
        kept.append(contents(folder))
    (before, after), path = kept, folder / "trials.csv"
    whole, start = after["trials.csv"], len(before["trials.csv"])
    for size in {*range(start, len(whole), 97), len(whole) - 1}:
        for name in ("trials.csv", "blocks.csv"):
            (folder / name).write_bytes(after[name])
        path.write_bytes(whole[:size])
        assert set(counted(folder)["replicate"]) == {0}, size
        with Store(folder) as store:
            assert store.dropped["blocks.csv"] == 1
        assert contents(folder) == before, size
        with Store(folder) as store:
            assert store.dropped == {}


def test_the_rows_of_the_last_attempt_at_a_trial_count_alone(tmp_path, tiny_trial, cpu):
    trial = pair_of(tiny_trial)
    with Store(tmp_path) as store:
        store.add_results(trial, cpu, [result(status="failed"), result("amp-bf16", "failed")], [block(trial)])
    for number in range(2, 8):
        with Store(tmp_path) as store:
            assert store.dropped == {}
            store.add_results(trial, cpu, [result(), result("amp-bf16")], [block(trial, number)])
    assert [row["attempt"] for row in trial_rows(tmp_path)] == [str(number) for number in range(1, 8) for _ in "ab"]
    assert counted(tmp_path)["status"].tolist() == ["ok", "ok"]
    assert counted(tmp_path, "blocks.csv")["round"].tolist() == [7]
    assert answers(tmp_path).statuses == {trial.config: {"fp32": "ok", "amp-bf16": "ok"}}


def test_a_trial_of_other_arms_counts_instead_of_that_of_the_same_name(tmp_path, tiny_trial, cpu):
    both = pair_of(tiny_trial)
    other = replace(both, arms=arms("fp32", "fp16-master"))
    assert both.id == other.id
    with Store(tmp_path) as store:
        store.add_results(both, cpu, [result(), result("amp-bf16")], [block(both)])
        store.add_results(other, cpu, [result(), result("fp16-master")], [block(other, 7)])
    assert counted(tmp_path)["precision"].tolist() == ["fp32", "fp16-master"]
    assert counted(tmp_path, "blocks.csv")["round"].tolist() == [7]


@pytest.mark.parametrize(("ending", "counts"), [("ok", ["both", "both"]), ("oom", ["alone", "both", "both"])])
def test_an_arm_measured_alone_counts_until_it_is_measured_with_the_others(tmp_path, tiny_trial, cpu, ending, counts):
    both = pair_of(tiny_trial)
    first, second = (replace(both, arms=arms(name)) for name in both.precisions)
    with Store(tmp_path) as store:
        store.add_results(first, cpu, [result()], [block(first)])
        store.add_results(second, cpu, [result("amp-bf16", "failed")])
        store.add_results(both, cpu, [result(status=ending), result("amp-bf16", ending)])
        if ending == "oom":  # which is no end of what each does alone
            store.add_results(second, cpu, [result("amp-bf16")])
            counts = [*counts, "alone"]
    assert ["both" if trial == both.id else "alone" for trial in counted(tmp_path)["trial"]] == counts
    assert len(counted(tmp_path, "blocks.csv")) == counts.count("alone") // 2


class Failing:
    """Lets the Nth call that changes a folder fail, as an error or, with all after it, as the end of the process."""

    CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")

    class Killed(BaseException):
        pass

    def __init__(self, monkeypatch, number, *, kill):
        self.left, self.kill = number, kill
        for name in self.CALLS:
            monkeypatch.setattr(os, name, partial(self.call, getattr(os, name)))

    def call(self, do, *words, **named):
        self.left -= 1
        if self.kill and self.left <= 0:
            raise self.Killed
        if self.left == 0:
            raise OSError(errno.EIO, "Input/output error")
        return do(*words, **named)


@pytest.mark.parametrize("kill", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_trial_is_stored_as_a_whole_or_not_at_all_at_whatever_call_it_fails(
    tmp_path, tiny_trial, cpu, monkeypatch, kill
):
    trial = pair_of(tiny_trial)
    ended = []
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        with Store(folder) as store:
            store.write_run({"request": {}})
            store.add_results(trial, cpu, [result(status="failed"), result("amp-bf16", "failed")], [block(trial, 3)])
        with (folder / "blocks.csv").open("a") as file:
            file.write("half a li")
        with monkeypatch.context() as patched:
            failing = Failing(patched, number, kill=kill)
            try:
                with Store(folder) as store:
                    store.write_run({"request": {}})
                    store.add_results(trial, cpu, [result(), result("amp-bf16")], [block(trial, 7)])
            except (UsageError, OSError, Failing.Killed) as error:
                ended.append(type(error))
        with Store(folder) as store:
            store.write_run({"request": {}})
        statuses, blocks = counted(folder)["status"].tolist(), counted(folder, "blocks.csv")["round"].tolist()
        assert (statuses, blocks) in ([(["failed"] * 2, [3]), (["ok"] * 2, [7])])
        assert not list(folder.glob(".*"))
        if failing.left > 0:
            break
    assert number > 10
    assert set(ended) == ({Failing.Killed} if kill else {UsageError, OSError})


@pytest.mark.parametrize("text", ["a,b\n1,2\n3,", "a,b"])
def test_a_strangers_file_is_refused_and_no_file_is_changed(tmp_path, text):
    with Store(tmp_path) as store:
        store.add([block(SimpleNamespace(id="t"))])
    with (tmp_path / "blocks.csv").open("a") as file:
        file.write("half a li")
    (tmp_path / "trials.csv").write_text(text)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"trials\.csv"):
        Store(tmp_path)
    assert contents(tmp_path) == before


class FullDisk:
    """A file that takes half of what is written to it, and then no more."""

    def __init__(self, file, error=errno.ENOSPC):
        self.file, self.error, self.calls = file, error, 0

    def write(self, data):
        self.calls += 1
        if self.calls > 1:
            raise OSError(self.error, "No space left on device")
        return self.file.write(data[: len(data) // 2])

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize(
    ("fault", "sentence"), [("deleted", "was deleted or moved"), ("full", "No space left on device.*Make room")]
)
def test_a_folder_that_cannot_be_written_ends_the_run_and_what_was_stored_stays(
    tmp_path, tiny_trial, cpu, fault, sentence
):
    folder, trial = tmp_path / "results" / "run", pair_of(tiny_trial)
    both, other = [result(), result("amp-bf16")], replace(trial, replicate=1)
    with Store(folder) as store:
        store.write_run({"request": {}})
        store.add_results(trial, cpu, both, [block(trial)])
        before = contents(folder)
        if fault == "deleted":
            folder.rename(tmp_path / "elsewhere")
        else:
            store._files["trials.csv"] = FullDisk(store._files["trials.csv"])
        with pytest.raises(UsageError, match=f"{sentence}.*--resume {folder}"):
            store.add_results(other, cpu, both, [block(other)])
    place = tmp_path / "elsewhere" if fault == "deleted" else folder
    assert (place / "trials.csv").read_bytes() == before["trials.csv"]  # without half a row
    with Store(place) as store:
        assert store.dropped == ({} if fault == "deleted" else {"blocks.csv": 1})
        store.add_results(other, cpu, both, [block(other)])
    assert set(answers(place).statuses) == {trial.config, other.config}


def test_rows_whose_trials_csv_is_gone_are_not_dropped(tmp_path, tiny_trial):
    with Store(tmp_path) as store:
        store.add([block(tiny_trial)])
    (tmp_path / "trials.csv").unlink()
    before = (tmp_path / "blocks.csv").read_bytes()
    with pytest.raises(UsageError, match=r"has no trials\.csv"):
        Store(tmp_path)
    assert (tmp_path / "blocks.csv").read_bytes() == before
