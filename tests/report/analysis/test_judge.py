"""Parity: what differences over seeds show, in accuracy and in the loss of tokens."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.report.analysis.arms import Arm
from bench.report.analysis.changes import Contrast, estimate
from bench.report.analysis.judge import judge_speedups, judged_by, parity
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, LOSS, SPEED
from bench.stats import REPORTED, student
from tests.report.builders import RunBuilder


def learned(values: Sequence[float], precision: str = "amp-bf16") -> Arm:
    """An arm that was trained with seeds from 0."""
    key = ("run", "mlp", "", "", "data", "Hopper", "GPU", "0", 128, precision)
    seeds = [(None, seed) for seed in range(len(values))]
    return Arm(key=key, values=np.array(values), replicates=seeds)


def judged(metric: Metric, deltas: Sequence[float]) -> tuple[Contrast, str]:
    """Contrast values that differ from fp32's so much, seed by seed."""
    contrast = estimate(metric, learned(deltas), learned([0.0] * len(deltas), "fp32"))
    assert contrast is not None
    return contrast, parity(contrast)


@pytest.mark.parametrize("metric", [ACCURACY, LOSS], ids=lambda metric: metric.unit)
def test_a_verdict_is_scipys_two_one_sided_tests_at_five_per_cent(metric):
    rng, margin = np.random.default_rng(1), metric.margin
    better, worse = ("greater", "less") if metric.better == "more" else ("less", "greater")
    bad = -margin * metric.sign
    words = []
    for _ in range(300):
        spread = margin * rng.uniform(0.2, 1.8)
        deltas = rng.normal(margin * rng.uniform(-2.4, 2.4), spread, size=rng.integers(5, 9))
        shown = {
            side: scipy_stats.ttest_1samp(deltas, at, alternative=side_of).pvalue < 0.05
            for side, at, side_of in (
                ("sound", bad, better),
                ("near", -bad, worse),
                ("worse", bad, worse),
            )
        }
        expected = "WORSE" if shown["worse"] else "INCONCLUSIVE"
        if shown["sound"]:
            expected = "EQUIVALENT" if shown["near"] else "NON-INFERIOR"
        contrast, word = judged(metric, deltas)
        result = contrast.at(0.90)
        words.append(word)
        assert (result.center, result.n, word) == (
            pytest.approx(deltas.mean()),
            deltas.size,
            expected,
        )
        interval = scipy_stats.t.interval(
            0.90, result.n - 1, loc=deltas.mean(), scale=scipy_stats.sem(deltas)
        )
        assert (result.low, result.high) == pytest.approx(interval)
    assert set(words) == {"EQUIVALENT", "NON-INFERIOR", "WORSE", "INCONCLUSIVE"}


def test_fewer_than_five_seeds_get_a_difference_and_its_interval_but_no_verdict():
    contrast, word = judged(ACCURACY, [0.1, 0.2, 0.3, 0.2])
    result = contrast.at(0.90)
    assert (result.center, result.n, word) == (pytest.approx(0.2), 4, "insufficient seeds")
    assert result.low is not None
    assert judged(ACCURACY, [0.1])[0].at(0.90).low is None


def trained(folder: Path, *deltas: float) -> RunBuilder:
    """A run of tokens, whose losses differ from fp32's by so many nats, seed by seed."""
    losses = [3.1, 3.3, 3.2, 3.05, 3.4][: len(deltas)]
    run = RunBuilder(folder).train("fp32", [None] * len(deltas), test_loss=losses, entropy_nats=3.0)
    arm_losses = [loss + delta for loss, delta in zip(losses, deltas, strict=True)]
    return run.train("amp-bf16", [None] * len(deltas), test_loss=arm_losses, entropy_nats=3.0)


@pytest.mark.parametrize(
    ("deltas", "word"),
    [
        ((0.001, -0.001, 0.0, 0.002, -0.002), "EQUIVALENT"),
        ((0.02, 0.021, 0.022, 0.019, 0.02), "WORSE"),
    ],
)
def test_tokens_are_judged_by_their_loss_of_which_less_is_better(tmp_path, deltas, word):
    result = trained(tmp_path / "run", *deltas).row()
    assert result["accuracy_verdict"] == word
    assert result["loss_change_nats"] == pytest.approx(np.mean(deltas), abs=1e-12)
    assert judged_by(result) is LOSS
    assert np.isnan(result["accuracy_change_points"])


def test_classes_are_judged_by_their_accuracy_alone_also_next_to_tokens(tmp_path):
    run = trained(tmp_path / "run", *[0.02] * 5).train("fp32", [90.0] * 5, batch=64, test_loss=1.0)
    result = run.train("amp-bf16", [90.0] * 5, batch=64, test_loss=2.0).row(batch=64)
    assert (result["accuracy_verdict"], judged_by(result), run.row()["accuracy_verdict"]) == (
        "EQUIVALENT",
        ACCURACY,
        "WORSE",
    )
    assert result[["loss_change_nats", "perplexity"]].isna().all()


def speedup(values: Sequence[float]) -> Contrast:
    """The logarithm of a speedup in some processes."""
    side = learned(values)
    return Contrast(
        metric=SPEED,
        arm=side,
        against=side,
        change=student(values, REPORTED),
        pairing="processes",
        replicates=len(values),
    )


BARELY = speedup([0.018, 0.030, 0.025, 0.029, 0.021])
CLEARLY = speedup([0.399, 0.400, 0.401, 0.400])
NOTHING = [speedup([0.01 * (place % 3), -0.02, 0.015, 0.001]) for place in range(40)]


def test_among_many_speedups_one_that_barely_clears_the_noise_is_chance_and_a_clear_one_is_not():
    assert BARELY.word == CLEARLY.word == "FASTER"
    assert judge_speedups([BARELY, CLEARLY]) == ["FASTER", "FASTER"]
    assert (
        judge_speedups([BARELY, CLEARLY, *NOTHING])
        == ["INCONCLUSIVE", "FASTER"] + ["INCONCLUSIVE"] * 40
    )


@pytest.mark.parametrize(("rounds", "verdict"), [(100, "FASTER"), (5, "INCONCLUSIVE")])
def test_among_many_speedups_of_one_process_one_of_few_rounds_is_chance(run, rounds, verdict):
    run.speed(speedups=[1.2], within=0.09, rounds=rounds)
    for batch in range(1, 40):
        run.speed(speedups=[1.0], within=0.09, batch=batch, rounds=rounds)
    assert run.row()["speed_verdict"] == verdict
