"""Two runs of the same questions: ratios, verdicts, and what keeps them from being compared."""

import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.compare.comparison import LIMITS, Comparison, Row, _over_runs, compare
from bench.compare.judge import judge_together
from bench.phases.energy import Energy
from bench.phases.layers import Layers
from bench.phases.memory import MemoryPeak
from bench.report.analysis.changes import estimate
from bench.report.analysis.frame import Arm
from bench.results.records import Device
from bench.results.run_json import planned
from bench.spec.errors import UsageError
from bench.spec.metrics import SPEED
from tests.conftest import call
from tests.report import fleet
from tests.report.builders import RunBuilder
from tests.report.fleet import copy, original
from tests.rows import keep_rows


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run whose steps differ a little from process to process."""
    return copy(original(tmp_path / "raw"), tmp_path / "old", device="Card", architecture="Volta", jitter=0.002)


def later(old: Path, faster: float, jitter: float = 0.0, **more: str) -> Path:
    return copy(old, old.parent / "new", device="Card", architecture="Volta", faster=faster, jitter=jitter, **more)


def by_precision(compared: Comparison) -> dict[str, Row]:
    return {row.question["precision"]: row for row in compared.rows}


@pytest.mark.parametrize(
    ("faster", "jitter", "verdict"),
    [
        (1.3, 0.0, "IMPROVED"),
        (0.75, 0.0, "REGRESSED"),
        (1.05, 0.0, "INCONCLUSIVE"),  # another day's speed may differ by as much
        (1.0, 0.0, "INCONCLUSIVE"),
        (1.02, 0.05, "INCONCLUSIVE"),
    ],
)
def test_the_verdict_is_of_the_step(old, faster, jitter, verdict):
    compared = compare(old, later(old, faster, jitter), fail_over=0.03)
    assert by_precision(compared)["fp32"].changes["speed"].verdict == verdict
    assert bool(compared.failures) is (verdict == "REGRESSED")


def slower(times: dict[str, float]) -> Callable[[dict[str, str]], None]:
    """Return what makes some precisions' blocks so many times as slow."""

    def change(row: dict[str, str]) -> None:
        row["time_ms"] = repr(float(row["time_ms"]) * times.get(row["precision"], 1.0))

    return change


def test_memory_and_speedup_have_their_ratios(old):
    new = later(old, 1.0)
    fleet.edit_rows(new, lambda row: row["peak_allocated_bytes"] and row.update(peak_allocated_bytes=str(50 * 2**20)))
    fleet.edit_rows(new, slower({"amp-bf16": 2.0}), "blocks.csv")
    compared = by_precision(compare(old, new))
    assert str(compared["fp32"].changes["memory"]) == "0.500"
    assert compared["amp-bf16"].speedup.center == pytest.approx(0.5, rel=1e-3)
    assert compared["fp32"].speedup is None


def test_another_driver_is_told_and_rows_of_one_run_alone_are_named(old):
    new = later(old, 1.1, driver="999.1")
    fleet.edit_rows(new, lambda row: row["precision"] == "amp-bf16" and row.update(precision="amp-fp16"))
    compared = compare(old, new)
    assert any("Different driver: 550.1 in old; 999.1 in new." in line for line in compared.cautions)
    assert compared.apart == [
        "Only in OLD: mlp on 0 batch 128 amp-bf16.",
        "Only in NEW: mlp on 0 batch 128 amp-fp16.",
    ]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("ok", "oom", "REGRESSED"),
        ("oom", "ok", "IMPROVED"),
        ("ok", "invalid", "INCONCLUSIVE"),  # what was disturbed says nothing
    ],
)
def test_what_fits_on_one_side_alone_is_a_row_with_both_words(old, before, after, verdict):
    new = later(old, 1.0)
    for folder, status in ((old, before), (new, after)):
        gone = dict.fromkeys(("step_ms", "samples_per_s"), "") | {"status": status}

        def lose(row: dict[str, str], gone: dict[str, str] = gone) -> None:
            if gone["status"] != "ok" and (row["phase"], row["precision"]) == ("speed", "fp32"):
                row.update(gone)

        fleet.edit_rows(folder, lose)
    compared = compare(old, new, fail_over=0.5)
    change = by_precision(compared)["fp32"].changes["speed"]
    assert (str(change), change.verdict) == (f"{before} → {after}", verdict)
    assert ["fp32" in failure for failure in compared.failures] == [True] * (verdict == "REGRESSED")


def test_one_process_decides_nothing(old):
    new = later(old, 3.0)
    assert compare(old, new, fail_over=0.03).untestable == 0
    keep_rows(new, lambda row: not row["trial"].endswith(("-speed-r1", "-speed-r2")))
    compared = compare(old, new, fail_over=0.03)
    assert by_precision(compared)["fp32"].changes["speed"].verdict == "INCONCLUSIVE"
    assert compared.untestable == len(compared.rows)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "There is no run in"),
        ("old", "the same run"),
        ("other", "no measured cell and precision in common.*Only in OLD: mlp .*Only in NEW: resnet20 "),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(old, tmp_path, name, message):
    original(tmp_path / "other", suite="resnet20")
    with pytest.raises(UsageError, match=message):
        compare(old, tmp_path / name)


def test_on_a_cpu_memory_is_compared_by_the_rule_of_the_reports(tmp_path):
    of_batches = {
        1: (100.0, 104.9, "too small to be resolved", "INCONCLUSIVE"),
        3: (2.0, 8.0, "too small to be resolved", "INCONCLUSIVE"),  # each may be nothing, or 5 MiB more
        5: (20.0, 0.0, "0.25 [0.11, 0.43]", "IMPROVED"),  # below 5 MiB, which is measured
        6: (0.0, 1000.0, "200 [133, 401]", "REGRESSED"),
    }
    for side, name in enumerate(("a", "b")):
        run = RunBuilder(tmp_path / name, device=Device(placement="cpu", kind="cpu", name="CPU", architecture="x86"))
        for batch, mib in of_batches.items():
            peak = MemoryPeak(peak_resident_bytes=int(mib[side] * 2**20))
            run.result("memory", "fp32", batch=batch, row=peak)
    rows = compare(tmp_path / "a", tmp_path / "b").rows
    assert {row.question["batch_size"] for row in rows} == set(of_batches)
    for row in rows:
        change = row.changes["memory"]
        assert (str(change), change.verdict) == of_batches[row.question["batch_size"]][2:]
        assert change.statuses == ("ok", "ok")


def test_an_error_that_is_read_once_is_compared_by_its_difference(tmp_path):
    for name, error in (("a", 0.02), ("b", 0.8)):
        RunBuilder(tmp_path / name).result("layers", "amp-bf16", row=Layers(gradient_error=error))
    compared = compare(tmp_path / "a", tmp_path / "b", fail_over=0.03)
    change = by_precision(compared)["amp-bf16"].changes["gradient_error"]
    assert (str(change), change.verdict, len(compared.failures)) == ("+0.78", "REGRESSED", 1)


@pytest.mark.parametrize(
    ("asked", "only_in_new"),
    [
        ({"batch": 64}, "batch 64 fp32"),
        ({"precision": "tf32"}, "batch 128 tf32"),
        ({"parameters": (("depth", 4),)}, "(depth=4) on"),
    ],
)
def test_runs_without_a_common_cell_are_told_what_each_has(tmp_path, asked, only_in_new):
    one, other = tmp_path / "a", tmp_path / "b"
    RunBuilder(one).memory("fp32", 100)
    builder = RunBuilder(other, parameters=asked.get("parameters", ()))
    builder.memory(asked.get("precision", "fp32"), 100, batch=asked.get("batch", 128))
    with pytest.raises(UsageError, match=f"Only in OLD: .*batch 128 fp32.*Only in NEW: .*{re.escape(only_in_new)}"):
        compare(one, other)


def test_a_copy_is_no_second_run(old):
    fleet.edit_run(old, lambda info: info.update(started="2026-01-01T00:00:00+00:00"))
    shutil.copytree(old, old.parent / "again")
    with pytest.raises(UsageError, match="are copies of one run: name, host and start are the same"):
        compare(old, old.parent / "again")


@pytest.mark.parametrize(
    ("step_ms", "noisy", "verdict"),
    [
        *((8.0, noisy, "INCONCLUSIVE") for noisy in ("old", "new")),
        (8.0, "", "IMPROVED"),
        (10.5, "old new", "INCONCLUSIVE"),  # nor is it a failure, whatever is allowed
    ],
)
def test_a_change_must_exceed_the_noise_of_both_runs(tmp_path, step_ms, noisy, verdict):
    for name, each_ms in (("old", 10.0), ("new", step_ms)):
        run = RunBuilder(tmp_path / name).alone("fp32", [each_ms * share for share in (0.999, 1.0, 1.001)])
        spread = 0.06 if name in noisy else 0.0001
        run.floor((1 - spread, 1.0, 1 + spread), step_ms=each_ms)
    compared = compare(tmp_path / "old", tmp_path / "new", fail_over=0.001)
    assert (by_precision(compared)["fp32"].changes["speed"].verdict, compared.failures) == (verdict, [])


@pytest.mark.parametrize(
    ("finished", "phases", "failing"),
    [(None, ("memory", "speed"), 1), ("now", ("memory", "speed"), 0), (None, ("memory",), 0)],
)
def test_what_an_unfinished_run_did_not_reach_is_a_failure_if_it_was_planned(tmp_path, finished, phases, failing):
    for name in ("old", "new"):
        run = RunBuilder(tmp_path / name).memory("fp32", 10).memory("amp-bf16", 8)
    RunBuilder(tmp_path / "old").speed()
    plan = [planned(run.trial(phase, ("fp32", "amp-bf16"), 128)) for phase in phases]
    fleet.edit_run(run.folder, lambda info: info.update(planned=plan, finished=finished))
    failures = compare(tmp_path / "old", run.folder, fail_over=0.03).failures
    assert ["is unfinished" in failure and "1 speed" in failure for failure in failures] == [True] * failing
    assert compare(tmp_path / "old", run.folder).failures == []


@pytest.mark.parametrize(("status", "refused"), [("failed", False), ("oom", False), ("invalid", True)])
def test_a_new_side_that_fails_everywhere_is_a_failure_with_its_reason(tmp_path, status, refused):
    old, new = (RunBuilder(tmp_path / name) for name in ("old", "new"))
    for batch in (64, 128):
        old.memory("fp32", 100, batch=batch).alone("fp32", [10.0, 10.1], batch=batch)
        new.lost("memory", "fp32", status, f"boom at {batch}", batch=batch)
    if refused:  # what was disturbed says nothing
        with pytest.raises(UsageError, match="no measured cell and precision in common"):
            compare(old.folder, new.folder, fail_over=0.03)
        return
    compared = compare(old.folder, new.folder, fail_over=0.03)
    assert [f"ok → {status}" in failure for failure in compared.failures] == [True, True]
    assert [line for line in compared.apart if "boom at 64" in line and "NEW failed in 2 figures" in line]
    assert not any("Only in" in line for line in compared.apart)


@pytest.mark.slow
def test_fail_over_decides_the_exit_code_and_the_form_what_is_printed(old, tmp_path):
    new = later(old, 1 / 1.3)  # a run a side tells no smaller change apart from another day
    printed = {
        words: call("compare", old, new, *words.split(), cwd=tmp_path)
        for words in ("", "--fail-over 3% --markdown", "--fail-over 0.3 --html")
    }
    assert [done.returncode for done in printed.values()] == [0, 1, 0]
    text, markdown, html = (done.stdout for done in printed.values())
    assert "REGRESSED" in text
    assert "| REGRESSED |" in markdown
    assert '<td class="bad"><bdi>REGRESSED</bdi></td>' in html


FIVE = [90.0, 90.8, 89.5, 91.0, 90.2]


@pytest.mark.parametrize(
    ("metric", "values", "unit", "better"),
    [("accuracy", FIVE, 1.0, 1), ("loss", [3.1, 3.3, 2.9, 3.2, 3.0], 0.02, -1)],
)
def test_what_was_learned_is_compared_seed_by_seed_against_its_margin(tmp_path, metric, values, unit, better):
    expected = {16: (-2.0, "REGRESSED"), 32: (2.0, "IMPROVED"), 64: (0.1, "SAME"), 128: (-0.5, "INCONCLUSIVE")}
    wobble = [0.01, -0.01, 0.0, 0.02, -0.02]
    for name in ("old", "new"):
        run = RunBuilder(tmp_path / name)
        for batch, (margins, _) in expected.items():
            changed = [v + better * unit * (margins + more) for v, more in zip(values, wobble, strict=True)]
            measured = changed if name == "new" else values
            if metric == "loss":
                run.train("fp32", [None] * 5, batch=batch, test_loss=measured)
            else:
                run.train("fp32", measured, batch=batch)
    compared = compare(tmp_path / "old", tmp_path / "new", fail_over=0.5)
    changes = {row.question["batch_size"]: row.changes for row in compared.rows}
    assert {batch: own[metric].verdict for batch, own in changes.items()} == {
        batch: verdict for batch, (_, verdict) in expected.items()
    }
    assert changes[16][metric].interval.center == pytest.approx(-2.0 * better * unit)
    assert all(set(own) == {metric} for own in changes.values())
    assert ["batch 16" in failure for failure in compared.failures] == [True]


def test_fewer_than_five_seeds_or_other_epochs_decide_nothing_of_accuracy(tmp_path):
    RunBuilder(tmp_path / "old").train("fp32", FIVE).train("fp32", FIVE, batch=64)
    RunBuilder(tmp_path / "new").train("fp32", FIVE[:4]).train("fp32", FIVE, batch=64, epochs=3)
    longer, few = (row.changes["accuracy"] for row in compare(tmp_path / "old", tmp_path / "new").rows)
    assert (few.verdict, longer.verdict) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert (few.interval is None, longer.interval is None) == (False, True)


@pytest.mark.parametrize(("metric", "accuracies"), [("accuracy", FIVE), ("loss", [None] * 5)])
def test_a_seed_that_diverges_is_a_regression_of_what_is_learned(tmp_path, metric, accuracies):
    RunBuilder(tmp_path / "old").train("fp32", accuracies)
    RunBuilder(tmp_path / "new").train("fp32", accuracies[:4]).diverged("fp32", seed=4)
    compared = compare(tmp_path / "old", tmp_path / "new", fail_over=0.03)
    (changes,) = (row.changes for row in compared.rows)
    assert {name: str(change) for name, change in changes.items() if name in ("accuracy", "loss")} == {
        metric: "ok → diverged"
    }
    assert (changes[metric].verdict, len(compared.failures)) == ("REGRESSED", 1)


def test_a_folder_of_runs_counts_the_processes_of_all(old, tmp_path):
    both = tmp_path / "both"
    for name in ("a", "b"):
        copy(old, both / name, device="Card", architecture="Volta", jitter=0.002)
        fleet.edit_run(both / name, lambda info, name=name: info.update(started=f"2026-01-0{'ab'.index(name) + 1}"))
    (row,) = [row for row in compare(old, both).rows if row.question["precision"] == "fp32"]
    contrast = row.changes["speed"].contrast
    assert [len(arm.values) for arm in (contrast.against, contrast.arm)] == [3, 6]


def test_of_several_devices_each_is_compared_with_itself(old, tmp_path):
    for side, slower in (("before", 1.0), ("after", 1.2)):
        for name, device, faster in (("x", "Card X", 1.0), ("y", "Card Y", 3.0 / slower)):
            copy(old, tmp_path / side / name, device=device, architecture="Volta", faster=faster, jitter=0.002)
            start = f"{side} {name}"
            fleet.edit_run(tmp_path / side / name, lambda info, start=start: info.update(started=start))
    compared = compare(tmp_path / "before", tmp_path / "after", fail_over=0.03)
    verdicts = {(row.subject, row.question["precision"]): row.changes["speed"].verdict for row in compared.rows}
    assert verdicts[("mlp on Card X (0)", "fp32")] == "INCONCLUSIVE"
    assert verdicts[("mlp on Card Y (0)", "fp32")] == "REGRESSED"
    assert all("Card Y" in failure for failure in compared.failures)


def test_what_differs_between_the_environments_is_listed_with_ampmeters_version(old):
    new = later(old, 1.0, python="3.14.0")
    fleet.edit_run(old, lambda info: info.update(version="1.0"))
    fleet.edit_run(new, lambda info: info.update(version="1.1"))
    compared = compare(old, new)
    assert compared.environment == [("ampmeter", "1.0", "1.1"), ("Python", "3.12.1", "3.14.0")]
    assert any(text.startswith("Different ampmeter: 1.0 in old; 1.1 in new.") for text in compared.cautions)


def test_the_figures_of_both_sides_are_of_the_processes_that_are_compared(tmp_path):
    for name, joules in (("old", (10.0, 10.1, 20.0)), ("new", (20.0, 20.1, 20.2))):
        for number, value in enumerate(joules):
            energy = Energy(energy_j_per_step=value, energy_source="counter")
            RunBuilder(tmp_path / name / str(number)).result("energy", "fp32", row=energy)
    (row,) = compare(tmp_path / "old", tmp_path / "new").rows
    assert row.changes["energy"].values == (10.1, 20.1)


def side(rng: np.random.Generator, days: list[float], processes: int) -> Arm:
    """Step times of runs on some days, each with the logarithm of its speed."""
    values = [10 * math.exp(day + error) for day in days for error in rng.normal(0, 0.01, processes)]
    names = [("run", place) for place in range(len(values))]
    runs = [day for day in range(len(days)) for _ in range(processes)]
    key = ("run", "mlp", "", "", "data", "Hopper", "GPU", "0", 128, "fp32")
    return Arm(key=key, values=np.array(values), replicates=names, unpaired=np.ones(len(values), bool), runs=runs)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("days", [1, 3])
def test_days_that_differ_make_no_change(days, between):
    """The speeds of two days differ with this standard deviation; a row of one run a side, or of three."""
    rng, words = np.random.default_rng(days), Counter()
    for pair in range(400):
        sides = []
        for name in ("new", "old"):
            speeds = rng.normal(0, between / math.sqrt(2), days).tolist()
            sides.append(replace(side(rng, speeds, (3, 10)[pair % 2]), key=(name,)))
        words[judge_together([_over_runs(estimate(SPEED, *sides), by_turns=False)])[0]] += 1
    assert words["IMPROVED"] + words["REGRESSED"] <= 0.05 * 400
    assert days == 3 or not words["SAME"]  # which two days cannot tell


@pytest.mark.parametrize("by_turns", [False, True])
def test_disturbed_processes_count_for_nothing_also_over_runs(by_turns):
    rng, sides = np.random.default_rng(1), []
    for slower in (0.3, 0.0):
        arm = side(rng, [0.001, 0.0, 0.002], 3)
        values = arm.values * np.exp(slower * (np.arange(9) % 3 == 0))
        disturbed = frozenset(arm.replicates[::3]) if slower else frozenset()
        sides.append(replace(arm, key=(slower,), values=values, disturbed=disturbed))
    change = _over_runs(estimate(SPEED, *sides), by_turns)
    assert abs(change.change.center) < 0.02
    assert sides[0].figure(SPEED) < 10.5


def taken_in_turns(folder: Path, slower: float) -> None:
    """Three runs of each side, whose pairs share the machine's speed of the moment."""
    for turn, speed in enumerate((1.0, 1.04, 0.97)):
        for side, by in (("old", 1.0), ("new", slower)):
            steps_ms = [10 * by / speed * share for share in (0.999, 1.0, 1.001)]
            RunBuilder(folder / side / f"{side}-{turn}").alone("fp32", [step * (1 + 1e-4 * turn) for step in steps_ms])


@pytest.mark.parametrize(
    ("slower", "verdict"), [(1.03, "REGRESSED"), (1.0, "SAME"), pytest.param(0.97, "IMPROVED", marks=pytest.mark.slow)]
)
def test_runs_that_took_turns_tell_what_two_days_do_not(tmp_path, slower, verdict):
    taken_in_turns(tmp_path, slower)
    apart, paired = (compare(tmp_path / "old", tmp_path / "new", 0.02, by_turns=by_turns) for by_turns in (False, True))
    assert by_precision(apart)["fp32"].changes["speed"].verdict == "INCONCLUSIVE"
    assert by_precision(paired)["fp32"].changes["speed"].verdict == verdict
    assert (LIMITS in apart.cautions, LIMITS in paired.cautions) == (True, False)


def test_a_cell_that_the_sides_have_in_other_pairs_decides_nothing(tmp_path):
    for side, timed in (("old", 0), ("new", 1)):
        for turn in range(2):
            run = RunBuilder(tmp_path / side / f"{side}-{turn}").memory("fp32", 100)
            if turn == timed:
                run.alone("fp32", [10.0, 10.1])
    change = by_precision(compare(tmp_path / "old", tmp_path / "new", by_turns=True))["fp32"].changes["speed"]
    assert (change.verdict, change.interval.low) == ("INCONCLUSIVE", None)


@pytest.mark.parametrize(("turns", "refused"), [("ONNOON", False), ("ONONNO", False), ("OOONNN", True)])
def test_runs_of_one_side_that_follow_each_other_did_not_take_turns(tmp_path, turns, refused):
    """Two days would look like a change."""
    taken_in_turns(tmp_path, 1.0)
    for letter, side in (("O", "old"), ("N", "new")):
        for turn, hour in enumerate(place for place, of in enumerate(turns) if of == letter):
            start = f"2026-01-01T1{hour}:00:00+00:00"
            folder = tmp_path / side / f"{side}-{turn}"
            fleet.edit_run(folder, lambda info, start=start: info.update(started=start))
    if not refused:
        assert by_precision(compare(tmp_path / "old", tmp_path / "new", by_turns=True))
        return
    with pytest.raises(UsageError, match="did not take turns: two runs of OLD follow each other, at 2026-01-01T10"):
        compare(tmp_path / "old", tmp_path / "new", by_turns=True)


@pytest.mark.parametrize("side", ["old", "new"])
def test_noise_that_one_side_or_one_batch_size_did_not_measure_is_assumed(tmp_path, side):
    for name, slower in (("old", 1.0), ("new", 1.006)):
        for turn in range(3):
            run = RunBuilder(tmp_path / name / f"{name}-{turn}")
            steps_ms = [10 * slower * (1 + 1e-5 * (replicate + turn)) for replicate in range(6)]
            for batch in (64, 128):
                run.alone("fp32", steps_ms, batch=batch)
            run.floor([1.0] * 6, within=0.0005, batch=64)
            if name == side:
                run.floor([1.0] * 6, within=0.0005)
    compared = compare(tmp_path / "old", tmp_path / "new", by_turns=True)
    verdicts = {row.question["batch_size"]: row.changes["speed"].verdict for row in compared.rows}
    assert verdicts == {64: "REGRESSED", 128: "SAME"}


def test_sides_of_different_numbers_of_runs_did_not_take_turns(tmp_path):
    taken_in_turns(tmp_path, 1.0)
    with pytest.raises(UsageError, match="different numbers of runs"):
        compare(tmp_path / "old", tmp_path / "new" / "new-0", by_turns=True)


@pytest.mark.slow
def test_runs_of_one_session_are_one_day(tmp_path):
    """Each batch size stands for a machine: its days differ by 2 %, and five runs a side of one day each by 0.2 %."""
    rng, batches = np.random.default_rng(1), range(1, 41)
    for number, side in enumerate(("old", "new")):
        days = rng.normal(0, 0.02, len(batches))
        for turn in range(5):
            run = RunBuilder(tmp_path / side / f"{side}-{turn}")
            for batch, day in zip(batches, days, strict=True):
                run.alone("fp32", 10 * np.exp(day + rng.normal(0, 0.002, 2)), batch=batch)
            start = f"2026-01-{10 + number}T1{turn}:00:00+00:00"
            fleet.edit_run(run.folder, lambda info, start=start: info.update(started=start))
    compared = compare(tmp_path / "old", tmp_path / "new")
    assert sum(row.changes["speed"].is_shown for row in compared.rows) <= 0.05 * len(batches)
    assert LIMITS in compared.cautions
