import csv
import errno
import json
import os
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from bench.results.columns import COLUMNS, SCHEMA
from bench.results.csv_rows import read_header
from bench.results.records import Block, Column, EpochResult, MemoryPeak, Sample, Switches, TrialResult
from bench.results.store import ASIDE, Store, StoreLostError, answers, read_run
from bench.spec.errors import UsageError
from tests.arms import arms


def rows(folder, name):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def result(precision="fp32", status="ok", **more):
    return TrialResult(precision=precision, status=status, **more)


def test_a_result_is_one_row_with_units_in_names_and_empty_unknowns(tmp_path, tiny_trial, cpu):
    memory = MemoryPeak(peak_resident_bytes=1_000_000, model_bytes=0)
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result(memory=memory, switches=Switches(loss_scaling=False))])
    (row,) = rows(tmp_path / "run", "trials.csv")
    assert list(row) == list(COLUMNS["trials.csv"])
    assert (row["schema"], row["run"], row["suite"], row["batch_size"]) == (str(SCHEMA), "run", "tiny", "4")
    assert (row["peak_resident_bytes"], row["model_bytes"]) == ("1000000", "0")
    assert (row["peak_allocated_bytes"], row["speedup"], row["replicate"]) == ("", "", "")
    assert row["loss_scaling"] == "no"


def test_every_kind_of_record_has_its_file(tmp_path, tiny_trial, cpu):
    with Store(tmp_path / "run") as store:
        store.add([Block(trial="t", precision="fp32", round=0, position=1, steps=2, time_ms=0.1 + 0.2, start_s=5.0)])
        store.add([Sample(time_s=1.0, placement="0", uuid="GPU-a", power_w=250.0)])
        store.add(
            [
                EpochResult(
                    trial="t",
                    precision="fp32",
                    seed=0,
                    epoch=1,
                    train_loss=2.0,
                    test_loss=None,
                    test_accuracy_pct=None,
                    train_s=1.0,
                    test_s=None,
                    elapsed_s=1.0,
                    data_wait_s=0.1,
                    samples=8,
                    learning_rate=0.1,
                    loss_scale=None,
                    skipped_steps=0,
                )
            ]
        )
    assert float(rows(tmp_path / "run", "blocks.csv")[0]["time_ms"]) == 0.1 + 0.2
    assert rows(tmp_path / "run", "telemetry.csv")[0]["temperature_c"] == ""
    assert rows(tmp_path / "run", "epochs.csv")[0]["test_loss"] == ""


def test_a_row_is_on_disk_as_soon_as_it_is_added(tmp_path, tiny_trial, cpu):
    store = Store(tmp_path / "run")
    store.add_results(tiny_trial, cpu, [result()])
    assert len(rows(tmp_path / "run", "trials.csv")) == 1


def test_a_run_that_lacks_a_column_added_later_goes_on_in_its_own_columns(tmp_path, tiny_trial, cpu, monkeypatch):
    folder, added = tmp_path / "run", {"trials.csv": "wall_s", "blocks.csv": "skipped_steps"}
    block = Block(trial="t", precision="fp32", round=0, position=1, steps=2, time_ms=1.0, start_s=5.0, discarded="hot")
    with monkeypatch.context() as earlier:
        for file, name in added.items():
            earlier.setitem(COLUMNS, file, {key: one for key, one in COLUMNS[file].items() if key != name})
        with Store(folder) as store:
            store.add_results(tiny_trial, cpu, [result()])
            store.add([block])
    with pytest.raises(UsageError, match="lacks the column wall_s: the run may be older"):
        answers(folder)
    for file, name in added.items():
        later = replace(COLUMNS[file][name], column=Column(added_later=True))
        monkeypatch.setitem(COLUMNS, file, {**COLUMNS[file], name: later})
    assert answers(folder).statuses == {tiny_trial.config: {"fp32": "ok"}}
    with Store(folder) as store:
        store.add_results(replace(tiny_trial, seed=1), cpu, [result(wall_s=3.0, detail="again")])
        store.add([block])
    first, second = rows(folder, "trials.csv")
    assert list(second) == [name for name in COLUMNS["trials.csv"] if name != "wall_s"]
    assert (first["seed"], second["seed"], second["detail"], second["status"]) == ("0", "1", "again", "ok")
    assert [row["discarded"] for row in rows(folder, "blocks.csv")] == ["hot", "hot"]


def test_a_torn_last_line_is_dropped_when_the_run_goes_on(tmp_path, tiny_trial, cpu):
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result()])
    with (tmp_path / "run" / "trials.csv").open("a") as file:
        file.write("1,run,half a li")
    with Store(tmp_path / "run") as store:
        store.add_results(replace(tiny_trial, seed=1), cpu, [result()])
    assert [row["seed"] for row in rows(tmp_path / "run", "trials.csv")] == ["0", "1"]


def test_finished_trials_are_known_by_their_config_and_failed_ones_are_tried_again(tmp_path, tiny_trial, cpu):
    speed = replace(tiny_trial, phase="speed", arms=arms("fp32", "amp-bf16"))
    hung = replace(tiny_trial, seed=7)
    with Store(tmp_path / "run") as store:
        store.add_results(speed, cpu, [result(), result("amp-bf16", "oom", detail="did not fit")])
        store.add_results(hung, cpu, [result(status="timeout")])
    assert answers(tmp_path / "run").statuses == {speed.config: {"fp32": "ok", "amp-bf16": "oom"}}
    assert answers(tmp_path / "nowhere").statuses == {}


def test_text_with_commas_and_quotes_survives(tmp_path, tiny_trial, cpu):
    detail = 'it said "no", then\nstopped'
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result(status="failed", detail=detail)])
    assert rows(tmp_path / "run", "trials.csv")[0]["detail"] == detail


def test_a_run_of_another_schema_is_refused(tmp_path):
    with Store(tmp_path / "run") as store:
        store.write_run({"request": {}})
    assert read_run(tmp_path / "run")["run"] == "run"
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": SCHEMA + 1}))
    with pytest.raises(UsageError, match=f"schema {SCHEMA + 1}; this version reads schema {SCHEMA}"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("text", ["{", "[]", "1"])
def test_a_damaged_run_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        read_run(tmp_path)
    (tmp_path / "trials.csv").write_text("no,columns,of,a,run\n1,2,3,4,5\n")
    with pytest.raises(UsageError, match="has no column schema"):
        answers(tmp_path)


def pair_of(trial):
    return replace(trial, phase="speed", arms=arms("fp32", "amp-bf16"))


def block(trial, number=0):
    return Block(trial=trial.id, precision="fp32", round=number, position=1, steps=2, time_ms=1.0, start_s=5.0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("end", [b"\n", b",ok,"], ids=["between two lines", "within a line"])
def test_a_trial_without_its_last_row_has_no_answer_and_what_it_left_is_set_aside(tmp_path, tiny_trial, cpu, end):
    folder = tmp_path / "run"
    first, second = pair_of(tiny_trial), replace(pair_of(tiny_trial), replicate=1)
    with Store(folder) as store:
        store.add_results(first, cpu, [result(), result("amp-bf16")], [block(first)])
        before = {name: (folder / name).read_bytes() for name in ("trials.csv", "blocks.csv")}
        store.add_results(second, cpu, [result(), result("amp-bf16")], [block(second)])
    path = folder / "trials.csv"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole[:-1].rfind(end) + len(end)])
    with Store(folder) as store:
        notice = store.set_aside_unfinished()
    assert answers(folder).statuses == {first.config: {"fp32": "ok", "amp-bf16": "ok"}}
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert [row["trial"] for row in rows(folder / ASIDE, "blocks.csv")] == [second.id]
    assert rows(folder / ASIDE, "trials.csv")[-1]["trial"] == second.id
    assert all(str(part) in notice for part in (folder / ASIDE, "1 of blocks.csv", "of trials.csv"))
    with Store(folder) as store:
        assert store.set_aside_unfinished() == ""


def test_what_a_failed_attempt_left_is_set_aside_and_its_row_stays(tmp_path, tiny_trial, cpu):
    trial = pair_of(tiny_trial)
    with Store(tmp_path) as store:
        store.add_results(trial, cpu, [result(status="failed"), result("amp-bf16", "failed")], [block(trial)])
        store.set_aside_unfinished()
        store.add_results(trial, cpu, [result(), result("amp-bf16")], [block(trial, 7)])
    assert [row["round"] for row in rows(tmp_path, "blocks.csv")] == ["7"]
    assert [row["status"] for row in rows(tmp_path, "trials.csv")] == ["failed", "failed", "ok", "ok"]
    assert answers(tmp_path).statuses == {trial.config: {"fp32": "ok", "amp-bf16": "ok"}}


def test_a_trial_that_was_stored_with_other_arms_is_stored_instead_of_it(tmp_path, tiny_trial, cpu):
    both = pair_of(tiny_trial)
    alone = replace(both, arms=arms("fp32", "fp16-master"))
    assert both.id == alone.id
    with Store(tmp_path) as store:
        store.add_results(both, cpu, [result(), result("amp-bf16")], [block(both)])
    with Store(tmp_path) as store:
        store.set_aside_unfinished()
        store.add_results(alone, cpu, [result(), result("fp16-master")], [block(alone, 7)])
    assert [row["round"] for row in rows(tmp_path, "blocks.csv")] == ["7"]
    assert [row["precision"] for row in rows(tmp_path, "trials.csv")] == ["fp32", "fp16-master"]


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


@pytest.mark.parametrize("kill", [True, False])
def test_rows_that_replace_others_lose_nothing_that_is_finished_at_whatever_call_it_fails(
    tmp_path, tiny_trial, cpu, monkeypatch, kill
):
    both, other = pair_of(tiny_trial), replace(pair_of(tiny_trial), replicate=1)
    alone = replace(both, arms=arms("fp32", "fp16-master"))
    number = 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        with Store(folder) as store:
            store.write_run({"request": {}})
            for trial in (other, both):
                store.add_results(trial, cpu, [result(), result("amp-bf16")], [block(trial, 3)])
        with Store(folder) as store:
            store.set_aside_unfinished()
            with monkeypatch.context() as patched:
                failing = Failing(patched, number, kill=kill)
                try:
                    store.add_results(alone, cpu, [result(), result("fp16-master")], [block(alone, 7)])
                    lost = None
                except (StoreLostError, Failing.Killed) as error:
                    lost = error
        rescued = folder.with_name(f"{number}.rescued")
        place = rescued if rescued.exists() else folder
        with Store(place) as store:
            store.set_aside_unfinished()
        assert not kill or place == folder
        assert isinstance(lost, StoreLostError) == (place == rescued)
        statuses = answers(place).statuses
        assert set(statuses) in ({other.config, both.config}, {other.config, alone.config})
        done = alone if alone.config in statuses else both
        assert done is alone or kill
        kept = [(row["trial"], row["round"]) for row in rows(place, "blocks.csv")]
        assert sorted(kept) == sorted([(other.id, "3"), (done.id, "7" if done is alone else "3")])
        assert not list(place.glob(".*"))
        if failing.left > 0:
            break
    assert number > 10


@pytest.mark.parametrize("text", ["a,b\n1,2\n3,", "a,b", "schema,run\n5,"])
def test_a_strangers_file_is_refused_and_no_file_is_changed(tmp_path, text):
    with Store(tmp_path) as store:
        store.add([block(SimpleNamespace(id="t"))])
    with (tmp_path / "blocks.csv").open("a") as file:
        file.write("5,half a li")
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


@pytest.mark.parametrize("fault", ["deleted", "moved", "full"])
def test_rows_of_a_folder_that_is_lost_are_all_beside_it_and_how_to_go_on_is_said(tmp_path, tiny_trial, cpu, fault):
    folder, trial = tmp_path / "results" / "run", pair_of(tiny_trial)
    both = [result(), result("amp-bf16")]
    with Store(folder) as store:
        store.write_run({"request": {}})
        store.add_results(trial, cpu, both, [block(trial)])
        before = contents(folder)
        if fault == "deleted":
            shutil.rmtree(folder.parent)
        elif fault == "moved":
            folder.rename(tmp_path / "elsewhere")
        else:
            store._files["trials.csv"] = FullDisk(store._files["trials.csv"])
        other = replace(trial, replicate=1)
        with pytest.raises(StoreLostError) as lost:
            store.add_results(other, cpu, both, [block(other)])
        with pytest.raises(StoreLostError):
            store.add([block(trial)])
    rescued = tmp_path / "results" / "run.rescued"
    assert f"--resume {rescued}" in str(lost.value)
    assert set(answers(rescued).statuses) == {trial.config, other.config}
    assert len(rows(rescued, "blocks.csv")) == 2
    assert read_run(rescued)["run"] == "run"
    if fault == "full":
        assert (folder / "trials.csv").read_bytes() == before["trials.csv"]  # without half a row
        with Store(folder) as store:
            assert "1 of blocks.csv" in store.set_aside_unfinished()


def test_a_folder_that_is_gone_is_noticed_before_there_is_something_to_write(tmp_path, tiny_trial, cpu):
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result()])
        store.check()
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(StoreLostError, match=r"was deleted or moved.*run\.rescued"):
            store.check()


def test_where_nothing_can_be_written_beside_it_the_rows_are_in_the_temporary_folder_or_said_to_be_lost(
    tmp_path, tiny_trial, cpu, monkeypatch
):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Store, "_beside", refuse)
    for known in (True, False):
        with Store(tmp_path / "run") as store:
            store.add_results(tiny_trial, cpu, [result()])
            shutil.rmtree(tmp_path / "run")
            if not known:
                monkeypatch.setattr(tempfile, "mkdtemp", refuse)
            with pytest.raises(StoreLostError) as lost:
                store.check()
        assert ("Read-only file system" in str(lost.value)) != known
    (place,) = tmp_path.glob("run.rescued-*")
    assert set(answers(place).statuses) == {tiny_trial.config}


def test_a_folder_that_is_lost_before_a_trial_has_ended_leaves_nothing_elsewhere(tmp_path):
    with Store(tmp_path / "run") as store:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(StoreLostError, match="before a trial had ended"):
            store.check()
    assert not list(tmp_path.iterdir())


def test_a_figure_of_trials_csv_that_cannot_be_read_is_refused_with_the_line(tmp_path, tiny_trial, cpu):
    with Store(tmp_path) as store:
        store.add_results(replace(tiny_trial, phase="fit"), cpu, [result()])
    path = tmp_path / "trials.csv"
    path.write_text(path.read_text().replace(",4,synthetic", ",four,synthetic"))
    with pytest.raises(UsageError, match="line 2: batch_size 'four' is no number"):
        answers(tmp_path)


def test_empty_lines_are_no_rows_and_move_no_other_rows_number(tmp_path, tiny_trial, cpu):
    trial = pair_of(tiny_trial)
    with Store(tmp_path) as store:
        store.add_results(trial, cpu, [result(), result("amp-bf16")], [block(trial)])
        store.add([block(replace(trial, replicate=1), 7)])
    for name in ("trials.csv", "blocks.csv"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("\n", "\n\n"))
    assert read_header(tmp_path / "blocks.csv") == list(COLUMNS["blocks.csv"])
    assert set(answers(tmp_path).statuses) == {trial.config}
    with Store(tmp_path) as store:
        store.set_aside_unfinished()
    assert [row["round"] for row in rows(tmp_path, "blocks.csv")] == ["0"]
    assert [row["round"] for row in rows(tmp_path / ASIDE, "blocks.csv")] == ["7"]
