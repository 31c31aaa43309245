"""What follows from a trial's blocks: shown as it ends, decided on, and read back from its run."""

import math

import pytest

from bench.results.records import TrialResult
from bench.run.derived_rows import speeds_of, stored_speeds, with_derived
from tests.derived import with_details
from tests.report.builders import RunBuilder, block, timed
from tests.rows import trial_figures


def sent_by(run):
    """A trial of speed with results and blocks; amp-bf16 is 1.7 times as fast."""
    results = []
    for arm, speedup in (("fp32", None), ("amp-bf16", 1.7)):
        row = timed(9.7 / (speedup or 1.0), 128, speedup=speedup, within=0.06)
        results.append(TrialResult(arm=arm, status="ok", row=row))
    trial = run.trial("speed", ("fp32", "amp-bf16"), 128)
    return trial, *with_details(trial, results)


def test_what_is_shown_and_decided_on_is_to_the_digit_what_is_read_back(tmp_path):
    run = RunBuilder(tmp_path / "run").memory("fp32", 10)
    trial, results, records = sent_by(run)
    run.store.add_results(trial, run.device, results, records)
    speeds = speeds_of(with_derived(trial, results, records))
    assert stored_speeds(run.folder) == {trial.id: speeds}
    assert speeds["amp-bf16"].log_speedup == pytest.approx(math.log(1.7))
    assert speeds["fp32"].log_speedup is None


def test_what_is_discarded_counts_only_as_skipped_and_an_arm_that_failed_has_no_figures(tmp_path):
    run = RunBuilder(tmp_path / "run")
    trial, (fp32, bf16), records = sent_by(run)
    late = block(trial.id, "fp32", round=20, time_ms=1e6, skipped_steps=3, discarded="evaluation")
    records.append(late)
    failed = TrialResult(arm="amp-bf16", status="failed", detail="why")
    shown, lost = with_derived(trial, [fp32, failed], records)
    assert shown.row.step_ms == pytest.approx(9.7)
    assert shown.row.skipped_steps == 3
    assert shown.row.rounds == 20
    assert lost == failed
    run.store.add_results(trial, run.device, [fp32, failed], records)
    assert [row["step_ms"] > 0 for row in trial_figures(run.folder)] == [True, False]
    without_baseline = [record for record in records if record.precision != "fp32"]
    (alone,) = with_derived(trial, [bf16], without_baseline)
    assert alone.row.log_speedup is None


def test_steps_in_a_block_of_a_script_are_averaged_and_a_single_round_has_no_interval(tmp_path):
    trial, results, _ = sent_by(RunBuilder(tmp_path / "run"))
    records = []
    for time_ms in (10.0, 30.0):
        records.append(block(trial.id, "fp32", time_ms=time_ms))
    records.append(block(trial.id, "amp-bf16", position=1, time_ms=10.0))
    speeds = speeds_of(with_derived(trial, results, records))
    assert speeds["fp32"].step_ms == 20.0
    assert speeds["fp32"].block_steps == 2
    assert speeds["amp-bf16"].log_speedup == pytest.approx(math.log(2.0))
    assert speeds["amp-bf16"].log_speedup_error is None


def test_a_run_without_trials_has_no_speeds(tmp_path):
    assert stored_speeds(RunBuilder(tmp_path / "run").folder) == {}
