"""A run is continued only where its rows can be compared with those that there are; seeds may be added."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.planning.plan import Plan
from bench.results.records import Environment
from bench.results.store import read_run
from bench.run.prepare import PreparedRun
from bench.run.session import execute, open_folder
from bench.spec.errors import UsageError
from bench.spec.trial import Request, SuiteRef
from tests.conftest import TINY, call
from tests.results.test_store import rows

REQUEST = Request(suites=("mlp",))


def run_nothing(folder: Path, environment: Environment, request: Request = REQUEST) -> None:
    """Run a plan without trials in a folder."""
    launcher = SimpleNamespace(overlapping=False, notes=[])
    plan = Plan(trials=(), seconds=())
    suites = (SuiteRef(name="mlp"),)
    execute(PreparedRun(request=request, suites=suites, environment=environment, plan=plan), folder, launcher)


def changed(machine: Environment, **changes: object) -> Environment:
    return replace(machine, devices=(replace(machine.devices[0], **changes),))


def test_on_the_same_machine_a_run_goes_on_and_keeps_its_start(tmp_path, machine, monkeypatch):
    times = iter("abcd")
    monkeypatch.setattr("bench.run.session._now", lambda: next(times))
    run_nothing(tmp_path, machine)
    run_nothing(tmp_path, machine)
    assert (read_run(tmp_path)["started"], read_run(tmp_path)["finished"]) == ("a", "c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda here: replace(here, torch="2.6"), "was made with torch 2.15 on 4 threads; this is torch 2.6 on 4 thr"),
        (lambda here: changed(here, threads=2), "with torch 2.15 on 4 threads; this is torch 2.15 on 2 threads"),
        (lambda here: changed(here, name="Another CPU"), "was made on Test CPU; this is Another CPU"),
    ],
    ids=["torch", "threads", "device"],
)
def test_another_torch_thread_count_or_device_is_refused_and_named(tmp_path, machine, change, message):
    here = changed(machine, threads=4)
    run_nothing(tmp_path, here)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UsageError, match=message):
        run_nothing(tmp_path, change(here))
    assert (tmp_path / "run.json").read_bytes() == before


def test_seeds_may_be_added_and_nothing_else_may_change(tmp_path, machine):
    run_nothing(tmp_path, machine)
    run_nothing(tmp_path, machine, replace(REQUEST, seeds=(0, 1)))
    with pytest.raises(UsageError, match="was started with other seeds"):
        run_nothing(tmp_path, machine, replace(REQUEST, seeds=(1,)))
    with pytest.raises(UsageError, match="was started with other epochs, clip_grad"):
        run_nothing(tmp_path, machine, replace(REQUEST, seeds=(0, 1), epochs=3, clip_grad=1.0))


@pytest.mark.slow
def test_added_seeds_are_the_runs_own_from_then_on(tmp_path):
    def trained():
        return [(row["seed"], row["started"]) for row in rows(tmp_path / "mine", "trials.csv")]

    (tmp_path / "tiny.py").write_text(TINY)
    words = "--suite tiny.py --gpus cpu --precisions fp32 --phases train --epochs 1 --batch-sizes 4 --seeds 1"
    assert call(*words.split(), "--out", "mine", cwd=tmp_path).returncode == 0
    (before,) = trained()
    assert call("--resume", "mine", "--seeds", "5", cwd=tmp_path).returncode == 2
    assert call("--resume", "mine", "--seeds", "1,5", cwd=tmp_path).returncode == 0
    after = trained()
    assert after[0] == before
    assert [seed for seed, _ in after] == ["1", "5"]
    assert call("--resume", "mine", cwd=tmp_path).returncode == 0
    assert trained() == after


def test_a_run_that_is_stopped_before_its_first_trial_can_be_resumed(tmp_path, monkeypatch, machine):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.run.session.Sampler", stop)
    with pytest.raises(KeyboardInterrupt):
        run_nothing(tmp_path / "run", machine)
    assert read_run(tmp_path / "run")["finished"] is None


def test_a_folder_is_taken_if_it_is_empty_and_resumed_only_if_it_holds_a_run(tmp_path):
    request = Request(suites=("mlp",), out=tmp_path)
    assert open_folder(request) == (request, tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"another --out\.$") as refused:
        open_folder(request)
    assert "--resume" not in str(refused.value)
