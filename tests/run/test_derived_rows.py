"""What follows from a trial's blocks: shown as it ends, decided on, and read back from its run."""

import math

import pytest

from bench.results.records import TrialResult
from bench.run.derived_rows import speeds_of, stored_speeds, with_derived
from tests.derived import with_details
from tests.report.builders import RunBuilder, block, timed
from tests.rows import trial_figures


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


@pytest.fixture
def trial(run):
    return run.trial("speed", ("fp32", "amp-bf16"), 128)


@pytest.fixture
def sent(trial):
    """The results and blocks of the trial; amp-bf16 is 1.7 times as fast."""
    fp32 = timed(9.7, 128)
    bf16 = timed(9.7 / 1.7, 128, speedup=1.7, within=0.06)
    results = [
        TrialResult(arm="fp32", status="ok", row=fp32),
        TrialResult(arm="amp-bf16", status="ok", row=bf16),
    ]
    return with_details(trial, results)


def test_what_is_shown_and_decided_on_is_to_the_digit_what_is_read_back(run, trial, sent):
    results, records = sent
    run.store.add_results(trial, run.device, results, records)
    completed = with_derived(trial, results, records)
    speeds = speeds_of(completed)
    assert stored_speeds(run.folder) == {trial.id: speeds}
    log_speedup = speeds["amp-bf16"].log_speedup
    assert log_speedup == pytest.approx(math.log(1.7))


def test_what_is_discarded_counts_only_as_skipped_and_an_arm_that_failed_has_no_figures(
    run, trial, sent
):
    (fp32, _), records = sent
    failed = TrialResult(arm="amp-bf16", status="failed", detail="why")
    results = [fp32, failed]
    late = block(
        trial.id,
        round=20,
        time_ms=1e6,
        skipped_steps=3,
        discarded="evaluation",
    )
    records.append(late)
    shown, lost = with_derived(trial, results, records)
    assert shown.row.step_ms == pytest.approx(9.7)
    assert shown.row.skipped_steps == 3
    assert shown.row.rounds == 20
    assert lost == failed
    run.store.add_results(trial, run.device, results, records)
    stored_fp32, stored_bf16 = trial_figures(run.folder)
    assert stored_fp32["step_ms"] > 0
    assert not stored_bf16["step_ms"] > 0


def test_without_blocks_of_the_baseline_an_arm_has_no_speedup(trial, sent):
    (_, bf16), records = sent
    of_bf16 = [record for record in records if record.precision == "amp-bf16"]
    (alone,) = with_derived(trial, [bf16], of_bf16)
    assert alone.row.log_speedup is None


def test_steps_in_a_block_of_a_script_are_averaged_and_a_single_round_has_no_interval(trial, sent):
    results, _ = sent
    records = [
        block(trial.id, time_ms=10.0),
        block(trial.id, time_ms=30.0),
        block(trial.id, "amp-bf16", position=1, time_ms=10.0),
    ]
    fp32, bf16 = with_derived(trial, results, records)
    assert fp32.row.step_ms == 20.0
    assert fp32.row.block_steps == 2
    assert fp32.row.log_speedup is None
    assert bf16.row.log_speedup == pytest.approx(math.log(2.0))
    assert bf16.row.log_speedup_error is None


def test_a_run_without_trials_has_no_speeds(run):
    assert stored_speeds(run.folder) == {}
