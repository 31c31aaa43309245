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
from bench.results.records import Switches, TrialResult
from bench.results.store import Store, stored_results
from bench.spec.errors import UsageError
from tests.arms import arms
from tests.report import builders
from tests.rows import rows, trial_rows


def result(precision="fp32", status="ok", **more):
    return TrialResult(arm=precision, status=status, **more)


@pytest.fixture
def pair(tiny_trial):
    """A trial of two arms."""
    return replace(tiny_trial, phase="speed", arms=arms("fp32", "amp-bf16"))


@pytest.fixture
def other(pair):
    return replace(pair, replicate=1)


def block(trial, number=0):
    return builders.block(trial.id, round=number)


@pytest.fixture
def add(cpu):
    """Return a function that stores a trial with a block of some round."""

    def add(store, trial, number=0, *, status="ok"):
        results = [result(name, status) for name in trial.arm_names]
        store.add_results(trial, cpu, results, [block(trial, number)])

    return add


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def rounds(folder):
    return [int(row["round"]) for row in rows(folder, "blocks.csv")]


def test_a_result_is_one_row_with_units_in_the_names_of_its_columns(tmp_path, tiny_trial, cpu):
    memory = MemoryPeak(peak_resident_bytes=1_000_000, model_bytes=0)
    ok = result(row=memory, switches=Switches(loss_scaling=False), wall_s=0.1 + 0.2)
    failed = result(status="failed", detail="it broke")
    store = Store(tmp_path)
    store.add_results(tiny_trial, cpu, [ok])
    store.add_results(replace(tiny_trial, replicate=1), cpu, [failed])
    first, second = rows(tmp_path, "memory.csv")
    assert list(first) == list(COLUMNS["memory.csv"])
    expected = {
        "suite": "tiny",
        "precision": "fp32",
        "batch_size": "4",
        "replicate": "0",
        "peak_resident_bytes": "1000000",
        "model_bytes": "0",
        "loss_scaling": "no",
        "peak_allocated_bytes": "",
        "techniques": "",
        "detail": "",
    }
    assert expected.items() <= first.items()
    assert float(first["wall_s"]) == 0.1 + 0.2
    assert second["detail"] == "it broke"
    assert second["peak_resident_bytes"] == ""


def test_the_rows_of_the_last_attempt_at_a_trial_replace_those_before_whatever_its_arms(
    tmp_path, add, pair, other
):
    add(Store(tmp_path), other, 1)
    add(Store(tmp_path), pair, 2)
    again = replace(pair, arms=arms("fp32", "fp16-master"))
    assert again.id == pair.id
    add(Store(tmp_path), again, 3)
    precisions = [row["precision"] for row in trial_rows(tmp_path)]
    assert precisions == ["fp32", "amp-bf16", "fp32", "fp16-master"]
    assert rounds(tmp_path) == [1, 3]


@pytest.mark.parametrize(("status", "rows"), [("ok", 2), ("oom", 4)])
def test_an_arm_measured_alone_counts_until_it_is_measured_with_the_others(
    *, tmp_path, add, pair, status, rows
):
    store = Store(tmp_path)
    for trial in pair.apart():
        add(store, trial)
    assert stored_results(tmp_path).is_done(pair)
    add(store, pair, status=status)  # out of memory is no end of what each does alone
    assert stored_results(tmp_path).is_done(pair)
    assert len(trial_rows(tmp_path)) == rows


def noted(trial, note):
    """Return a trial of a suite with a parameter."""
    suite = replace(trial.cell.suite, parameters=(("note", note),))
    return replace(trial, cell=replace(trial.cell, suite=suite))


class Failing:
    """Lets the Nth call that changes a folder fail, as an error or, with all after it, as the end
    of the process.
    """

    CALLS = ("fsync", "truncate", "replace", "rename", "mkdir", "unlink", "rmdir")

    class Killed(BaseException):
        pass

    def __init__(self, monkeypatch, number, *, kill):
        self.left = number
        self.kill = kill
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
    tmp_path, add, pair, monkeypatch, kill
):
    def measure(folder, number, status):
        store = Store(folder)
        store.write_run({"request": {}})
        add(store, pair, number, status=status)

    before = ("failed", "failed", 3)
    after = ("ok", "ok", 7)
    errors = set()
    states = set()
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        measure(folder, 3, "failed")
        with (folder / "blocks.csv").open("a") as file:
            file.write("half a li")
        with monkeypatch.context() as patched:
            failing = Failing(patched, number, kill=kill)
            try:
                measure(folder, 7, "ok")
            except (UsageError, OSError, Failing.Killed) as error:
                errors.add(type(error))
        Store(folder).write_run({"request": {}})
        state = [row["status"] for row in trial_rows(folder)]
        if state:  # of a trial without rows no details count
            state += rounds(folder)
        states.add(tuple(state))
        assert not list(folder.glob(".*"))
        if failing.left > 0:
            break
    assert number > 10
    # A trial that is tried again has no rows for a moment: those of the failed attempt go first.
    assert {before, after} <= states <= {before, (), after}
    assert errors == ({Failing.Killed} if kill else {UsageError, OSError})


def test_a_full_disk_ends_the_run_and_what_was_stored_stays(tmp_path, add, pair, other):
    store = Store(tmp_path)
    add(store, pair)
    before = contents(tmp_path)
    # The next write to the file ends in the middle.
    size = len(before["blocks.csv"]) + 10
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(UsageError, match=f"File too large.*Make room.*--resume {tmp_path}"):
            add(store, other)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path) == before  # without half a row
    add(store, other)
    assert rounds(tmp_path) == [0, 0]


def test_a_file_that_was_deleted_is_not_made_again_without_what_it_had(tmp_path, add, pair, other):
    store = Store(tmp_path)
    add(store, pair)
    (tmp_path / "speed.csv").unlink()
    with pytest.raises(UsageError, match=f"was deleted or moved.*--resume {tmp_path}"):
        add(store, other)


def test_details_of_a_trial_that_did_not_end_make_room_for_its_own(tmp_path, add, pair, other):
    add(Store(tmp_path), pair, 1)
    (tmp_path / "speed.csv").unlink()
    store = Store(tmp_path)
    add(store, other, 2)
    add(store, pair, 3)
    assert rounds(tmp_path) == [2, 3]


@pytest.mark.parametrize(
    "note", ["two\nlines", "a\ttab", "\x1b[31mred", "\u202eback", "=1+1", "a,b", 'a "b"', "x" * 400]
)
def test_a_trial_is_known_again_whatever_its_parameters_are(tmp_path, add, pair, note):
    trial = noted(pair, note)
    for _ in range(2):
        add(Store(tmp_path), trial)
        assert stored_results(tmp_path).is_done(trial)
    assert rounds(tmp_path) == [0]
    trials = read_trials(tmp_path, {}, read_details(tmp_path))
    assert len(trials) == 2
    for parameters in trials["parameters_json"]:
        assert json.loads(parameters) == {"note": note}


def test_files_of_trials_have_names_of_their_own_that_a_file_may_have(tiny_trial):
    paths = set()
    for note in ("/a/../b", "a_b", "a b", "x" * 400):
        trial = noted(tiny_trial, note)
        paths.update([trial.checkpoint, trial.log])
    assert len(paths) == 2 * 4
    for path in paths:
        _folder, name = path.parts
        assert len(name) < 200
