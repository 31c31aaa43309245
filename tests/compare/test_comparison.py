"""Two runs of the same questions: ratios, verdicts, and what keeps them from being compared."""

import math
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bench.cli.parser import parse
from bench.compare.command import COMMAND
from bench.compare.comparison import LIMITS, _over_runs, compare
from bench.compare.judge import judge_together
from bench.phases.energy import Energy
from bench.phases.layers import Layers
from bench.phases.memory import MemoryPeak
from bench.report.analysis.arms import Arm
from bench.report.analysis.changes import estimate
from bench.results.records import Device
from bench.spec.errors import UsageError
from bench.spec.metrics import SPEED
from tests.report.ablations import scattered, together
from tests.report.builders import GPU, MIB, RunBuilder
from tests.report.fleet import edit_run


@pytest.fixture
def old(tmp_path):
    return RunBuilder(tmp_path / "old")


@pytest.fixture
def new(tmp_path):
    return RunBuilder(tmp_path / "new")


def timed(run, step_ms, batch=128):
    """Add three processes of fp32 alone, in which a step takes nearly the same time."""
    steps_ms = [0.999 * step_ms, step_ms, 1.001 * step_ms]
    return run.alone("fp32", steps_ms, batch=batch)


def begin(run, hour=0):
    start = f"2026-01-01T1{hour}:00:00+00:00"
    edit_run(run.folder, lambda info: info.update(started=start))


def compared(old, new, fail_over=0.03):
    return compare(old.folder, new.folder, fail_over)


def change_of(comparison, metric="speed"):
    """The change of a metric of the only row."""
    (row,) = comparison.rows
    return row.changes[metric]


def test_what_differs_between_the_runs_is_a_caution_and_rows_of_one_alone_are_named(old, new):
    edit_run(new.folder, lambda info: info["environment"].update(driver="999.1"))
    old.memory("fp32", 100).memory("amp-bf16", 60)
    new.memory("fp32", 50).memory("amp-fp16", 60)
    result = compared(old, new)
    assert str(change_of(result, "memory")) == "0.500"
    assert "Different driver: 550.1 in old; 999.1 in new." in " ".join(result.cautions)
    assert result.apart == [
        "Only in OLD: mlp (synthetic) on 0 batch 128 amp-bf16.",
        "Only in NEW: mlp (synthetic) on 0 batch 128 amp-fp16.",
    ]


def test_what_fits_on_one_side_alone_is_a_row_with_both_words(old, new):
    timed(old, 10.0)
    new.lost("speed", "fp32", "oom", "boom")
    regressed = compared(old, new, 0.5)
    assert str(change_of(regressed)) == "ok → oom"
    assert change_of(regressed).verdict == "REGRESSED"
    assert regressed.failures
    improved = compared(new, old, 0.5)
    assert str(change_of(improved)) == "oom → ok"
    assert change_of(improved).verdict == "IMPROVED"
    assert not improved.failures


def test_what_was_disturbed_decides_nothing(old, new):
    timed(old, 10.0)
    new.lost("speed", "fp32", "invalid")
    with pytest.raises(UsageError, match="no measured cell and precision in common"):
        compared(old, new)
    for run in (old, new):
        run.memory("fp32", 100)
    result = compared(old, new)
    change = change_of(result)
    assert str(change) == "ok → invalid"
    assert change.verdict == "INCONCLUSIVE"
    assert not result.failures


def exit_code(old, new, *words):
    sides = [str(old.folder), str(new.folder)]
    options = parse(["compare", *sides, *words])
    return COMMAND.run(options)


def test_fail_over_that_could_judge_no_time_is_an_error_with_the_cause(old, new):
    # The memory is judged, and does not stand for the speed.
    timed(old, 10.0).memory("fp32", 100)
    new.alone("fp32", [10.0]).memory("fp32", 100)
    with pytest.raises(UsageError, match=r"could judge nothing: .*--quick"):
        exit_code(old, new, "--fail-over", "3%")


def test_without_times_anything_else_must_have_been_judged(old, new):
    for run in (old, new):
        run.train("fp32", FIVE[:1])
    assert not compared(old, new).is_judged
    for run in (old, new):
        run.memory("fp32", 100)
    assert compared(old, new).is_judged


def test_steps_of_a_ladder_are_compared(old, new):
    for run, gain in ((old, 2.0), (new, 1.0)):
        gains = {
            "fp32": scattered(1),
            "amp-bf16": scattered(gain),
            "amp-bf16+set-to-none": scattered(2.5),
        }
        together(run, gains)
        timed(run, 10.0, batch=64)  # another way to zero gradients: another row
    verdicts = {}
    for row in compared(old, new).rows:
        verdicts[str(row)] = row.changes["speed"].verdict
    ladder = "mlp (ladder) on NVIDIA Test 1 (0), batch 64"
    assert verdicts == {
        f"{ladder}, fp32": "INCONCLUSIVE",
        f"{ladder}, amp-bf16": "REGRESSED",
        f"{ladder}, amp-bf16+set-to-none": "INCONCLUSIVE",
        "mlp on NVIDIA Test 1 (0), batch 64, fp32": "INCONCLUSIVE",
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "There is no run in"),
        ("old", "have the same run"),
        ("copy", "are copies of one run: name, host and start"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(old, name, message):
    old.memory("fp32", 100)
    begin(old)
    shutil.copytree(old.folder, old.folder.with_name("copy"))
    with pytest.raises(UsageError, match=message):
        compare(old.folder, old.folder.with_name(name))


@pytest.mark.parametrize(
    ("before_mib", "after_mib", "shown", "verdict"),
    [
        (100.0, 104.9, "too small to be resolved", "INCONCLUSIVE"),
        # Below 5 MiB, which is measured.
        (20.0, 0.0, "0.25 [0.11, 0.43]", "IMPROVED"),
        (0.0, 1000.0, "200 [133, 401]", "REGRESSED"),
    ],
)
def test_on_a_cpu_memory_is_compared_by_the_rule_of_the_reports(
    tmp_path, before_mib, after_mib, shown, verdict
):
    cpu = Device(placement="cpu", kind="cpu", name="CPU", architecture="x86")
    for name, mib in (("old", before_mib), ("new", after_mib)):
        peak = MemoryPeak(peak_resident_bytes=int(mib * MIB))
        RunBuilder(tmp_path / name, device=cpu).result("memory", "fp32", row=peak)
    change = change_of(compare(tmp_path / "old", tmp_path / "new"), "memory")
    assert str(change) == shown
    assert change.verdict == verdict


def test_an_error_that_is_read_once_is_compared_by_its_difference(old, new):
    for run, error in ((old, 0.02), (new, 0.8)):
        run.result("layers", "amp-bf16", row=Layers(gradient_error=error))
    result = compared(old, new)
    change = change_of(result, "gradient_error")
    assert str(change) == "+0.78"
    assert change.verdict == "REGRESSED"
    assert len(result.failures) == 1


def test_runs_without_a_common_cell_are_told_what_each_has(old, tmp_path):
    old.memory("fp32", 100)
    deeper = RunBuilder(tmp_path / "deeper", parameters=(("depth", 4),)).memory("fp32", 100)
    message = r"Only in OLD: .*batch 128 fp32.*Only in NEW: .*\(depth=4, synthetic\) on"
    with pytest.raises(UsageError, match=message):
        compared(old, deeper)


@pytest.mark.parametrize(
    ("step_ms", "noisy", "verdict"),
    [
        (8.0, "old", "INCONCLUSIVE"),
        (8.0, "new", "INCONCLUSIVE"),
        (8.0, "", "IMPROVED"),
        (9.5, "", "INCONCLUSIVE"),  # another day's speed may differ by as much
        (10.5, "old new", "INCONCLUSIVE"),  # nor is it a failure, whatever is allowed
    ],
)
def test_a_change_must_exceed_the_noise_of_both_runs(old, new, step_ms, noisy, verdict):
    timed(old, 10.0)
    timed(new, step_ms)
    for run in (old, new):
        spread = 0.06 if run.folder.name in noisy else 0.0001
        run.floor((1 - spread, 1.0, 1 + spread))
    result = compared(old, new, 0.001)
    assert change_of(result).verdict == verdict
    assert not result.failures


def test_an_unfinished_run_is_a_failure(old, new):
    for run in (old, new):
        run.memory("fp32", 10)
    edit_run(new.folder, lambda info: info.update(finished=None))
    (failure,) = compared(old, new).failures
    assert "is unfinished" in failure
    assert not compared(old, new, None).failures


def test_fail_over_decides_the_exit_code(old, new):
    timed(old, 10.0)
    timed(new, 13.0)
    assert exit_code(old, new) == 0
    assert exit_code(old, new, "--fail-over", "3%") == 1
    assert exit_code(old, new, "--fail-over", "0.4") == 0


FIVE = [90.0, 90.8, 89.5, 91.0, 90.2]
UNKNOWN = [None] * 5
"""Accuracies where there are no classes."""


def learned(run, metric, values):
    """Add one training of fp32 for each accuracy, or for each loss."""
    if metric == "accuracy":
        run.train("fp32", values)
    else:
        run.train("fp32", UNKNOWN[: len(values)], test_loss=values)


@pytest.mark.parametrize(
    ("metric", "before", "point"),
    [
        ("accuracy", 90.0, 1.0),
        ("loss", 3.0, -0.02),
    ],
)
@pytest.mark.parametrize(
    ("verdict", "points", "seeds"),
    [
        ("REGRESSED", -2.0, 5),
        ("IMPROVED", 2.0, 5),
        ("SAME", 0.1, 5),
        ("INCONCLUSIVE", -0.5, 5),
        ("INCONCLUSIVE", -2.0, 4),
    ],
)
def test_what_was_learned_is_compared_seed_by_seed_against_its_margin(
    old, new, *, metric, before, point, verdict, points, seeds
):
    gained = points + np.array([0.01, -0.01, 0.0, 0.02, -0.02])
    after = before + point * gained
    learned(old, metric, [before] * 5)
    learned(new, metric, after[:seeds].tolist())
    result = compared(old, new, 0.5)
    assert change_of(result, metric).verdict == verdict
    assert bool(result.failures) is (verdict == "REGRESSED")


def test_trainings_of_other_epochs_do_not_compare(old, new):
    old.train("fp32", FIVE)
    new.train("fp32", FIVE, epochs=3)
    change = change_of(compared(old, new), "accuracy")
    assert str(change) == "not comparable"
    assert change.verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("metric", "other", "accuracies"),
    [
        ("accuracy", "loss", FIVE),
        ("loss", "accuracy", UNKNOWN),
    ],
)
def test_a_seed_that_diverges_is_a_regression_of_what_is_learned(
    old, new, metric, other, accuracies
):
    old.train("fp32", accuracies)
    new.train("fp32", accuracies[:4])
    new.diverged("fp32", seed=4)
    result = compared(old, new)
    change = change_of(result, metric)
    assert str(change) == "ok → diverged"
    assert change.verdict == "REGRESSED"
    assert other not in result.rows[0].changes
    assert len(result.failures) == 1


def test_of_several_devices_each_is_compared_with_itself_by_the_processes_of_all_runs(tmp_path):
    for run, card, step_ms in (
        ("old/1", "X", 10.0),
        ("old/2", "X", 10.0),
        ("new/3", "X", 10.0),
        ("old/4", "Y", 4.0),
        ("old/5", "Y", 4.02),
        ("new/6", "Y", 4.8),
    ):
        device = replace(GPU, name=f"Card {card}")
        timed(RunBuilder(tmp_path / run, device=device), step_ms)
    result = compare(tmp_path / "old", tmp_path / "new", fail_over=0.03)
    of_x, of_y = result.rows
    assert of_x.subject == "mlp on Card X (0)"
    assert of_x.changes["speed"].verdict == "INCONCLUSIVE"
    change = of_y.changes["speed"]
    assert change.verdict == "REGRESSED"
    assert change.values == pytest.approx((4.01, 4.8), rel=1e-5)
    (failure,) = result.failures
    assert "Card Y" in failure


def test_the_figures_of_both_sides_are_medians_of_the_processes_that_are_compared(tmp_path):
    for name, joules in (("old", (10.0, 10.1, 20.0)), ("new", (20.0, 20.1, 20.2))):
        for number, value in enumerate(joules):
            energy = Energy(energy_j_per_step=value, energy_source="counter")
            RunBuilder(tmp_path / name / str(number)).result("energy", "fp32", row=energy)
    (row,) = compare(tmp_path / "old", tmp_path / "new").rows
    assert row.changes["energy"].values == (10.1, 20.1)


def processes_of(rng, side, days, processes):
    """Step times of processes on some days, each with the logarithm of its speed."""
    logs = np.repeat(days, processes)
    count = len(logs)
    logs += rng.normal(0, 0.01, count)
    return Arm(
        key=(side,),
        values=10 * np.exp(logs),
        replicates=range(count),
        runs=np.arange(count) // processes,
    )


def over_days(new, old):
    contrast = estimate(SPEED, new, old)
    return _over_runs(contrast, by_turns=False)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("days", [1, 3])
def test_days_that_differ_make_no_change(days, between):
    """Rows of one run a side, or three.

    The speeds of two days differ with the standard deviation ``between``.
    """
    rng = np.random.default_rng(days)
    counts = Counter()
    for pair in range(400):
        processes = 3 if pair % 2 else 10
        sides = []
        for side in ("new", "old"):
            speeds = rng.normal(0, between / math.sqrt(2), days)
            sides.append(processes_of(rng, side, speeds, processes))
        change = over_days(*sides)
        counts.update(judge_together([change]))
    assert counts["IMPROVED"] + counts["REGRESSED"] <= 20
    if days == 1:
        assert not counts["SAME"]  # which two days cannot tell


def test_disturbed_processes_count_for_nothing_also_over_runs():
    rng = np.random.default_rng(1)
    days = [0.001, 0.0, 0.002]
    old = processes_of(rng, "old", days, 3)
    new = processes_of(rng, "new", days, 3)
    first = [0, 3, 6]  # of each day
    new.values[first] *= 1.3
    new = replace(new, disturbed=frozenset(first))
    change = over_days(new, old).change
    assert abs(change.center) < 0.02


def in_turns(folder, slower=1.0):
    """Write runs that took turns, each pair when the machine had another speed."""
    for run, step_ms in (
        ("old/0", 10.0),
        ("new/1", 10.0001),
        ("new/2", 10.3002),
        ("old/3", 10.3003),
        ("old/4", 10.6004),
        ("new/5", 10.6005),
    ):
        factor = slower if run.startswith("new") else 1.0
        builder = RunBuilder(folder / run)
        timed(builder, factor * step_ms)
        begin(builder, int(run[-1]))


@pytest.mark.parametrize(
    ("slower", "verdict"),
    [
        (1.03, "REGRESSED"),
        (1.0, "SAME"),
        pytest.param(0.97, "IMPROVED", marks=pytest.mark.slow),
    ],
)
def test_runs_that_took_turns_tell_what_two_days_do_not(tmp_path, slower, verdict):
    in_turns(tmp_path, slower)
    old = tmp_path / "old"
    new = tmp_path / "new"
    apart = compare(old, new)
    assert change_of(apart).verdict == "INCONCLUSIVE"
    assert LIMITS in apart.cautions
    by_turns = compare(old, new, by_turns=True)
    assert change_of(by_turns).verdict == verdict
    assert LIMITS not in by_turns.cautions


def test_a_cell_that_the_sides_have_in_other_pairs_decides_nothing(tmp_path):
    in_turns(tmp_path)
    # At batch size 64 the first pair has OLD alone, the second NEW alone.
    for run in ("old/0", "new/2"):
        timed(RunBuilder(tmp_path / run), 10.0, batch=64)
    result = compare(tmp_path / "old", tmp_path / "new", by_turns=True)
    row = result.rows[0]
    assert row.question["batch_size"] == 64
    change = row.changes["speed"]
    assert change.verdict == "INCONCLUSIVE"
    assert change.interval.low is None


@pytest.mark.parametrize("side", ["old", "new"])
def test_noise_that_one_side_or_one_batch_size_did_not_measure_is_assumed(tmp_path, side):
    for run, step_ms in (
        ("old/0", 10.0),
        ("new/1", 10.06),
        ("old/2", 10.001),
        ("new/3", 10.062),
    ):
        builder = RunBuilder(tmp_path / run)
        timed(builder, step_ms)
        timed(builder, step_ms, batch=64)
        builder.floor([1.0] * 6, batch=64)
        if run.startswith(side):
            builder.floor([1.0] * 6)
        begin(builder, int(run[-1]))
    result = compare(tmp_path / "old", tmp_path / "new", by_turns=True)
    at_64, at_128 = result.rows
    assert at_64.changes["speed"].verdict == "REGRESSED"
    assert at_128.changes["speed"].verdict == "SAME"
