"""One row for each precision of a cell: what of its trials counts, and how it is put together."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from bench.report.analysis.summary import parity, summarise
from bench.report.reading.load import load
from bench.results.records import TrialResult
from tests.report.builders import RunBuilder, timed


def row(run: RunBuilder, precision: str = "amp-bf16", batch: int = 128) -> pd.Series:
    table = summarise(load([run.folder]).trials)
    found = table[(table["precision"] == precision) & (table["batch_size"] == batch)]
    assert len(found) == 1
    return found.iloc[0]


def test_the_headline_is_students_interval_over_the_processes_log_speedups(tmp_path: Path) -> None:
    speedups = [1.9, 2.0, 2.2, 2.05]
    found = row(RunBuilder(tmp_path / "run").speed(speedups=speedups))
    logs = np.log(speedups)
    low, high = scipy_stats.t.interval(0.95, 3, loc=logs.mean(), scale=scipy_stats.sem(logs))
    assert found["speedup"] == pytest.approx(math.exp(logs.mean()))
    assert found["low"] == pytest.approx(math.exp(low))
    assert found["high"] == pytest.approx(math.exp(high))
    assert (found["measured_in"], found["verdict"]) == ("4 processes", "FASTER")


def test_a_single_process_gives_its_own_interval_and_says_so(tmp_path: Path) -> None:
    found = row(RunBuilder(tmp_path / "run").speed(speedups=[2.0], within=0.01))
    assert (found["low"], found["high"]) == (pytest.approx(1.98), pytest.approx(2.02))
    assert found["measured_in"] == "one process"


def test_arms_measured_apart_are_compared_by_welchs_interval_on_log_steps(tmp_path: Path) -> None:
    baseline, arm = [10.0, 10.2, 9.9], [5.0, 5.1, 4.8]
    found = row(RunBuilder(tmp_path / "run").alone("fp32", baseline).alone("amp-bf16", arm))
    bounds = scipy_stats.ttest_ind(np.log(baseline), np.log(arm), equal_var=False).confidence_interval(0.95)
    assert (found["low"], found["high"]) == (pytest.approx(math.exp(bounds.low)), pytest.approx(math.exp(bounds.high)))
    assert found["measured_in"] == "3 processes apart"


def test_arms_measured_apart_in_one_process_each_have_no_interval_and_no_verdict(tmp_path: Path) -> None:
    found = row(RunBuilder(tmp_path / "run").alone("fp32", [10.0]).alone("amp-bf16", [5.0]))
    assert found["speedup"] == pytest.approx(2.0)
    assert math.isnan(found["low"])
    assert found["verdict"] == "INCONCLUSIVE"


@pytest.mark.parametrize("status", ["oom", "unsupported", "nonfinite", "invalid", "failed", "timeout"])
def test_a_trial_that_gave_nothing_keeps_its_word_and_has_no_figures(tmp_path: Path, status: str) -> None:
    run = RunBuilder(tmp_path / "run").alone("fp32", [10.0, 10.1])
    for phase in ("speed", "memory", "train"):
        run.lost(phase, "amp-bf16", status)  # type: ignore[arg-type]
    found = row(run)
    assert [found[f"{phase}_status"] for phase in ("speed", "memory", "train")] == [status] * 3
    figures = [
        "step_ms",
        "samples_per_s",
        "speedup",
        "memory_bytes",
        "memory_change",
        "accuracy_pct",
        "time_per_epoch_s",
    ]
    assert found[figures].isna().all()


def test_figures_of_an_invalid_trial_do_not_count(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.02, 1.98])
    disturbed = timed(1.0, 128, speedup=10.0, speedup_low=9.9, speedup_high=10.1)
    trial = run.trial("speed", ["fp32", "amp-bf16"], 128, replicate=3)
    run.add(trial, TrialResult(precision="amp-bf16", status="invalid", detail="throttled", speed=disturbed))
    found = row(run)
    assert found["measured_in"] == "3 processes"
    assert found["speedup"] < 2.1
    assert (found["speed_status"], found["lost_speed"]) == ("ok", 1)


def test_one_unconverged_process_marks_the_arm(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.02])
    trial = run.trial("speed", ["fp32", "amp-bf16"], 128, replicate=2)
    speed = timed(5.0, 128, speedup=2.0, speedup_low=1.9, speedup_high=2.1)
    run.add(trial, TrialResult(precision="amp-bf16", status="unconverged", speed=speed))
    run.memory("fp32", 1)
    assert row(run)["speed_status"] == "unconverged"


def test_memory_is_compared_with_fp32_of_the_same_cell(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").memory("fp32", 100).memory("amp-bf16", 60)
    run.memory("fp32", 400, batch=512).memory("amp-bf16", 100, batch=512).memory("tf32", 50, batch=64)
    assert row(run)["memory_change"] == pytest.approx(-0.4)
    assert row(run, batch=512)["memory_change"] == pytest.approx(-0.75)
    assert math.isnan(row(run, "tf32", 64)["memory_change"])


def test_accuracy_is_paired_by_seed_and_only_seeds_of_both_count(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").train("fp32", [90, 91, 92, 93, 94]).train("amp-bf16", [90.1, 91.1, 92.1])
    found = row(run)
    assert found["delta_points"] == pytest.approx(0.1)
    assert (found["delta_seeds"], found["parity"]) == (3, "insufficient seeds")


def test_a_diverged_seed_rules_out_parity(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0] * 6).train("amp-bf16", [90.0] * 5)
    run.add(
        run.trial("train", ["amp-bf16"], 128, seed=5, epochs=2), TrialResult(precision="amp-bf16", status="nonfinite")
    )
    assert row(run)["parity"] == "diverged"


@pytest.mark.parametrize(
    ("deltas", "word"),
    [
        ([0.1, -0.1, 0.05, -0.05, 0.0], "EQUIVALENT"),
        ([0.9, 1.1, 1.0, 0.95, 1.05], "NON-INFERIOR"),
        ([-0.9, -1.1, -1.0, -0.95, -1.05], "WORSE"),
        ([-2.0, 2.0, 1.0, -1.0, 0.0], "INCONCLUSIVE"),
        ([0.0, 0.0, 0.0, 0.0], "insufficient seeds"),
    ],
)
def test_parity_is_two_one_sided_tests_with_a_margin(deltas: list[float], word: str) -> None:
    mean, low, high, count, found = parity(np.asarray(deltas), 0)
    assert found == word
    if count >= 5:
        expected = scipy_stats.t.interval(0.90, count - 1, loc=mean, scale=scipy_stats.sem(deltas))
        assert (low, high) == pytest.approx(expected)
