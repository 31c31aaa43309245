"""A round of a script's processes: their order, the ratio that cancels drift, and arms that leave it."""

import pytest

from bench.results.records import Block, Device, TrialResult
from bench.script.launcher import ScriptLauncher
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


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """Return a function that runs a trial whose processes are recorded ones, and returns its ending and its records."""

    def launch(processes, asked, *, inject=False):
        names = dict.fromkeys(name for name, _ in processes)
        launcher = ScriptLauncher(
            Script(command=("train.py",), arms=tuple((name, "") for name in names), warmup=2, inject=inject)
        )
        launcher.workspace = tmp_path
        left = list(processes)

        def run_arm(_trial, name, *_arguments, **_options):
            expected, process = left.pop(0)
            assert name == expected
            if isinstance(process, Exception):
                raise process
            return [process] if isinstance(process, dict) else process

        monkeypatch.setattr(launcher, "_run_arm", run_arm)
        records = []
        ending = launcher.run(asked, CPU, records.append)
        assert not left
        return ending, figured(asked, records), launcher.notes

    return launch


def process(ms, **more):
    return record([ms] * 12, **more) | {"allocated_bytes": None, "reserved_bytes": None} | {"resident_bytes": 2**20}


def results(records):
    return {each.precision: each for each in records if isinstance(each, TrialResult)}


def test_drift_that_is_linear_cancels_in_a_round_and_each_step_has_a_row(launch):
    drifting = [("plain", 30), ("mixed", 20 * 1.1), ("mixed", 20 * 1.1**2), ("plain", 30 * 1.1**3)]
    processes = [(name, process(ms)) for name, ms in drifting]
    ending, records, _ = launch(processes, trial("plain", "mixed"))
    rows = results(records)
    assert ending.kind == "done"
    assert rows["mixed"].row.speedup == pytest.approx(1.5)
    assert rows["plain"].row.step_ms == pytest.approx(30 * (1 + 1.1**3) / 2)
    places = [each.position for each in records if isinstance(each, Block)]
    assert places == [place for place in range(4) for _ in range(10)]


def test_the_slowest_of_several_ranks_counts(launch):
    ranks = [process(10), process(12)]
    round_ = [("a", ranks), ("b", process(6)), ("b", process(6)), ("a", ranks)]
    _, records, _ = launch(round_, trial("a", "b"))
    assert results(records)["b"].row.speedup == pytest.approx(2.0)


def test_an_arm_that_fails_leaves_the_round_and_the_others_go_on(launch):
    crash = RefusedError("exit code 1; it printed last: no such flag", "error")
    round_ = [("a", process(10)), ("b", crash), ("c", process(5)), ("c", process(5)), ("a", process(10))]
    _, records, _ = launch(round_, trial("a", "b", "c"))
    rows = results(records)
    assert (rows["b"].status, rows["c"].status) == ("failed", "ok")
    assert "no such flag" in rows["b"].detail
    assert rows["c"].row.speedup == pytest.approx(2.0)


def test_an_arm_that_accumulates_otherwise_is_refused(launch):
    other = process(10, backwards=[4] * 12)
    _, records, _ = launch([("a", process(10)), ("b", other), ("a", process(10))], trial("a", "b"))
    assert {name: row.status for name, row in results(records).items()} == {"a": "ok", "b": "failed"}


@pytest.mark.parametrize("left", [("a",), ("b", "c")])
def test_without_the_reference_or_a_second_arm_nothing_is_started(launch, left):
    ending, records, _ = launch([], trial(*left, reference="a"))
    assert (ending.kind, records) == ("unsupported", [])


def test_waiting_and_skipped_steps_are_in_the_row_and_said(launch):
    slow = process(10)
    for step in slow["steps"]:
        step |= {"data_s": 0.004, "skipped": True}
    _, records, notes = launch([("a", slow), ("b", process(5)), ("b", process(5)), ("a", slow)], trial("a", "b"))
    row = results(records)["a"]
    assert row.row.script_wait_pct == pytest.approx(40.0)
    assert row.row.skipped_steps == 20
    assert len(notes) == 2


def test_a_profiled_arm_has_its_types_and_is_compared_with_the_reference(launch):
    _, records, _ = launch([("a", process(10))], trial("a", phase="memory"))
    row = results(records)["a"]
    assert (row.operations.compute_dtypes, row.row.peak_resident_bytes) == ("float32:100%", 2**20)
    other = trial("b", phase="memory", reference="a")
    assert "changed nothing" in launch([("b", process(5))], other)[0].text
    _, records, _ = launch([("b", process(5, computed={"bfloat16": 9, "float32": 1}))], other)
    assert "9 of 10 products in bfloat16" in results(records)["b"].detail


def test_a_script_that_computes_in_16_bits_itself_is_not_injected(launch):
    narrow = process(10, computed={"bfloat16": 10})
    ending, _, _ = launch([("fp32", narrow)], trial("fp32", phase="memory"), inject=True)
    assert "16 bits itself" in ending.text


def test_a_refusal_is_the_reason_of_the_row(launch):
    ending, _, _ = launch([("a", RefusedError("it writes"))], trial("a", phase="memory"))
    assert (ending.kind, ending.text) == ("usage", "it writes")
