"""One row for each precision of a cell: what of its trials counts, and how it is put together."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.results.records import TrialResult
from bench.stats import REPORTED
from tests.report.builders import RunBuilder


def speedup_of(row, name="speedup"):
    """The speedup of a row of the summary with its interval, as logarithms."""
    logs = []
    for column in (name, f"{name}_low", f"{name}_high"):
        logs.append(math.log(row[column]))
    return logs


def test_the_headline_is_the_interval_over_the_processes_log_speedups(run):
    speedups = [1.9, 2.0, 2.2, 2.05]
    # The processes' own errors are nothing against their differences.
    run.speed(speedups=speedups, within=1e-5)
    bf16 = run.row()
    logs = np.log(speedups)
    result = scipy_stats.ttest_1samp(logs, 0)
    low, high = result.confidence_interval(REPORTED)
    expected = [logs.mean(), low, high]
    assert speedup_of(bf16) == pytest.approx(expected, rel=1e-6)
    assert bf16["measured_in"] == "4 processes"
    assert bf16["speed_verdict"] == "FASTER"


def test_a_single_process_gives_its_own_interval_and_says_so(run):
    run.speed(speedups=[2.0], within=0.01)
    bf16 = run.row()
    assert bf16["speedup_low"] == pytest.approx(1.98, abs=2e-4)
    assert bf16["speedup_high"] == pytest.approx(2.02, abs=2e-4)
    assert bf16["measured_in"] == "one process"


def test_arms_measured_apart_are_compared_by_welchs_interval_on_log_steps(run):
    baseline = [10.0, 10.2, 9.9]
    arm = [5.0, 5.1, 4.8]
    run.alone("fp32", baseline)
    run.alone("amp-bf16", arm)
    bf16 = run.row()
    slow = np.log(baseline)
    fast = np.log(arm)
    result = scipy_stats.ttest_ind(slow, fast, equal_var=False)
    expected = result.confidence_interval(0.95)
    _, *ends = speedup_of(bf16)
    assert ends == pytest.approx(expected)
    assert bf16["measured_in"] == "3 processes apart"


def test_arms_measured_apart_in_one_process_each_have_no_interval_and_no_verdict(run):
    run.alone("fp32", [10.0])
    run.alone("amp-bf16", [5.0])
    bf16 = run.row()
    assert bf16["speedup"] == pytest.approx(2.0)
    assert math.isnan(bf16["speedup_low"])
    assert bf16["speed_verdict"] == "INCONCLUSIVE"


def test_arms_measured_apart_after_they_did_not_fit_together_have_lost_no_trial(run):
    names = ["fp32", "amp-bf16"]
    results = []
    for name in names:
        results.append(TrialResult(arm=name, status="oom"))
    for replicate in (0, 1, 2):
        together = run.trial("speed", names, 128, replicate=replicate)
        run.add(together, *results)
    run.alone("fp32", [10.0, 10.2, 9.9])
    run.alone("amp-bf16", [5.0, 5.1])
    run.lost("speed", "amp-bf16", "failed", replicate=2)
    fp32 = run.row("fp32")
    bf16 = run.row()
    assert fp32["speed_status"] == "ok"
    assert fp32["lost_speed"] == 0
    assert bf16["lost_speed"] == 1  # the third process
    assert bf16["measured_in"] == "2 processes apart"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (None, "ok"),
        (0.1, "ok"),
        (0.01, "unconverged"),
    ],
    ids=["nothing", "less", "more"],
)
def test_an_arm_is_unconverged_only_where_a_narrower_interval_was_asked_for(
    tmp_path, asked, status
):
    run = RunBuilder(tmp_path / "run", target_ci=asked)
    run.speed(speedups=[2.0, 2.03, 1.97])
    assert run.row()["speed_status"] == status


def test_the_epochs_speedup_is_students_interval_on_the_seeds_paired_logs(run):
    baseline = [4.0, 4.4, 3.8]
    faster = [2.0, 2.1, 2.0]
    accuracies = [90.0] * 3
    run.train("fp32", accuracies, epoch_s=baseline)
    run.train("amp-bf16", accuracies, epoch_s=faster)
    logs = np.log(baseline) - np.log(faster)
    result = scipy_stats.ttest_1samp(logs, 0)
    low, high = result.confidence_interval(0.95)
    expected = [logs.mean(), low, high]
    bf16 = run.row()
    assert speedup_of(bf16, "epoch_speedup") == pytest.approx(expected)
