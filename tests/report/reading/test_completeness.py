"""A run that did not end says so, and how much of its plan is missing."""

from pathlib import Path

import pytest

from bench.report.reading.completeness import missing, remark
from bench.report.reading.load import load
from bench.results.run_json import planned
from tests.report import fleet
from tests.report.builders import RunBuilder

BOTH = ("fp32", "amp-bf16")


def plan(run: RunBuilder, *wanted):
    return [planned(run.trial(phase, arms, 128, **more)) for phase, arms, more in wanted]


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    """A run of which one process of speed and the trainings are missing."""
    run = RunBuilder(tmp_path / "run").memory("fp32", 10).memory("amp-bf16", 8).speed(speedups=(2.0, 2.1))
    wanted = plan(
        run,
        *(("memory", [arm], {}) for arm in BOTH),
        *(("speed", BOTH, {"replicate": number}) for number in range(3)),
        *(("train", [arm], {"seed": 0}) for arm in BOTH),
    )
    fleet.edit_run(run.folder, lambda info: info.update(planned=wanted))
    return run


def remark_of(run: RunBuilder, **info) -> str:
    fleet.edit_run(run.folder, lambda kept: kept.update(info))
    read = load([run.folder])
    return remark(read.runs[0])


def test_an_unfinished_run_says_how_many_trials_are_missing_and_of_which_phase(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder is named from here
    text = remark_of(run, finished=None)
    assert text.startswith("Run run is unfinished: it was stopped, or is still running; ")
    assert "3 of 7 planned trials are missing (1 speed, 2 train)" in text
    assert text.endswith("Go on with --resume run.")


def test_a_run_that_ended_in_a_given_time_says_what_is_undecided(run):
    text = remark_of(run, finished=None, undecided=["speed of mlp on cpu", "train of mlp on cpu"])
    assert "--within; undecided: speed of mlp on cpu, train of mlp on cpu; 3 of 7 planned trials" in text
    assert text.endswith("/run.")


def test_a_run_that_ended_says_nothing_of_what_was_left_out(run):
    assert remark_of(run, finished="now") == ""


@pytest.mark.parametrize(
    ("asked", "lost"),
    [
        (("train", ["fp32"], {}), False),
        (("train", ["fp32"], {"seed": 1}), True),
        (("train", ["amp-bf16"], {}), True),
        (("speed", BOTH, {"replicate": 0}), True),
    ],
)
def test_a_planned_trial_is_missing_if_it_has_no_row(tmp_path, asked, lost):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0])
    wanted = plan(run, asked)
    assert missing(wanted, load([run.folder]).trials) == (wanted if lost else [])
