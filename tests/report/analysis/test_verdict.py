"""The sentences say what was shown, and nothing that was not."""

from itertools import chain

import pytest

from bench.report.analysis.lead import grid, line
from bench.report.analysis.verdict import stalled
from bench.report.format import UNKNOWN, number
from bench.report.render import by_suite as terminal
from bench.results.records import Switches
from tests.report.builders import RunBuilder
from tests.report.fleet import edit_rows
from tests.report.tables.lines import lines


def verdict(run: RunBuilder) -> str:
    return str(run.answer())


def test_a_gain_names_the_precision_and_the_interval(run):
    run.speed()
    run.train("fp32", [90.0, 90.2, 90.1, 90.0, 90.3]).train(
        "amp-bf16", [90.1, 90.2, 90.0, 90.1, 90.2]
    )
    text = verdict(run)
    assert text.startswith("mlp on NVIDIA Test 1, batch 128: use amp-bf16 — 2.00 [1.9")
    assert text.endswith("]× as fast as fp32 (FASTER, 3 processes).")


@pytest.mark.parametrize(
    ("speedups", "advice", "word"),
    [
        ([0.8, 0.81, 0.79], "nothing gains: amp-bf16 is 0.80 [", "SLOWER"),
        (
            [0.8, 1.3, 1.05],
            "no gain is shown, measure longer to decide: amp-bf16 is",
            "INCONCLUSIVE",
        ),
    ],
)
def test_less_memory_is_no_reason_to_train_slower_or_at_an_unknown_speed(
    run, speedups, advice, word
):
    run.speed(speedups=speedups)
    text = verdict(run.memory("fp32", 100).memory("amp-bf16", 60))
    assert f"stay with fp32 — {advice}" in text
    assert word in text


def test_equal_speed_and_less_memory_is_a_gain(run):
    run.speed(speedups=[1.0, 1.001, 0.999, 1.0]).memory("fp32", 100).memory("amp-bf16", 60)
    assert "lightest: amp-bf16, accuracy not shown — for its memory: 1.000 [" in verdict(run)
    for name in ("fp32", "amp-bf16"):
        run.train(name, [90.0] * 5)
    assert "use amp-bf16 — for its memory: 1.000 [" in verdict(run)


def test_a_regression_has_no_accuracy_to_show(run):
    run.speed()
    for name in ("fp32", "amp-bf16"):
        run.train(name, [None] * 5, regression=True, test_loss=[0.5, 0.51, 0.52, 0.5, 0.49])
    answer = run.answer()
    assert answer.advice == "fastest: amp-bf16, no accuracy: regression"
    shown = line(answer)
    assert answer.accuracy == shown.accuracy == row(run)["accuracy"] == "no accuracy: regression"
    assert shown.points == shown.standing == ""


def test_a_faster_precision_that_is_worse_is_not_advised(run):
    run.speed("amp-fp16", [3.0, 3.01, 2.99]).speed("tf32", [1.5, 1.51, 1.49], batch=128)
    run.train("fp32", [90.0, 90.1, 90.2, 90.0, 90.1]).train(
        "amp-fp16", [80.0, 80.1, 80.3, 80.0, 80.2]
    )
    assert ": fastest: tf32, accuracy not shown — " in verdict(run)


def test_a_seed_that_diverged_in_fp32_too_is_not_held_against_a_precision(run):
    run.speed("amp-fp16")
    for name in ("fp32", "amp-fp16"):
        run.train(name, [90.0] * 5).diverged(name, seed=5)
    assert "use amp-fp16" in verdict(run)
    text = verdict(run.diverged("amp-fp16", seed=4))
    assert "stay with fp32 — training rules out amp-fp16 (diverged)" in text


def test_a_recipe_that_diverges_in_fp32_itself_gives_no_verdict(run):
    run.speed("amp-fp16").diverged("fp32").diverged("amp-fp16")
    assert "no verdict — training diverged in fp32 itself: amp-fp16 is 2.00 [" in verdict(run)


@pytest.mark.parametrize("phase", ["speed", "memory"])
def test_a_baseline_that_does_not_fit_leaves_no_speedup(run, phase):
    run.lost(phase, "fp32", "oom").alone("amp-bf16", [5.0, 5.1])
    text = verdict(run)
    assert (
        "fastest: amp-bf16, accuracy not shown — fp32 does not fit (oom), so there is no speedup "
        "to state"
    ) in text
    assert "×" not in text


def test_a_baseline_in_tf32_is_no_comparison_with_fp32(run, tmp_path):
    run.speed(switches=Switches(fp32_matmul="ieee", fp32_conv="ieee", matmul_error=3e-4))
    text = "fp32 here rounded its products to TF32 or less"
    assert f"{text}, so this is no comparison with FP32" in verdict(run)
    assert run.row()["doubts"] == "other types"
    assert text not in verdict(RunBuilder(tmp_path / "honest").speed())


def test_without_speeds_of_two_precisions_there_is_no_verdict_on_speed(run, tmp_path):
    alone = RunBuilder(tmp_path / "alone").alone("fp32", [10.0, 10.1])
    assert "only fp32 was tried." in verdict(alone)
    run.lost("memory", "fp32", "failed", "it broke")
    assert "only fp32 was tried (fp32 failed)" in verdict(run)
    run.lost("memory", "amp-bf16", "oom")
    assert "no speedup was measured (fp32 failed, amp-bf16 oom)" in verdict(run)


@pytest.mark.parametrize(
    ("peaks", "use", "cell"),
    [
        (
            {"amp-bf16": 70, "amp-fp16": 60},
            "least memory: amp-fp16",
            "fp32 100.0 MiB, amp-fp16 60.00 MiB (−40 %), amp-bf16 70.00 MiB (−30 %)",
        ),
        ({"amp-bf16": 120}, "least memory: fp32", "fp32 100.0 MiB, amp-bf16 120.0 MiB (+20 %)"),
    ],
)
def test_of_a_run_of_memory_alone_the_last_table_has_the_memory(run, peaks, use, cell):
    run.memory("fp32", 100)
    for name, peak in peaks.items():
        run.memory(name, peak)
    shown = row(run)
    assert (shown["use"], shown["memory"]) == (use, cell)
    run.train("fp32", [90.0]).train("amp-bf16", [90.0])
    shown = row(run)
    assert (shown["use"].split(" ¶")[0], shown["memory"]) == ("no verdict on speed", cell)
    run.speed()
    assert "FASTER" in verdict(run)


def test_a_tie_is_judged_by_shared_processes_and_goes_to_the_one_without_loss_scaling(run):
    run.speed("amp-fp16", [2.0, 1.7, 2.3]).speed("amp-bf16", [1.99, 1.71, 2.28])
    # It lies within the others' wide intervals, and is slower in each process.
    run.speed("tf32", [1.8, 1.54, 2.07])
    text = verdict(run)
    assert ": fastest: amp-bf16, accuracy not shown — " in text
    assert "; as fast: amp-fp16." in text
    for name in ("fp32", "amp-fp16"):
        run.train(name, [90.0] * 5)
    assert ": use amp-fp16 — " in verdict(run)  # as fast, and its accuracy is shown


# The answers at a glance, in a terminal of any width and on the page.


def row(run):
    """The cells of a run's only answer as a terminal shows them, by their headers."""
    (table,) = terminal(grid([run.answer()]))
    return lines(table)[0]


@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_without_enough_seeds_the_accuracy_is_not_judged_and_a_single_process_is_named(run, seeds):
    run.speed(speedups=[2.0])
    if seeds:
        run.train("fp32", [90.0, 91.0][:seeds]).train("amp-bf16", [89.5, 90.5][:seeds])
    assert row(run)["accuracy"] == ("too few seeds" if seeds else "not trained")
    text = verdict(run)
    assert "(FASTER, one process)" in text


def test_staying_with_fp32_and_a_baseline_out_of_memory_are_answers_too(tmp_path):
    slow = row(RunBuilder(tmp_path / "slow").speed(speedups=[0.09, 0.091, 0.089]))
    big = row(
        RunBuilder(tmp_path / "big").lost("speed", "fp32", "oom").alone("amp-bf16", [5.0, 5.1])
    )
    assert (slow["use"], slow["speedup"]) == ("fp32", "amp-bf16: 11× slower")
    assert not slow.keys() & {"memory", "accuracy"}
    assert (big["use"], big["accuracy"]) == ("amp-bf16", "fp32 oom")


def test_without_a_speedup_the_answer_says_what_trainings_have_shown(tmp_path):
    run = RunBuilder(tmp_path / "trained")
    for name, accuracy in (("fp32", 90.0), ("amp-bf16", 90.0), ("bf16", 80.0)):
        run.train(name, [accuracy] * 5)
    assert row(run)["accuracy"] == "amp-bf16 not worse, bf16 worse"
    assert line(run.answer()).standing == "bad"
    good = RunBuilder(tmp_path / "good").train("fp32", [90.0] * 5).train("bf16", [90.0] * 5)
    assert line(good.answer()).standing == "good"


def test_figures_of_a_training_at_another_batch_size_are_named_and_its_epochs_are_not_shown(run):
    run.speed(batch=64).speed(batch=256)
    for batch in (64, 256):
        run.train("fp32", [90.0], batch=batch)
    run.train("amp-bf16", [89.9], batch=64)
    answer = run.answer()
    shown = line(answer)
    assert (answer.batch, shown.changes["epoch"].text) == (256, UNKNOWN)
    assert shown.points == "−0.10 pt, 1 seed, batch 64"
    shown = line(run.train("amp-bf16", [90.2], batch=256).answer())
    assert (shown.changes["epoch"].text, shown.points) == ("3.00 → 3.00 s", "+0.20 pt, 1 seed")


def test_a_speedup_that_may_be_a_slowdown_is_an_interval(run):
    run.speed(speedups=[0.7, 1.5, 1.6])
    answer = run.answer()
    low, high = answer.arm["speedup_low"], answer.arm["speedup_high"]
    assert line(answer).faster == f"amp-bf16: {number(low, 2)} to {number(high, 2)}×"


@pytest.mark.parametrize(
    ("fp32", "noscale", "stalls"),
    [
        ([(2.3, 0.4)], [(2.3, 2.3)], True),
        ([(2.3, 0.4)], [(2.3, 2.0)], False),  # it learns, if slowly
        ([(2.3, 2.25)], [(2.3, 2.3)], False),  # with one seed fp32's loss must fall by a tenth
        ([(2.3, 2.25), (2.3, 2.25)], [(2.3, 2.3)] * 2, False),  # two may agree by chance
        ([(2.3, 2.25)] * 3, [(2.3, 2.3)] * 3, True),
        # The seeds differ by more than it falls on average.
        ([(2.3, 1.8), (2.3, 2.2)], [(2.3, 2.3)] * 2, False),
        ([(2.3, 0.4), (2.3, 0.5)], [(2.3, 2.3)] * 2, True),
    ],
)
def test_a_precision_that_does_not_learn_where_fp32_does_is_said_and_never_advised(
    run, fp32, noscale, stalls
):
    run.speed(arm="amp-fp16-noscale", speedups=[2.0, 2.0, 2.0])
    for name, seeds in (("fp32", fp32), ("amp-fp16-noscale", noscale)):
        run.train(name, [None] * len(seeds))
    epochs = chain.from_iterable(fp32 + noscale)
    edit_rows(run.folder, lambda row: row.update(train_loss=str(next(epochs))), "epochs.csv")
    answer = run.answer()
    assert bool(stalled([answer])) == stalls
    assert ("amp-fp16-noscale" in answer.advice) != stalls
    if stalls:
        last = sum(loss for _, loss in fp32) / len(fp32)
        assert f"loss 2.30 → 2.30, fp32 2.30 → {number(last, 3)}" in stalled([answer])[0]
