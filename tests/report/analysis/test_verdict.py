"""The sentences say what was shown, and nothing that was not."""

import pytest

from bench.report.analysis.lead import grid, line
from bench.report.analysis.verdict import stalled
from bench.report.format import UNKNOWN, number
from bench.report.render import by_suite as terminal
from bench.results.records import Switches
from tests.report.builders import RunBuilder
from tests.report.tables.lines import lines


def verdict(run: RunBuilder) -> str:
    return str(run.answer())


def trained(run: RunBuilder, *precisions: str) -> RunBuilder:
    """Train these precisions to one accuracy, with enough seeds to tell so."""
    for precision in precisions:
        run.train(precision, [90.0] * 5)
    return run


def test_a_gain_names_the_precision_and_the_interval(run):
    text = verdict(trained(run.speed(), "fp32", "amp-bf16"))
    assert text.startswith("mlp on NVIDIA Test 1, batch 128: use amp-bf16 — 2.00 [1.9")
    assert text.endswith("]× as fast as fp32 (FASTER, 3 processes).")


@pytest.mark.parametrize(
    ("speedups", "evidence"),
    [
        ([0.8, 0.81, 0.79], "nothing gains: amp-bf16 is 0.80 ["),
        (
            [0.8, 1.3, 1.05],
            "no gain is shown, a new run with a larger --time-budget may decide: amp-bf16 is 1.03",
        ),
    ],
)
def test_less_memory_is_no_reason_to_train_slower_or_at_an_unknown_speed(run, speedups, evidence):
    run.speed(speedups=speedups).memory("fp32", 100).memory("amp-bf16", 60)
    assert f"stay with fp32 — {evidence}" in verdict(run)


def test_equal_speed_and_less_memory_is_a_gain(run):
    run.speed(speedups=[1.0, 1.001, 0.999, 1.0])
    run.memory("fp32", 100).memory("amp-bf16", 60)
    assert "lightest: amp-bf16, accuracy not shown — for its memory: 1.000 [" in verdict(run)
    trained(run, "fp32", "amp-bf16")
    assert "use amp-bf16 — for its memory: 1.000 [" in verdict(run)


def test_a_regression_has_no_accuracy_to_show(run):
    run.speed()
    for name in ("fp32", "amp-bf16"):
        run.train(name, [None] * 5, regression=True)
    answer = run.answer()
    shown = line(answer)
    assert answer.advice == "fastest: amp-bf16, no accuracy: regression"
    assert answer.accuracy == shown.accuracy == "no accuracy: regression"
    assert shown.points == shown.standing == ""


def test_a_faster_precision_that_is_worse_is_not_advised(run):
    run.speed("amp-fp16", [3.0, 3.01, 2.99])
    run.speed("tf32", [1.5, 1.51, 1.49])
    trained(run, "fp32").train("amp-fp16", [80.0] * 5)
    assert ": fastest: tf32, accuracy not shown — " in verdict(run)


def test_a_seed_that_diverged_in_fp32_too_is_not_held_against_a_precision(run):
    trained(run.speed("amp-fp16"), "fp32", "amp-fp16")
    for name in ("fp32", "amp-fp16"):
        run.diverged(name, seed=5)
    assert "use amp-fp16" in verdict(run)
    run.diverged("amp-fp16", seed=4)
    assert "stay with fp32 — training rules out amp-fp16 (diverged)" in verdict(run)


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


def test_a_baseline_in_tf32_is_no_comparison_with_fp32(run):
    run.speed(switches=Switches(fp32_matmul="ieee", fp32_conv="ieee", matmul_error=3e-4))
    text = "fp32 here rounded its products to TF32 or less, so this is no comparison with FP32"
    assert text in verdict(run)
    assert run.row()["doubts"] == "other types"


def test_without_speeds_of_two_precisions_there_is_no_verdict_on_speed(run):
    run.lost("memory", "fp32", "failed", "it broke")
    assert "only fp32 was tried (fp32 failed)" in verdict(run)
    run.lost("memory", "amp-bf16", "oom")
    assert "no speedup was measured (fp32 failed, amp-bf16 oom)" in verdict(run)


@pytest.mark.parametrize(
    ("peaks", "use", "memory"),
    [
        (
            {"amp-bf16": 70, "amp-fp16": 60},
            "least memory: amp-fp16",
            "fp32 100.0 MiB, amp-fp16 60.00 MiB (−40 %), amp-bf16 70.00 MiB (−30 %)",
        ),
        (
            {"amp-bf16": 120},
            "least memory: fp32",
            "fp32 100.0 MiB, amp-bf16 120.0 MiB (+20 %)",
        ),
    ],
)
def test_of_a_run_of_memory_alone_the_last_table_has_the_memory(run, peaks, use, memory):
    run.memory("fp32", 100)
    for name, peak in peaks.items():
        run.memory(name, peak)
    shown = row(run)
    assert shown["use"] == use
    assert shown["memory"] == memory
    trained(run, "fp32", "amp-bf16")
    shown = row(run)
    assert shown["use"] == "no verdict on speed"
    assert shown["memory"] == memory


def test_a_tie_is_judged_by_shared_processes_and_goes_to_the_one_without_loss_scaling(run):
    run.speed("amp-fp16", [2.0, 1.7, 2.3])
    run.speed("amp-bf16", [1.99, 1.71, 2.28])
    # It lies within the others' wide intervals, and is slower in each process.
    run.speed("tf32", [1.8, 1.54, 2.07])
    text = verdict(run)
    assert ": fastest: amp-bf16, accuracy not shown — " in text
    assert "; as fast: amp-fp16." in text
    # As fast, and its accuracy is shown.
    assert ": use amp-fp16 — " in verdict(trained(run, "fp32", "amp-fp16"))


# The answers at a glance, in a terminal of any width and on the page.


def row(run: RunBuilder) -> dict[str, str]:
    """The cells of a run's only answer as a terminal shows them, by their headers."""
    (table,) = terminal(grid([run.answer()]))
    return lines(table)[0]


@pytest.mark.parametrize(
    ("accuracies", "word"),
    [
        ([], "not trained"),
        ([90.0], "too few seeds"),
        ([90.0, 91.0], "too few seeds"),
    ],
)
def test_without_enough_seeds_the_accuracy_is_not_judged_and_a_single_process_is_named(
    run, accuracies, word
):
    run.speed(speedups=[2.0])
    for name in ("fp32", "amp-bf16"):
        run.train(name, accuracies)
    assert row(run)["accuracy"] == word
    assert "(FASTER, one process)" in verdict(run)


def test_staying_with_fp32_and_a_baseline_out_of_memory_are_answers_too(tmp_path):
    slow = row(RunBuilder(tmp_path / "slow").speed(speedups=[0.09, 0.091, 0.089]))
    assert slow["use"] == "fp32"
    assert slow["speedup"] == "amp-bf16: 11× slower"
    assert not slow.keys() & {"memory", "accuracy"}
    big = RunBuilder(tmp_path / "big").lost("speed", "fp32", "oom")
    assert row(big.alone("amp-bf16", [5.0, 5.1]))["accuracy"] == "fp32 oom"


def test_without_a_speedup_the_answer_says_what_trainings_have_shown(run):
    trained(run, "fp32", "amp-bf16")
    assert line(run.answer()).standing == "good"
    run.train("bf16", [80.0] * 5)
    shown = line(run.answer())
    assert shown.accuracy == "amp-bf16 not worse, bf16 worse"
    assert shown.standing == "bad"


def test_figures_of_a_training_at_another_batch_size_are_named_and_its_epochs_are_not_shown(run):
    for batch in (64, 256):
        run.speed(batch=batch).train("fp32", [90.0], batch=batch)
    run.train("amp-bf16", [89.9], batch=64)
    answer = run.answer()
    shown = line(answer)
    assert answer.batch == 256
    assert shown.changes["epoch"].text == UNKNOWN
    assert shown.points == "−0.10 pt, 1 seed, batch 64"
    shown = line(run.train("amp-bf16", [90.2], batch=256).answer())
    assert shown.changes["epoch"].text == "3.00 → 3.00 s"
    assert shown.points == "+0.20 pt, 1 seed"


def test_a_speedup_that_may_be_a_slowdown_is_an_interval(run):
    answer = run.speed(speedups=[0.7, 1.5, 1.6]).answer()
    low = number(answer.arm["speedup_low"], 2)
    high = number(answer.arm["speedup_high"], 2)
    assert line(answer).faster == f"amp-bf16: {low} to {high}×"


@pytest.mark.parametrize(
    ("fp32", "noscale", "losses"),
    [
        ([0.4], [1.0], "loss 1.00 → 1.00, fp32 1.00 → 0.400"),
        ([0.4], [0.9], ""),  # it learns, if slowly
        ([0.95], [1.0], ""),  # with one seed fp32's loss must fall by a tenth
        ([0.95, 1.0], [1.0, 1.05], ""),  # two may agree by chance
        ([0.95, 1.0, 1.05], [1.0, 1.05, 1.1], ""),  # the last losses differ by more than they fall
        ([0.99, 0.99, 1.0], [1.0, 1.05, 1.1], "loss 1.05 → 1.05, fp32 1.05 → 0.993"),
        ([0.4, 0.5], [1.0, 1.05], "loss 1.02 → 1.02, fp32 1.02 → 0.450"),
    ],
)
def test_a_precision_that_does_not_learn_where_fp32_does_is_said_and_never_advised(
    run, fp32, noscale, losses
):
    """The losses are those of the last epoch; those of the first are 1, 1.05 and 1.1."""
    run.speed("amp-fp16-noscale")
    for name, last_losses in (("fp32", fp32), ("amp-fp16-noscale", noscale)):
        run.train(name, [None] * len(last_losses), train_loss=last_losses)
    answer = run.answer()
    if losses:
        (sentence,) = stalled([answer])
        assert losses in sentence
        assert answer.advice == "stay with fp32"
    else:
        assert stalled([answer]) == []
        assert answer.advice == "fastest: amp-fp16-noscale, accuracy not shown"
