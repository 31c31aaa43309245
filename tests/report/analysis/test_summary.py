"""One row for each precision of a cell: what of its trials counts, and how it is put together."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.results.records import TrialResult
from bench.stats import REPORTED
from tests.report.builders import RunBuilder


def test_the_headline_is_the_interval_over_the_processes_log_speedups(run):
    speedups = [1.9, 2.0, 2.2, 2.05]
    bf16 = run.speed(speedups=speedups, within=1e-5).row()
    logs = np.log(speedups)  # the processes' own errors are nothing against their differences
    low, high = scipy_stats.t.interval(REPORTED, 3, loc=logs.mean(), scale=scipy_stats.sem(logs))
    assert bf16["speedup"] == pytest.approx(math.exp(logs.mean()), rel=1e-6)
    assert bf16["speedup_low"] == pytest.approx(math.exp(low), rel=1e-6)
    assert bf16["speedup_high"] == pytest.approx(math.exp(high), rel=1e-6)
    assert (bf16["measured_in"], bf16["speed_verdict"]) == ("4 processes", "FASTER")


def test_a_single_process_gives_its_own_interval_and_says_so(run):
    bf16 = run.speed(speedups=[2.0], within=0.01).row()
    assert (bf16["speedup_low"], bf16["speedup_high"]) == pytest.approx((1.98, 2.02), abs=2e-4)
    assert bf16["measured_in"] == "one process"


def test_arms_measured_apart_are_compared_by_welchs_interval_on_log_steps(run):
    baseline, arm = [10.0, 10.2, 9.9], [5.0, 5.1, 4.8]
    bf16 = run.alone("fp32", baseline).alone("amp-bf16", arm).row()
    bounds = scipy_stats.ttest_ind(
        np.log(baseline), np.log(arm), equal_var=False
    ).confidence_interval(0.95)
    assert (bf16["speedup_low"], bf16["speedup_high"]) == (
        pytest.approx(math.exp(bounds.low)),
        pytest.approx(math.exp(bounds.high)),
    )
    assert bf16["measured_in"] == "3 processes apart"


def test_arms_measured_apart_in_one_process_each_have_no_interval_and_no_verdict(run):
    bf16 = run.alone("fp32", [10.0]).alone("amp-bf16", [5.0]).row()
    assert bf16["speedup"] == pytest.approx(2.0)
    assert math.isnan(bf16["speedup_low"])
    assert bf16["speed_verdict"] == "INCONCLUSIVE"


def test_arms_measured_apart_after_they_did_not_fit_together_have_lost_no_trial(run):
    both = ["fp32", "amp-bf16"]
    for replicate in (0, 1, 2):
        rows = [
            TrialResult(arm=name, status="oom", detail=f"{', '.join(both)} together")
            for name in both
        ]
        run.add(run.trial("speed", both, 128, replicate=replicate), *rows)
    run.alone("fp32", [10.0, 10.2, 9.9]).alone("amp-bf16", [5.0, 5.1])
    run.result("speed", "amp-bf16", replicate=2, status="failed")
    fp32, arm = run.row("fp32"), run.row()
    assert (fp32["speed_status"], arm["measured_in"]) == ("ok", "2 processes apart")
    assert fp32["lost_speed"] == 0
    assert arm["lost_speed"] == 1  # the third process


@pytest.mark.parametrize(
    ("asked", "status"),
    [(None, "ok"), (0.1, "ok"), (0.01, "unconverged")],
    ids=["nothing", "less", "more"],
)
def test_an_arm_is_unconverged_only_where_a_narrower_interval_was_asked_for(
    tmp_path, asked, status
):
    run = RunBuilder(tmp_path / "run", target_ci=asked).speed(speedups=[2.0, 2.03, 1.97])
    assert run.row()["speed_status"] == status


def test_the_epochs_speedup_is_students_interval_on_the_seeds_paired_logs(run):
    baseline, faster = [4.0, 4.4, 3.8], [2.0, 2.1, 2.0]
    run.train("fp32", [90.0] * 3, epoch_s=baseline)
    bf16 = run.train("amp-bf16", [90.0] * 3, epoch_s=faster).row()
    result = scipy_stats.ttest_rel(np.log(baseline), np.log(faster)).confidence_interval(0.95)
    assert (bf16["epoch_speedup_low"], bf16["epoch_speedup_high"]) == pytest.approx(
        (math.exp(result.low), math.exp(result.high))
    )
    center = math.exp(np.mean(np.log(baseline) - np.log(faster)))
    assert bf16["epoch_speedup"] == pytest.approx(center)
