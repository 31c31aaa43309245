"""What follows from a trial's blocks: shown as it ends, decided on, and read back from its run."""

import math

import numpy as np
import pytest

from bench.results.columns import derived
from bench.results.records import TrialResult
from bench.run.derived_rows import stored_speeds, with_derived
from bench.spec.phases import PHASES
from bench.stats import rounds_estimates, rounds_interval
from tests.derived import with_details
from tests.report.builders import RunBuilder, block, timed
from tests.rows import trial_figures


def sent_by(run):
    """A trial of speed with results and blocks; amp-bf16 is 1.7 times as fast."""
    rows = {"fp32": timed(9.7, 128), "amp-bf16": timed(9.7 / 1.7, 128, speedup=1.7, within=0.06)}
    trial = run.trial("speed", tuple(rows), 128)
    results = [TrialResult(arm=name, status="ok", row=row) for name, row in rows.items()]
    return trial, *with_details(trial, results)


def test_what_is_shown_is_to_the_digit_what_is_read_back(tmp_path):
    run = RunBuilder(tmp_path / "run")
    trial, results, records = sent_by(run)
    run.store.add_results(trial, run.device, results, records)
    shown = {result.arm: result.row for result in with_derived(trial, results, records)}
    stored = stored_speeds(run.folder)[trial.id]
    for name in derived(PHASES["speed"]):
        assert [getattr(row, name) for row in stored.values()] == [
            getattr(shown[arm], name) for arm in stored
        ], name
    assert stored["amp-bf16"].log_speedup == pytest.approx(math.log(1.7))
    assert stored["fp32"].log_speedup is None


def test_what_is_discarded_counts_only_as_skipped_and_an_arm_that_failed_has_no_figures(tmp_path):
    run = RunBuilder(tmp_path / "run")
    trial, (fp32, bf16), records = sent_by(run)
    records.append(
        block(trial.id, "fp32", round=20, time_ms=1e6, skipped_steps=3, discarded="evaluation")
    )
    failed = TrialResult(arm="amp-bf16", status="failed", detail="why")
    shown, lost = with_derived(trial, [fp32, failed], records)
    assert (shown.row.step_ms, shown.row.skipped_steps, shown.row.rounds) == (
        pytest.approx(9.7),
        3,
        20,
    )
    assert lost == failed
    run.store.add_results(trial, run.device, [fp32, failed], records)
    assert [row["step_ms"] > 0 for row in trial_figures(run.folder)] == [True, False]
    alone = with_derived(trial, [bf16], [each for each in records if each.precision != "fp32"])
    assert alone[0].row.log_speedup is None


def test_steps_in_a_block_of_a_script_are_averaged_and_a_single_round_has_no_interval(tmp_path):
    trial, results, _ = sent_by(RunBuilder(tmp_path / "run"))
    steps = {"fp32": ((10.0, 30.0), (20.0, 20.0)), "amp-bf16": ((10.0,), (10.0,))}
    records = [
        block(trial.id, name, position=position, time_ms=ms)
        for name, turns in steps.items()
        for position, times in enumerate(turns)
        for ms in times
    ]
    fp32, bf16 = (result.row for result in with_derived(trial, results, records))
    assert (fp32.step_ms, fp32.block_steps, bf16.log_speedup) == (
        20.0,
        2,
        pytest.approx(math.log(2.0)),
    )
    assert bf16.log_speedup_error is None


@pytest.mark.parametrize("rounds", [2, 3, 5, 12, 40])
def test_many_processes_at_once_have_the_intervals_of_each(rounds):
    logs = np.random.default_rng(rounds).normal(0.5, 0.02, (3, rounds))
    each = [(interval.center, interval.error) for interval in map(rounds_interval, logs)]
    assert np.stack(rounds_estimates(logs), axis=-1) == pytest.approx(np.array(each), rel=1e-14)


def test_a_run_without_trials_has_no_speeds(tmp_path):
    assert stored_speeds(RunBuilder(tmp_path / "run").folder) == {}
