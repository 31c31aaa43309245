"""The ladder's trials after some of its rungs turned out not to work, with a launcher that answers from a script."""

import json
from dataclasses import replace

import pytest

from bench.launch.launcher import Ending
from bench.planning.plan import Plan
from bench.report.reading.completeness import missing
from bench.report.reading.load import load
from bench.results.columns import SCHEMA
from bench.results.records import TrialResult
from bench.results.store import planned as entry_of
from bench.run.execute import _missing
from bench.spec.techniques import build_ablation
from bench.spec.trial import Protocol
from tests.arms import arms
from tests.run.test_execute import execute

MORE = ("channels-last", "compile", "checkpointing")
RUNGS = tuple(rung.name for rung in build_ablation("amp-fp16", "cpu", MORE)[0])
TOP = "amp-fp16+set-to-none+prefetcher"


@pytest.fixture
def plan(tiny_trial):
    memory = [replace(tiny_trial, phase="ladder_memory", arms=arms(name)) for name in RUNGS]
    protocol = Protocol(replicates=2)
    ladder = [
        replace(tiny_trial, phase="ladder", arms=arms(*RUNGS), replicate=number, protocol=protocol) for number in (0, 1)
    ]
    trials = (*memory, *ladder)
    return Plan(trials=trials, seconds=(None,) * len(trials))


def of(found, phase, status="ok"):
    return [name for trial, name, said in found if f"-{phase}-" in trial and said == status]


def test_after_a_technique_that_is_refused_the_rungs_stand_on_the_one_below_it(tmp_path, plan, cpu):
    refused = (("ladder_memory", "channels-last"), Ending(kind="unsupported", text="no images"))
    _, found, fine = execute(tmp_path / "run", plan, cpu, [refused])
    assert of(found, "ladder_memory", "unsupported") == [f"{TOP}+channels-last"]
    standing = [*RUNGS[:4], f"{TOP}+compile", f"{TOP}+compile+checkpointing"]
    assert of(found, "ladder_memory") == standing
    assert of(found, "ladder") == standing * 2
    assert fine
    assert execute(tmp_path / "run", plan, cpu, [refused])[0] == []  # resumed, all is done


def test_nothing_counts_as_missing_where_rungs_stand_elsewhere_than_planned(tmp_path, plan, cpu):
    refused = (("ladder_memory", "channels-last"), Ending(kind="unsupported", text="no images"))
    execute(tmp_path / "run", plan, cpu, [refused])
    planned = [entry_of(one) for one in plan.trials]
    (tmp_path / "run" / "run.json").write_text(json.dumps({"schema": SCHEMA}))
    climbs = load([tmp_path / "run"]).ablations
    assert missing(planned, climbs) == []
    without = climbs[climbs["precision"] != f"{TOP}+compile"]
    assert [one["phase"] for one in missing(planned, without)] == ["ladder_memory", "ladder", "ladder"]


def test_a_rung_that_runs_out_of_memory_alone_is_a_row_and_the_rest_goes_on(tmp_path, plan, cpu):
    _, found, fine = execute(tmp_path / "run", plan, cpu, [(("ladder_memory-fp32",), Ending(kind="oom", text="big"))])
    assert of(found, "ladder_memory", "oom") == ["fp32"]
    assert of(found, "ladder") == list(RUNGS[1:]) * 2
    assert fine


def test_rungs_that_do_not_fit_together_are_measured_apart(tmp_path, plan, cpu):
    joint = (("-ladder-r",), Ending(kind="oom", text="too big"))
    ran, found, _ = execute(tmp_path / "run", plan, cpu, [joint])
    assert ran[len(RUNGS) :] == [
        name
        for replicate in (0, 1)
        for name in (
            f"tiny-cpu-b4-ladder-r{replicate}",
            *(f"tiny-cpu-b4-ladder-{rung}-r{replicate}" for rung in RUNGS),
        )
    ]
    assert of(found, "ladder") == list(RUNGS) * 2


def test_a_ladder_of_which_no_rung_works_is_not_timed(tmp_path, plan, cpu):
    ran, found, fine = execute(tmp_path / "run", plan, cpu, [(("ladder_memory",), Ending(kind="oom", text="big"))])
    assert of(found, "ladder_memory", "oom") == [
        *("fp32", "amp-fp16", "amp-fp16+set-to-none", "amp-fp16+prefetcher"),
        *(f"amp-fp16+{name}" for name in MORE),
    ]
    assert len(ran) == len(RUNGS)
    assert not fine


def test_a_rung_that_a_process_moved_itself_has_answered_and_others_have_not(tiny_trial):
    asked = ("fp32", "fp32+compile", "fp32+compile+checkpointing", "fp32+compile+checkpointing+channels-last")
    trial = replace(tiny_trial, phase="ladder", arms=arms(*asked))
    results = [
        TrialResult(precision="fp32+compile", status="unsupported", detail="no compiler"),
        TrialResult(precision="fp32", status="ok"),
        TrialResult(precision="fp32+checkpointing", status="ok"),
    ]
    lost = _missing(trial, results, Ending(kind="died", text="gone"), "now")
    assert [(one.precision, one.status) for one in lost] == [(asked[3], "failed")]
