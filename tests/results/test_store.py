"""The CSV store: what it writes, what it knows of a run, and what a crash or a full disk leaves."""

import errno
import itertools
import json
import os
import resource
from dataclasses import replace
from functools import partial

import pytest

from bench.phases.memory import MemoryPeak
from bench.report.reading.trials import read_details, read_trials
from bench.results.columns import COLUMNS
from bench.results.records import Block, EpochResult, Numeric, Sample, Switches, TrialResult
from bench.results.run_json import FORMAT
from bench.results.store import Store, stored_results
from bench.spec.errors import UsageError
from tests.arms import arms
from tests.rows import rows, trial_rows


def result(precision="fp32", status="ok", **more):
    return TrialResult(precision=precision, status=status, **more)


def both(status="ok", second=None):
    return [result(status=status), result("amp-bf16", second or status)]


@pytest.fixture
def pair(tiny_trial):
    """A trial of two arms."""
    return replace(tiny_trial, phase="speed", arms=arms("fp32", "amp-bf16"))


def block(trial, number=0):
    return Block(trial=trial.id, precision="fp32", round=number, position=1, steps=2, time_ms=1.0, start_s=5.0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def rounds(folder):
    return [int(row["round"]) for row in rows(folder, "blocks.csv")]


def test_a_result_is_one_row_with_units_in_the_names_of_its_columns(tmp_path, tiny_trial, cpu):
    memory = MemoryPeak(peak_resident_bytes=1_000_000, model_bytes=0)
    store = Store(tmp_path)
    ok = result(row=memory, switches=Switches(loss_scaling=False), wall_s=0.1 + 0.2)
    store.add_results(tiny_trial, cpu, [ok])
    store.add_results(replace(tiny_trial, replicate=1), cpu, [result(status="failed", detail="it broke")])
    first, second = rows(tmp_path, "memory.csv")
    assert list(first) == list(COLUMNS["memory.csv"])
    given = {name: text for name, text in first.items() if text}
    assert given.items() >= {"suite": "tiny", "batch_size": "4", "replicate": "0", "loss_scaling": "no"}.items()
    assert given.items() >= {"peak_resident_bytes": "1000000", "model_bytes": "0"}.items()
    assert {"peak_allocated_bytes", "techniques", "detail"}.isdisjoint(given)
    assert float(first["wall_s"]) == 0.1 + 0.2
    assert (second["detail"], second["peak_resident_bytes"]) == ("it broke", "")


def test_every_kind_of_record_has_its_file(tmp_path, tiny_trial, cpu):
    epoch = dict.fromkeys(EpochResult.__slots__) | {"trial": "t", "epoch": 1, "train_loss": 2.0}
    numeric = Numeric(trial="t", precision="fp32", kind="step", step=0, layer="", name="loss", value=2.0)
    sent = {"speed": block(tiny_trial), "train": EpochResult(**epoch), "numerics": numeric, "layers": numeric}
    store = Store(tmp_path)
    store.add([Sample(time_s=1.0, placement="0", uuid="GPU-a", power_w=250.0)])
    for phase, record in sent.items():
        store.add_results(replace(tiny_trial, phase=phase), cpu, [result()], [record])
    details = ("blocks.csv", "epochs.csv", "telemetry.csv", "numerics_figures.csv", "layers_figures.csv")
    written = {path.name: len(rows(tmp_path, path.name)) for path in tmp_path.glob("*.csv")}
    assert written == dict.fromkeys([*(f"{phase}.csv" for phase in sent), *details], 1)
    assert rows(tmp_path, "telemetry.csv")[0]["temperature_c"] == ""
    assert rows(tmp_path, "epochs.csv")[0]["test_loss"] == ""


def test_a_run_whose_file_lacks_a_column_gets_it_when_it_goes_on_and_keeps_those_that_somebody_added(
    tmp_path, pair, cpu
):
    def add(replicate, wall_s):
        trial = replace(pair, replicate=replicate)
        Store(tmp_path).add_results(trial, cpu, [result(wall_s=wall_s)], [replace(block(trial), discarded="no")])

    add(0, 1.0)
    for name, old, new in (("speed.csv", ",wall_s", ",note"), ("blocks.csv", ",discarded", ",mine")):
        path = tmp_path / name
        path.write_text(path.read_text().replace(old, new, 1))
    add(1, 3.0)
    assert [(row["wall_s"], row["note"]) for row in rows(tmp_path, "speed.csv")] == [("", "1.0"), ("3.0", "")]
    assert [(row["discarded"], row["mine"]) for row in rows(tmp_path, "blocks.csv")] == [("", "no"), ("no", "")]


def test_finished_trials_are_known_by_their_name_and_failed_arms_are_tried_again(tmp_path, tiny_trial, pair, cpu):
    hung = replace(tiny_trial, replicate=1)
    store = Store(tmp_path / "run")
    store.add_results(pair, cpu, both("ok", "oom"))
    store.add_results(hung, cpu, [result(status="timeout")])
    known = stored_results(tmp_path / "run")
    assert known.statuses == {pair.id: {"fp32": "ok", "amp-bf16": "oom"}}
    assert [known.is_done(trial) for trial in (pair, hung, replace(pair, replicate=1))] == [True, False, False]
    assert known.batch_sizes == {pair.id: 4, hung.id: 4}
    assert stored_results(tmp_path / "nowhere").statuses == {}


def test_the_rows_of_the_last_attempt_at_a_trial_replace_those_before_whatever_its_arms(tmp_path, pair, cpu):
    store, other = Store(tmp_path), replace(pair, replicate=1)
    store.add_results(other, cpu, both(), [block(other, 1)])
    store.add_results(pair, cpu, both("failed"), [block(pair)])
    for number, precision in enumerate(("amp-bf16", "fp16-master"), 2):
        again = replace(pair, arms=arms("fp32", precision))
        assert again.id == pair.id
        Store(tmp_path).add_results(again, cpu, [result(), result(precision)], [block(pair, number)])
    assert [(row["precision"], row["status"]) for row in trial_rows(tmp_path)] == [
        *(("fp32", "ok"), ("amp-bf16", "ok")),
        *(("fp32", "ok"), ("fp16-master", "ok")),
    ]
    assert rounds(tmp_path) == [1, 3]


@pytest.mark.parametrize(("ending", "left"), [("ok", ["both", "both"]), ("oom", ["alone", "both", "both", "alone"])])
def test_an_arm_measured_alone_counts_until_it_is_measured_with_the_others(tmp_path, pair, cpu, ending, left):
    first, second = pair.apart()
    store = Store(tmp_path)
    store.add_results(first, cpu, [result()], [block(first)])
    store.add_results(second, cpu, [result("amp-bf16", "failed")])
    assert not stored_results(tmp_path).is_done(pair)
    store.add_results(pair, cpu, both(ending))
    if ending == "oom":  # which is no end of what each does alone
        store.add_results(second, cpu, [result("amp-bf16")])
    assert stored_results(tmp_path).is_done(pair)
    names = {pair.id: "both", first.id: "alone", second.id: "alone"}
    assert [names[row["trial"]] for row in trial_rows(tmp_path) if row["status"] != "failed"] == left
    assert len(rounds(tmp_path)) == left.count("alone") // 2


class Failing:
    """Lets the Nth call that changes a folder fail, as an error or, with all after it, as the end of the process."""

    CALLS = ("fsync", "truncate", "replace", "rename", "mkdir", "unlink", "rmdir")

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
def test_a_trial_is_stored_as_a_whole_or_not_at_all_at_whatever_call_it_fails(tmp_path, pair, cpu, monkeypatch, kill):
    def measure(folder, status, number):
        store = Store(folder)
        store.write_run({"request": {}})
        store.add_results(pair, cpu, both(status), [block(pair, number)])

    ended, states = [], set()
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        measure(folder, "failed", 3)
        with (folder / "blocks.csv").open("a") as file:
            file.write("half a li")
        with monkeypatch.context() as patched:
            failing = Failing(patched, number, kill=kill)
            try:
                measure(folder, "ok", 7)
            except (UsageError, OSError, Failing.Killed) as error:
                ended.append(type(error))
        Store(folder).write_run({"request": {}})
        ends = [row["status"] for row in trial_rows(folder)]
        states.add((*ends, *(rounds(folder) if ends else ())))  # of a trial without rows no details count
        assert not list(folder.glob(".*"))
        if failing.left > 0:
            break
    assert number > 10
    # A trial that is tried again has no rows for a moment: those of the failed attempt go first.
    assert states <= {("failed", "failed", 3), (), ("ok", "ok", 7)}
    assert states >= {("failed", "failed", 3), ("ok", "ok", 7)}
    assert set(ended) == ({Failing.Killed} if kill else {UsageError, OSError})


@pytest.mark.parametrize(
    ("fault", "sentence"), [("deleted", "was deleted or moved"), ("full", "File too large.*Make room")]
)
def test_a_folder_that_cannot_be_written_ends_the_run_and_what_was_stored_stays(tmp_path, pair, cpu, fault, sentence):
    folder, other = tmp_path / "results" / "run", replace(pair, replicate=1)
    store, limits = Store(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    store.add_results(pair, cpu, both(), [block(pair)])
    before = contents(folder)
    if fault == "deleted":
        folder.rename(tmp_path / "elsewhere")
    else:  # the next write to the file ends in the middle
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before["blocks.csv"]) + 10, limits[1]))
    try:
        with pytest.raises(UsageError, match=f"{sentence}.*--resume {folder}"):
            store.add_results(other, cpu, both(), [block(other)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    place = tmp_path / "elsewhere" if fault == "deleted" else folder
    assert contents(place) == before  # without half a row
    store = Store(place)
    store.add_results(other, cpu, both(), [block(other)])
    assert set(stored_results(place).statuses) == {pair.id, other.id}


def test_a_file_that_was_deleted_is_not_made_again_without_what_it_had(tmp_path, pair, cpu):
    store = Store(tmp_path)
    store.add_results(pair, cpu, both())
    (tmp_path / "speed.csv").unlink()
    with pytest.raises(UsageError, match="was deleted or moved"):
        store.add_results(replace(pair, replicate=1), cpu, both())


def test_details_of_a_trial_that_did_not_end_make_room_for_its_own(tmp_path, pair, cpu):
    other = replace(pair, replicate=1)
    Store(tmp_path).add_results(pair, cpu, both(), [block(pair, 1)])
    (tmp_path / "speed.csv").unlink()
    store = Store(tmp_path)
    store.add_results(other, cpu, both(), [block(other, 2)])
    store.add_results(pair, cpu, both(), [block(pair, 3)])
    assert rounds(tmp_path) == [2, 3]


@pytest.mark.parametrize(
    "note", ["two\nlines", "a\ttab", "\x1b[31mred", "\u202eback", "=1+1", "a,b", 'a "b"', "x" * 400]
)
def test_a_trial_is_known_again_whatever_its_parameters_are(tmp_path, pair, cpu, note):
    suite = replace(pair.cell.suite, parameters=(("note", note),))
    trial = replace(pair, cell=replace(pair.cell, suite=suite))
    for _ in range(2):
        Store(tmp_path).add_results(trial, cpu, both(), [block(trial)])
        assert stored_results(tmp_path).is_done(trial)
    assert len(trial_rows(tmp_path)) == 2
    assert rounds(tmp_path) == [0]
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT}))
    (cell,) = set(read_trials(tmp_path, {}, read_details(tmp_path))["cell"])
    assert cell == trial.cell_id


def test_files_of_trials_have_names_of_their_own_that_a_file_may_have(tiny_trial):
    suites = [replace(tiny_trial.cell.suite, parameters=(("note", note),)) for note in ("a/b", "a_b", "a b", "x" * 400)]
    trials = [replace(tiny_trial, cell=replace(tiny_trial.cell, suite=suite)) for suite in suites]
    for paths in ([trial.checkpoint for trial in trials], [trial.log for trial in trials]):
        assert len(set(paths)) == len(trials)
        assert all(len(path.name) < 200 for path in paths)
