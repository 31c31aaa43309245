"""Two runs of the same questions: ratios, verdicts, and what keeps them from being compared."""

import math
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cli.parser import parse
from bench.compare.command import COMMAND
from bench.compare.comparison import LIMITS, Change, Comparison, _over_runs, compare
from bench.compare.judge import judge_together
from bench.phases.energy import Energy
from bench.phases.layers import Layers
from bench.phases.memory import MemoryPeak
from bench.report.analysis.arms import Arm
from bench.report.analysis.changes import Contrast, estimate
from bench.results.records import Device
from bench.spec.errors import UsageError
from bench.spec.metrics import SPEED
from tests.report.ablations import scattered, together
from tests.report.builders import GPU, MIB, RunBuilder
from tests.report.fleet import edit_run


@pytest.fixture
def old(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "old")


@pytest.fixture
def new(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "new")


def timed(run: RunBuilder, step_ms: float, batch: int = 128) -> RunBuilder:
    """Add three processes of fp32 alone, in which a step takes nearly the same time."""
    return run.alone("fp32", [step_ms * share for share in (0.999, 1.0, 1.001)], batch=batch)


def begin(run: RunBuilder, hour: int = 0) -> RunBuilder:
    start = f"2026-01-01T1{hour}:00:00+00:00"
    edit_run(run.folder, lambda info: info.update(started=start))
    return run


def compared(old: RunBuilder, new: RunBuilder, fail_over: float | None = 0.03) -> Comparison:
    return compare(old.folder, new.folder, fail_over)


def change_of(compared: Comparison, metric: str = "speed", **question: Any) -> Change:
    """The change of a metric of the only row of a question, or the only one of all."""
    (row,) = (row for row in compared.rows if question.items() <= row.question.items())
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


@pytest.mark.parametrize(
    ("before", "after", "verdict"), [("ok", "oom", "REGRESSED"), ("oom", "ok", "IMPROVED")]
)
def test_what_fits_on_one_side_alone_is_a_row_with_both_words(old, new, before, after, verdict):
    for run, status in ((old, before), (new, after)):
        if status == "ok":
            timed(run, 10.0)
        else:
            run.lost("speed", "fp32", status, "boom")
    result = compared(old, new, 0.5)
    change = change_of(result)
    assert (str(change), change.verdict) == (f"{before} → {after}", verdict)
    assert bool(result.failures) is (verdict == "REGRESSED")


def test_what_was_disturbed_decides_nothing(old, new):
    timed(old, 10.0)
    new.lost("speed", "fp32", "invalid")
    with pytest.raises(UsageError, match="no measured cell and precision in common"):
        compared(old, new)
    for run in (old, new):
        run.memory("fp32", 100)
    result = compared(old, new)
    change = change_of(result)
    assert (str(change), change.verdict) == ("ok → invalid", "INCONCLUSIVE")
    assert result.failures == []


def exit_code(old, new, *words):
    return COMMAND.run(parse(["compare", str(old.folder), str(new.folder), *words]))


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
    last = "amp-bf16+set-to-none"
    for run, gain in ((old, 2.0), (new, 1.0)):
        gains = {"fp32": scattered(1), "amp-bf16": scattered(gain), last: scattered(2.5)}
        together(run, gains)
        timed(run, 10.0, batch=64)  # another way to zero gradients: another row
    rows = compared(old, new).rows
    ladder = [row for row in rows if row.question["techniques"] == "ladder"]
    assert [row.question["precision"] for row in ladder] == ["fp32", "amp-bf16", last]
    assert ladder[1].changes["speed"].verdict == "REGRESSED"
    assert "(ladder)" in ladder[0].subject
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "There is no run in"),
        ("old", "have the same run"),
        ("copy", "are copies of one run: name, host and start"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(old, name, message):
    begin(old.memory("fp32", 100))
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
    assert (str(change), change.verdict) == (shown, verdict)


def test_an_error_that_is_read_once_is_compared_by_its_difference(old, new):
    for run, error in ((old, 0.02), (new, 0.8)):
        run.result("layers", "amp-bf16", row=Layers(gradient_error=error))
    result = compared(old, new)
    change = change_of(result, "gradient_error")
    assert (str(change), change.verdict, len(result.failures)) == ("+0.78", "REGRESSED", 1)


@pytest.mark.parametrize(
    ("asked", "precision", "only_in_new"),
    [
        ({}, "tf32", "batch 128 tf32"),
        ({"parameters": (("depth", 4),)}, "fp32", "(depth=4, synthetic) on"),
    ],
)
def test_runs_without_a_common_cell_are_told_what_each_has(
    old, tmp_path, asked, precision, only_in_new
):
    old.memory("fp32", 100)
    other = RunBuilder(tmp_path / "other", **asked).memory(precision, 100)
    message = f"Only in OLD: .*batch 128 fp32.*Only in NEW: .*{re.escape(only_in_new)}"
    with pytest.raises(UsageError, match=message):
        compared(old, other)


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
    for run, each_ms in ((old, 10.0), (new, step_ms)):
        spread = 0.06 if run.folder.name in noisy else 0.0001
        timed(run, each_ms).floor((1 - spread, 1.0, 1 + spread), step_ms=each_ms)
    result = compared(old, new, 0.001)
    assert (change_of(result).verdict, result.failures) == (verdict, [])


def test_an_unfinished_run_is_a_failure(old, new):
    for run in (old, new):
        run.memory("fp32", 10)
    edit_run(new.folder, lambda info: info.update(finished=None))
    (failure,) = compared(old, new).failures
    assert "is unfinished" in failure
    assert compared(old, new, None).failures == []


def test_fail_over_decides_the_exit_code(old, new):
    for run, step_ms in ((old, 10.0), (new, 13.0)):
        timed(run, step_ms)
        run.alone("fp32", [step_ms], batch=64)
    assert exit_code(old, new) == 0
    assert exit_code(old, new, "--fail-over", "3%") == 1
    assert exit_code(old, new, "--fail-over", "0.4") == 0


FIVE = [90.0, 90.8, 89.5, 91.0, 90.2]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize(
    ("verdict", "margins", "seeds"),
    [
        ("REGRESSED", -2.0, 5),
        ("IMPROVED", 2.0, 5),
        ("SAME", 0.1, 5),
        ("INCONCLUSIVE", -0.5, 5),
        ("INCONCLUSIVE", -2.0, 4),
    ],
)
def test_what_was_learned_is_compared_seed_by_seed_against_its_margin(
    old, new, metric, verdict, *, margins, seeds
):
    changes = margins + np.array([0.01, -0.01, 0.0, 0.02, -0.02])
    if metric == "loss":
        losses = (3.0 - 0.02 * changes).tolist()
        old.train("fp32", [None] * 5, test_loss=[3.0] * 5)
        new.train("fp32", [None] * seeds, test_loss=losses)
    else:
        accuracies = (90.0 + changes).tolist()
        old.train("fp32", [90.0] * 5)
        new.train("fp32", accuracies[:seeds])
    result = compared(old, new, 0.5)
    assert change_of(result, metric).verdict == verdict
    assert bool(result.failures) is (verdict == "REGRESSED")


def test_trainings_of_other_epochs_do_not_compare(old, new):
    old.train("fp32", FIVE)
    new.train("fp32", FIVE, epochs=3)
    change = change_of(compared(old, new), "accuracy")
    assert (str(change), change.verdict) == ("not comparable", "INCONCLUSIVE")


@pytest.mark.parametrize(("metric", "accuracies"), [("accuracy", FIVE), ("loss", [None] * 5)])
def test_a_seed_that_diverges_is_a_regression_of_what_is_learned(old, new, metric, accuracies):
    old.train("fp32", accuracies)
    new.train("fp32", accuracies[:4]).diverged("fp32", seed=4)
    result = compared(old, new)
    (row,) = result.rows
    assert row.changes.keys() & {"accuracy", "loss"} == {metric}
    change = row.changes[metric]
    assert (str(change), change.verdict) == ("ok → diverged", "REGRESSED")
    assert len(result.failures) == 1


def test_of_several_devices_each_is_compared_with_itself_by_the_processes_of_all_runs(tmp_path):
    for side, runs, of_y_ms in (("before", 2, 4.0), ("after", 3, 4.8)):
        for number in range(runs):
            for card, step_ms in (("X", 10.0), ("Y", of_y_ms)):
                device = replace(GPU, name=f"Card {card}")
                timed(RunBuilder(tmp_path / side / f"{card}{number}", device=device), step_ms)
    result = compare(tmp_path / "before", tmp_path / "after", fail_over=0.03)
    of_x, of_y = result.rows
    assert of_x.subject == "mlp on Card X (0)"
    assert of_x.changes["speed"].verdict == "INCONCLUSIVE"
    assert of_y.changes["speed"].verdict == "REGRESSED"
    (failure,) = result.failures
    assert "Card Y" in failure
    contrast = of_x.changes["speed"].contrast
    assert len(contrast.against.values) == 6
    assert len(contrast.arm.values) == 9


def test_the_figures_of_both_sides_are_of_the_processes_that_are_compared(tmp_path):
    for name, joules in (("old", (10.0, 10.1, 20.0)), ("new", (20.0, 20.1, 20.2))):
        for number, value in enumerate(joules):
            energy = Energy(energy_j_per_step=value, energy_source="counter")
            RunBuilder(tmp_path / name / str(number)).result("energy", "fp32", row=energy)
    (row,) = compare(tmp_path / "old", tmp_path / "new").rows
    assert row.changes["energy"].values == (10.1, 20.1)


def side(rng: np.random.Generator, name: str, days: Sequence[float], processes: int) -> Arm:
    """Step times of processes on some days, each with the logarithm of its speed."""
    runs = np.repeat(np.arange(len(days)), processes)
    noise = rng.normal(0, 0.01, len(runs))
    values = 10 * np.exp(np.repeat(days, processes) + noise)
    names = [("run", place) for place in range(len(values))]
    return Arm(key=(name,), values=values, replicates=names, runs=runs)


def over_days(new: Arm, old: Arm) -> Contrast:
    return _over_runs(estimate(SPEED, new, old), by_turns=False)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("days", [1, 3])
def test_days_that_differ_make_no_change(days, between):
    """Rows of one run a side, or three.

    The speeds of two days differ with the standard deviation ``between``.
    """
    rng = np.random.default_rng(days)
    verdicts = Counter()
    for pair in range(400):
        processes = 3 if pair % 2 else 10
        sides = []
        for name in ("new", "old"):
            speeds = rng.normal(0, between / math.sqrt(2), days)
            sides.append(side(rng, name, speeds, processes))
        verdicts.update(judge_together([over_days(*sides)]))
    assert verdicts["IMPROVED"] + verdicts["REGRESSED"] <= 0.05 * 400
    assert days == 3 or not verdicts["SAME"]  # which two days cannot tell


def test_disturbed_processes_count_for_nothing_also_over_runs():
    rng = np.random.default_rng(1)
    old, new = (side(rng, name, [0.001, 0.0, 0.002], 3) for name in ("old", "new"))
    new.values[::3] *= math.exp(0.3)  # the first process of each day
    new = replace(new, disturbed=frozenset(new.replicates[::3]))
    assert abs(over_days(new, old).change.center) < 0.02
    assert new.figure(SPEED) < 10.5


def in_turns(folder: Path, turns: str, slower: float = 1.0, spread: float = 0.03) -> list[Path]:
    """Runs of OLD and NEW that began in the order of the letters.

    Neighbours share the machine's speed.
    """
    for place, letter in enumerate(turns):
        step_ms = 10.0 * (1 + spread * (place // 2)) * (1 + 1e-5 * place)
        side = "old"
        if letter == "N":
            side = "new"
            step_ms *= slower
        run = timed(RunBuilder(folder / side / str(place)), step_ms)
        begin(run, place)
    return [folder / "old", folder / "new"]


@pytest.mark.parametrize(
    ("slower", "verdict"),
    [(1.03, "REGRESSED"), (1.0, "SAME"), pytest.param(0.97, "IMPROVED", marks=pytest.mark.slow)],
)
def test_runs_that_took_turns_tell_what_two_days_do_not(tmp_path, slower, verdict):
    sides = in_turns(tmp_path, "ONNOON", slower)
    for by_turns, expected in ((False, "INCONCLUSIVE"), (True, verdict)):
        result = compare(*sides, 0.02, by_turns=by_turns)
        assert change_of(result).verdict == expected
        assert (LIMITS in result.cautions) is not by_turns


def test_a_cell_that_the_sides_have_in_other_pairs_decides_nothing(tmp_path):
    sides = in_turns(tmp_path, "ON")
    # The second pair has the cell in OLD alone, the third in NEW alone.
    for place, side in enumerate(("old", "new", "old", "new"), 2):
        run = RunBuilder(tmp_path / side / str(place)).memory("fp32", 100)
        if place in (2, 5):
            timed(run, 10.0, batch=64)
        begin(run, place)
    change = change_of(compare(*sides, by_turns=True), batch_size=64)
    assert (change.verdict, change.interval.low) == ("INCONCLUSIVE", None)


@pytest.mark.parametrize("side", ["old", "new"])
def test_noise_that_one_side_or_one_batch_size_did_not_measure_is_assumed(tmp_path, side):
    sides = in_turns(tmp_path, "ONON", 1.006, spread=0.0)
    for folder in sides:
        for path in folder.iterdir():
            run = RunBuilder(path)
            timed(run, 10.06 if folder.name == "new" else 10.0, batch=64)
            run.floor([1.0] * 6, batch=64)
            if folder.name == side:
                run.floor([1.0] * 6)
            begin(run, int(path.name))
    result = compare(*sides, by_turns=True)
    assert change_of(result, batch_size=64).verdict == "REGRESSED"
    assert change_of(result, batch_size=128).verdict == "SAME"
