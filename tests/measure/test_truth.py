"""The shipped estimator, with its shipped warm-up and stopping rule, on simulated arms whose ratio
is known.
"""

import gc
import math

import pytest

from bench.stats import verdict
from tests.measure.simulated import DISTURBANCES, estimate

RATIO = 1.5
SLOW = pytest.mark.slow
RUNS = pytest.mark.parametrize("runs", [40, pytest.param(2000, marks=SLOW)])


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):
    # Slow where torch is loaded, and nothing here needs it.
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.mark.parametrize(
    ("runs", "most_bias", "lowest", "highest"),
    [
        (60, 0.002, 0.85, 1.0),
        pytest.param(2000, 0.001, 0.93, 0.97, marks=SLOW),
    ],
)
@pytest.mark.parametrize("name", DISTURBANCES)
def test_the_estimate_is_unbiased_and_its_interval_holds_the_truth(
    name, runs, most_bias, lowest, highest
):
    truth = math.log(RATIO)
    bias = 0.0
    covered = 0
    for seed in range(runs):
        log = estimate(seed, RATIO, **DISTURBANCES[name])
        bias += (log.center - truth) / runs
        covered += log.low <= truth <= log.high
    coverage = covered / runs
    print(f"{name}: bias {bias:+.3%}, coverage {coverage:.1%}")
    assert abs(bias) < most_bias
    assert lowest <= coverage <= highest


def verdicts(ratio, runs, **disturbance):
    """Judge each run by a floor from another run of the baseline against itself, as the report
    does.
    """
    words = []
    for seed in range(runs):
        floor = estimate(10_000 + seed, 1.0, **disturbance)
        noise = max(-floor.low, floor.high)
        log_speedup = estimate(seed, ratio, **disturbance)
        words.append(verdict(log_speedup, noise))
    return words


@RUNS
@pytest.mark.parametrize("name", ["noise", "AR(1)", "spikes"])
def test_of_a_machine_against_itself_a_difference_is_seldom_claimed(name, runs):
    words = verdicts(1.0, runs, **DISTURBANCES[name])
    wrong = words.count("FASTER") + words.count("SLOWER")
    print(f"{name}: {wrong} false verdicts of {runs}")
    assert wrong <= 0.05 * runs


@RUNS
def test_one_per_cent_is_found_where_the_machine_is_quiet(runs):
    words = verdicts(1.01, runs, sigma=0.005)
    right = words.count("FASTER")
    print(f"a true 1 % is found in {right} of {runs} runs")
    assert right >= 0.9 * runs
