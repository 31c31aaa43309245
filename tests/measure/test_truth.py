"""The shipped estimator, with its shipped warm-up and stopping rule, on simulated arms whose ratio
is known.
"""

from __future__ import annotations

import gc
import math

import pytest

from bench.stats import verdict
from tests.measure.simulated import DISTURBANCES, estimate

RATIO = 1.5


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):
    # Slow where torch is loaded, and nothing here needs it.
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.mark.parametrize(
    ("runs", "most_bias", "coverages"),
    [(60, 0.002, (0.85, 1.0)), pytest.param(2000, 0.001, (0.93, 0.97), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", DISTURBANCES)
def test_the_estimate_is_unbiased_and_its_interval_holds_the_truth(
    name, runs, most_bias, coverages
):
    estimates = [estimate(seed, RATIO, **DISTURBANCES[name]) for seed in range(runs)]
    bias = sum(log.center - math.log(RATIO) for log in estimates) / runs
    coverage = sum(log.low <= math.log(RATIO) <= log.high for log in estimates) / runs
    print(f"{name}: bias {100 * bias:+.3f} %, coverage {100 * coverage:.1f} %")
    assert abs(bias) < most_bias
    assert coverages[0] <= coverage <= coverages[1]


def verdicts(ratio, runs, **disturbance):
    """Judge each run by a floor from another run of the baseline against itself, as the report
    does.
    """
    words = []
    for seed in range(runs):
        nothing = estimate(10_000 + seed, 1.0, **disturbance)
        words.append(verdict(estimate(seed, ratio, **disturbance), max(-nothing.low, nothing.high)))
    return words


@pytest.mark.parametrize("runs", [40, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["noise", "AR(1)", "spikes"])
def test_of_a_machine_against_itself_a_difference_is_seldom_claimed(name, runs):
    words = verdicts(1.0, runs, **DISTURBANCES[name])
    wrong = sum(word in ("FASTER", "SLOWER") for word in words) / runs
    print(f"{name}: {100 * wrong:.2f} % false verdicts")
    assert wrong <= 0.05


@pytest.mark.parametrize("runs", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_one_per_cent_is_found_where_the_machine_is_quiet(runs):
    share = sum(word == "FASTER" for word in verdicts(1.01, runs, sigma=0.005)) / runs
    print(f"a true 1 % is found in {100 * share:.1f} % of runs")
    assert share >= 0.9
