"""A round of a script's processes: its order, the ratio that cancels drift, arms that leave it."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bench.results.records import Block, Device, TrialResult
from bench.script.launcher import CENSUS_STEPS, ScriptLauncher
from bench.script.steps import RefusedError
from bench.spec.data_source import DataSource
from bench.spec.placement import Placement
from bench.spec.request import Script
from bench.spec.trial import Cell, SuiteRef, Trial
from tests.arms import arms
from tests.derived import figured
from tests.script.test_steps import record

CPU = Device(placement="cpu", kind="cpu", name="a CPU", architecture="x86")


def trial(*names, phase="speed", replicate=0, reference=None):
    cell = Cell(
        suite=SuiteRef(name="train.py"),
        placement=Placement(name="cpu"),
        batch_size=1,
        data=DataSource(kind="script"),
        reference=reference or names[0],
    )
    return Trial(cell=cell, phase=phase, arms=arms(*names), replicate=replicate)


def run_process(command, name="fp32", *, options="", phase="speed", **more):
    """Run one process of an arm to the end of its measured steps; return each rank's record."""
    script = Script(command=command, arms=((name, options),), warmup=4, **more)
    count, observed = script.steps, {}
    if phase == "memory":
        count, observed = CENSUS_STEPS, {"census": True}
    asked = replace(trial(name, phase=phase), silence_s=300.0)
    with closing(ScriptLauncher(script)) as launcher:
        return launcher._run_arm(asked, name, CPU, lambda _message: None, count, **observed)


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """Return a function that runs a trial whose processes are recorded ones.

    An arm has the records of its ranks, an iterator of those of its turns, or an error.
    """

    def launch(processes, asked=None, *, inject=False):
        asked = asked or trial(*processes)
        arms = tuple((name, "") for name in processes)
        script = Script(command=("train.py",), arms=arms, warmup=2, inject=inject)
        launcher = ScriptLauncher(script)
        launcher.workspace = tmp_path
        done = SimpleNamespace(started=[], rows={}, places=[], notes=launcher.notes)

        def run_arm(_trial, name, *_arguments, **_options):
            done.started.append(name)
            ranks = processes[name]
            if isinstance(ranks, Iterator):
                ranks = next(ranks)
            if isinstance(ranks, Exception):
                raise ranks
            return ranks

        monkeypatch.setattr(launcher, "_run_arm", run_arm)
        sent = []
        done.ending = launcher.run(asked, CPU, sent.append)
        for each in figured(asked, sent):
            if isinstance(each, TrialResult):
                done.rows[each.arm] = each
            if isinstance(each, Block):
                done.places.append(each.position)
        return done

    return launch


def process(ms, **more):
    """Return the record of the only rank of a process whose steps take this time."""
    observed = {"warnings": [], "is_scaled": False, "memory": {"peak_resident_bytes": 2**20}}
    return [record([ms] * 12, **more) | observed]


def speedup(done, arm):
    return done.rows[arm].row.log_gain().exp().center


def test_drift_that_is_linear_cancels_in_a_round_and_each_step_has_a_row(launch):
    plain = iter([process(30), process(30 * 1.1**3)])
    mixed = iter([process(20 * 1.1), process(20 * 1.1**2)])
    done = launch({"plain": plain, "mixed": mixed})
    assert done.ending.kind == "done"
    assert done.started == ["plain", "mixed", "mixed", "plain"]
    assert speedup(done, "mixed") == pytest.approx(1.5)
    assert done.rows["plain"].row.step_ms == pytest.approx(30 * (1 + 1.1**3) / 2)
    assert done.places == np.repeat(range(4), 10).tolist()


def test_the_slowest_of_several_ranks_counts(launch):
    done = launch({"a": process(10) + process(12), "b": process(6)})
    assert speedup(done, "b") == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        (RefusedError("exit code 1; it printed last: no such flag", "error"), "no such flag"),
        (process(10, backwards=[4] * 12), "backward passes"),
    ],
)
def test_an_arm_that_fails_or_accumulates_otherwise_leaves_the_round_and_the_others_go_on(
    launch, failing, why
):
    done = launch({"a": process(10), "b": failing, "c": process(5)})
    assert done.started == ["a", "b", "c", "c", "a"]
    assert done.rows["b"].status == "failed"
    assert why in done.rows["b"].detail
    assert speedup(done, "c") == pytest.approx(2.0)


@pytest.mark.parametrize("left", [("a",), ("b", "c")])
def test_without_the_reference_or_a_second_arm_nothing_is_started(launch, left):
    done = launch({}, trial(*left, reference="a"))
    assert (done.ending.kind, done.rows) == ("unsupported", {})


def test_waiting_and_skipped_steps_are_in_the_row_and_said(launch):
    (slow,) = process(10)
    for step in slow["steps"]:
        step |= {"data_s": 0.004, "skipped": True}
    done = launch({"a": [slow], "b": process(5)})
    row = done.rows["a"].row
    assert (row.script_wait_pct, row.skipped_steps) == (pytest.approx(40.0), 20)
    assert done.notes == ["train.py, a: waited for data in 40 % of a step."]


def test_backward_passes_that_grow_while_they_are_timed_are_said(launch):
    growing = [1] * 6 + [4] * 12
    slow = record([10.0] * 18, backwards=growing)
    fast = record([5.0] * 18, backwards=growing)
    done = launch({"a": [slow], "b": [fast]})
    assert "had another number of backward passes" in done.rows["b"].detail
    assert speedup(done, "b") == pytest.approx(2.0)


def test_a_profiled_arm_has_its_types_and_is_compared_with_the_reference(launch):
    row = launch({"a": process(10)}, trial("a", phase="memory")).rows["a"]
    assert row.operations.compute_dtypes == "float32:100%"
    assert row.row.peak_resident_bytes == 2**20
    other = trial("b", phase="memory", reference="a")
    same = launch({"b": process(5)}, other)
    assert "changed nothing" in same.ending.text
    mixed = process(5, computed={"bfloat16": 9, "float32": 1})
    row = launch({"b": mixed}, other).rows["b"]
    assert row.operations.compute_dtypes == "bfloat16:90% float32:10%"


def test_float16_without_loss_scaling_is_warned_of(launch):
    def notes(dtype, *, is_scaled=False):
        (narrow,) = process(10, computed={dtype: 10})
        narrow["is_scaled"] = is_scaled
        return launch({"amp": [narrow]}, trial("amp", phase="memory")).notes

    assert len(notes("float16")) == 1
    assert notes("float16", is_scaled=True) == notes("bfloat16") == []


def test_a_script_that_computes_in_16_bits_itself_is_not_injected(launch):
    narrow = process(10, computed={"bfloat16": 10})
    done = launch({"fp32": narrow}, trial("fp32", phase="memory"), inject=True)
    assert "16 bits itself" in done.ending.text
