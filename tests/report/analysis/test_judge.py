"""Parity: what differences over seeds show, in accuracy and in the loss of tokens."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from bench.report.analysis.arms import Arm
from bench.report.analysis.changes import Contrast, estimate
from bench.report.analysis.judge import judge_speedups, judged_by, parity
from bench.report.reading.load import KEY
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, LOSS, SPEED
from bench.stats import REPORTED, student
from tests.report.builders import RunBuilder


def learned(values: Sequence[float]) -> Arm:
    """An arm that was trained with seeds from 0."""
    return Arm(
        key=tuple(KEY),
        values=np.array(values),
        replicates=range(len(values)),
    )


def judged(metric: Metric, deltas: Sequence[float]) -> tuple[Contrast, str]:
    """Contrast values that differ from fp32's so much, seed by seed."""
    fp32 = np.zeros(len(deltas))
    contrast = estimate(metric, learned(deltas), learned(fp32))
    assert contrast is not None
    return contrast, parity(contrast)


def is_shown(gains: NDArray[np.float64], alternative: str, limit: float) -> bool:
    """Whether the mean gain is shown to be greater or less than a limit."""
    result = scipy_stats.ttest_1samp(gains, limit, alternative=alternative)
    return result.pvalue < 0.05


@pytest.mark.parametrize("metric", [ACCURACY, LOSS], ids=lambda metric: metric.unit)
def test_a_verdict_is_scipys_two_one_sided_tests_at_five_per_cent(metric):
    rng = np.random.default_rng(1)
    margin = metric.margin
    words = set()
    for _ in range(300):
        spread = margin * rng.uniform(0.2, 1.8)
        center = margin * rng.uniform(-2.4, 2.4)
        count = rng.integers(5, 9)
        gains = rng.normal(center, spread, size=count)
        expected = "INCONCLUSIVE"
        if is_shown(gains, "less", -margin):
            expected = "WORSE"
        elif is_shown(gains, "greater", -margin):
            expected = "NON-INFERIOR"
            if is_shown(gains, "less", margin):
                expected = "EQUIVALENT"
        deltas = metric.sign * gains
        contrast, word = judged(metric, deltas)
        words.add(word)
        assert word == expected
        result = contrast.at(0.90)
        interval = scipy_stats.ttest_1samp(deltas, 0).confidence_interval(0.90)
        assert result.center == pytest.approx(deltas.mean())
        assert (result.low, result.high) == pytest.approx(interval)
        assert result.n == count
    assert words == {
        "EQUIVALENT",
        "NON-INFERIOR",
        "WORSE",
        "INCONCLUSIVE",
    }


def test_fewer_than_five_seeds_get_a_difference_and_its_interval_but_no_verdict():
    contrast, word = judged(ACCURACY, [0.1, 0.2, 0.3, 0.2])
    result = contrast.at(0.90)
    assert word == "insufficient seeds"
    assert result.center == pytest.approx(0.2)
    assert result.n == 4
    assert result.low is not None
    of_one_seed, _ = judged(ACCURACY, [0.1])
    assert of_one_seed.at(0.90).low is None


def trained(run: RunBuilder, deltas: Sequence[float]) -> None:
    """Train on tokens, to losses that differ from fp32's by so many nats, seed by seed."""
    losses = np.array([3.1, 3.3, 3.2, 3.05, 3.4])
    unknown = [None] * 5
    for name, of_arm in (("fp32", losses), ("amp-bf16", losses + deltas)):
        run.train(name, unknown, test_loss=list(of_arm), entropy_nats=3.0)


@pytest.mark.parametrize(
    ("deltas", "word"),
    [
        ((0.001, -0.001, 0.0, 0.002, -0.002), "EQUIVALENT"),
        ((0.02, 0.021, 0.022, 0.019, 0.02), "WORSE"),
    ],
)
def test_tokens_are_judged_by_their_loss_of_which_less_is_better(run, deltas, word):
    trained(run, deltas)
    result = run.row()
    assert result["accuracy_verdict"] == word
    assert result["loss_change_nats"] == pytest.approx(np.mean(deltas), abs=1e-12)
    assert judged_by(result) is LOSS
    assert np.isnan(result["accuracy_change_points"])


def test_classes_are_judged_by_their_accuracy_alone_also_next_to_tokens(run):
    trained(run, [0.02] * 5)
    for name, loss in (("fp32", 1.0), ("amp-bf16", 2.0)):
        run.train(name, [90.0] * 5, batch=64, test_loss=loss)
    of_tokens = run.row()
    of_classes = run.row(batch=64)
    assert of_tokens["accuracy_verdict"] == "WORSE"
    assert of_classes["accuracy_verdict"] == "EQUIVALENT"
    assert judged_by(of_classes) is ACCURACY
    assert of_classes[["loss_change_nats", "perplexity"]].isna().all()


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
NOTHING = speedup([0.01, -0.02, 0.015, 0.001])


def test_among_many_speedups_one_that_barely_clears_the_noise_is_chance_and_a_clear_one_is_not():
    assert judge_speedups([BARELY, CLEARLY]) == ["FASTER", "FASTER"]
    many = [NOTHING] * 40
    barely, clearly, *nothing = judge_speedups([BARELY, CLEARLY, *many])
    assert barely == "INCONCLUSIVE"
    assert clearly == "FASTER"
    assert set(nothing) == {"INCONCLUSIVE"}


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        (100, "FASTER"),
        (5, "INCONCLUSIVE"),
    ],
)
def test_among_many_speedups_of_one_process_one_of_few_rounds_is_chance(run, rounds, verdict):
    run.speed(speedups=[1.2], within=0.09, rounds=rounds)
    for batch in range(1, 40):
        run.speed(speedups=[1.0], within=0.09, batch=batch, rounds=rounds)
    assert run.row()["speed_verdict"] == verdict
