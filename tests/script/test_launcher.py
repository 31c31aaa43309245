"""A round of a script's processes: its order, the ratio that cancels drift, arms that leave it."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace

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
from tests.phases.conftest import of_kind
from tests.script.test_steps import record

CPU = Device(placement="cpu", kind="cpu", name="a CPU", architecture="x86")


def trial(*names, phase="speed", reference=None):
    cell = Cell(
        suite=SuiteRef(name="train.py"),
        placement=Placement(name="cpu"),
        batch_size=1,
        data=DataSource(kind="script"),
        reference=reference or names[0],
    )
    return Trial(cell=cell, phase=phase, arms=arms(*names))


def run_process(command, name="fp32", *, options="", phase="speed", **more):
    """Run one process of an arm to the end of its measured steps; return each rank's record."""
    script = Script(command=command, arms=((name, options),), warmup=4, **more)
    with closing(ScriptLauncher(script)) as launcher:
        run_arm = partial(launcher._run_arm, trial(name), name, CPU, print)
        if phase == "memory":
            return run_arm(CENSUS_STEPS, census=True)
        return run_arm(script.steps)


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """Return a function that runs a trial whose processes are recorded ones.

    An arm has the record of its only rank, the records of its ranks, an iterator of those of its
    turns, or an error.
    """

    def launch(processes, *, inject=False, steps=10, **options):
        asked = trial(*processes, **options)
        script = Script(command=("train.py",), arms=(), warmup=2, steps=steps, inject=inject)
        launcher = ScriptLauncher(script)
        launcher.workspace = tmp_path
        started = []

        def run_arm(_trial, name, *_arguments, **_options):
            started.append(name)
            ranks = processes[name]
            if isinstance(ranks, Iterator):
                ranks = next(ranks)
            if isinstance(ranks, Exception):
                raise ranks
            return ranks if isinstance(ranks, list) else [ranks]

        monkeypatch.setattr(launcher, "_run_arm", run_arm)
        sent = []
        ending = launcher.run(asked, CPU, sent.append)
        results = of_kind(TrialResult, figured(asked, sent))
        return SimpleNamespace(
            ending=ending,
            started=started,
            blocks=of_kind(Block, sent),
            rows={result.arm: result for result in results},
            notes=launcher.notes,
        )

    return launch


def process(ms, **columns):
    """Return the record of the only rank of a process whose steps take this time."""
    events = record([ms] * 12, **columns)
    events["warnings"] = []
    events["is_scaled"] = False
    events["memory"] = {"peak_resident_bytes": 2**20}
    return events


def speedup(done, arm):
    gain = done.rows[arm].row.log_gain()
    return gain.exp().center


def test_drift_that_is_linear_cancels_in_a_round_and_each_step_has_a_row(launch):
    # Each process takes twice as long as the one before would have.
    plain = iter([process(30), process(240)])
    mixed = iter([process(40), process(80)])
    done = launch({"plain": plain, "mixed": mixed})
    assert done.ending.kind == "done"
    assert done.started == ["plain", "mixed", "mixed", "plain"]
    assert speedup(done, "mixed") == pytest.approx(1.5)
    row = done.rows["plain"].row
    assert row.step_ms == pytest.approx(135)
    positions = [block.position for block in done.blocks]
    assert positions == sorted([0, 1, 2, 3] * 10)


def test_the_slowest_of_several_ranks_counts(launch):
    first = process(10)
    second = process(12)
    done = launch({"a": [first, second], "b": process(6)})
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
    row = done.rows["b"]
    assert row.status == "failed"
    assert why in row.detail
    assert speedup(done, "c") == pytest.approx(2.0)


@pytest.mark.parametrize("left", [("a",), ("b", "c")])
def test_without_the_reference_or_a_second_arm_nothing_is_started(launch, left):
    processes = dict.fromkeys(left)
    done = launch(processes, reference="a")
    assert done.ending.kind == "unsupported"
    assert done.started == []


def test_waiting_and_skipped_steps_are_in_the_row_and_said(launch):
    waits_s = [0.004] * 12
    skipped = [True] * 12
    slow = process(10, data_s=waits_s, skipped=skipped)
    done = launch({"a": slow, "b": process(5)})
    row = done.rows["a"].row
    assert row.script_wait_pct == pytest.approx(40.0)
    assert row.skipped_steps == 20
    assert done.notes == ["train.py, a: waited for data in 40 % of a step."]


def test_a_script_that_ends_before_the_last_of_its_steps_is_said(launch):
    done = launch({"a": process(10), "b": process(5)}, steps=50)
    for name in "ab":
        assert "10 steps were measured of the 50" in done.rows[name].detail


def test_backward_passes_that_grow_while_they_are_timed_are_said(launch):
    growing = [1] * 4 + [4] * 8
    plain = process(10, backwards=growing)
    mixed = process(5, backwards=growing)
    done = launch({"plain": plain, "mixed": mixed})
    result = done.rows["mixed"]
    assert "had another number of backward passes" in result.detail
    assert speedup(done, "mixed") == pytest.approx(2.0)


def test_a_profiled_arm_has_its_types_and_is_compared_with_the_reference(launch):
    done = launch({"a": process(10)}, phase="memory")
    result = done.rows["a"]
    assert result.row.peak_resident_bytes == 2**20
    mixed = process(5)
    done = launch({"b": mixed}, phase="memory", reference="a")
    assert "computed what the reference did" in done.ending.text
    mixed["computed"] = {"bfloat16": 9, "float32": 1}
    done = launch({"b": mixed}, phase="memory", reference="a")
    result = done.rows["b"]
    assert result.operations.compute_dtypes == "bfloat16:90% float32:10%"


@pytest.mark.parametrize(
    ("dtype", "is_scaled", "count"),
    [
        ("float16", False, 1),
        ("float16", True, 0),
        ("bfloat16", False, 0),
    ],
)
def test_float16_without_loss_scaling_is_warned_of(launch, dtype, is_scaled, count):
    narrow = process(10)
    narrow["computed"] = {dtype: 10}
    narrow["is_scaled"] = is_scaled
    done = launch({"amp": narrow}, phase="memory")
    assert len(done.notes) == count


def test_a_script_that_computes_in_16_bits_itself_is_not_injected(launch):
    narrow = process(10)
    narrow["computed"] = {"bfloat16": 10}
    done = launch({"fp32": narrow}, phase="memory", inject=True)
    assert "16 bits itself" in done.ending.text
