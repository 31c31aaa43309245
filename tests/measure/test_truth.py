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
    truth = math.log(RATIO)
    bias, covered = 0.0, 0
    for seed in range(runs):
        log = estimate(seed, RATIO, **DISTURBANCES[name])
        bias += (log.center - truth) / runs
        covered += log.low <= truth <= log.high
    coverage = covered / runs
    print(f"{name}: bias {100 * bias:+.3f} %, coverage {100 * coverage:.1f} %")
    assert abs(bias) < most_bias
    lowest, highest = coverages
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


@pytest.mark.parametrize("runs", [40, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["noise", "AR(1)", "spikes"])
def test_of_a_machine_against_itself_a_difference_is_seldom_claimed(name, runs):
    words = verdicts(1.0, runs, **DISTURBANCES[name])
    wrong = (words.count("FASTER") + words.count("SLOWER")) / runs
    print(f"{name}: {100 * wrong:.2f} % false verdicts")
    assert wrong <= 0.05


@pytest.mark.parametrize("runs", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_one_per_cent_is_found_where_the_machine_is_quiet(runs):
    share = verdicts(1.01, runs, sigma=0.005).count("FASTER") / runs
    print(f"a true 1 % is found in {100 * share:.1f} % of runs")
    assert share >= 0.9
