import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.stats import mstats

from bench import stats
from bench.stats import Interval


def test_a_process_is_the_trimmed_mean_of_its_rounds_with_yuens_interval():
    values = np.random.default_rng(1).normal(0.4, 0.1, 30)
    interval = stats.rounds_interval(values)
    assert (interval.low, interval.high) == pytest.approx(
        mstats.trimmed_mean_ci(values, (0.2, 0.2), alpha=0.05)
    )
    assert stats.of_rounds(interval.center, interval.error, 30) == interval


def test_one_value_has_no_interval_and_equal_values_one_without_width():
    assert stats.rounds_interval([0.3]).ends == (0.3, None, None)
    assert stats.rounds_interval([0.3] * 8).ends == pytest.approx((0.3, 0.3, 0.3))
    assert stats.student([0.3]).half_width is None


def test_welchs_interval_is_of_the_difference_of_means():
    a, b = [1.0, 1.1, 0.9], [0.5, 0.7, 0.6, 0.55]
    bounds = scipy_stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert stats.welch(a, b).ends == pytest.approx(
        (np.mean(a) - np.mean(b), bounds.low, bounds.high)
    )
    assert stats.welch([1.0], [0.5]).low is None


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_a_difference_is_beyond_a_margin_where_its_interval_is(margin):
    a, b = [1.0, 1.1, 0.9], [0.5, 0.7, 0.6, 0.55]
    difference = stats.welch(a, b)
    expected = scipy_stats.ttest_ind(a, np.array(b) + margin, equal_var=False).pvalue
    assert difference.chance(margin) == pytest.approx(expected)
    assert difference.chance(difference.low) == pytest.approx(0.05)
    assert difference.at(0.99).chance(difference.at(0.99).low) == pytest.approx(0.01)
    assert difference.chance(1.0) == 1.0
    assert stats.welch([1.0], [0.5]).chance(0.0) == 1.0


def test_a_difference_that_never_varies_is_beyond_every_smaller_margin():
    estimate = stats.student([0.5, 0.5, 0.5])
    assert (estimate.chance(0.4), estimate.chance(0.6), estimate.half_width) == (0.0, 1.0, 0.0)


def test_discoveries_are_those_of_scipy():
    ps = np.random.default_rng(0).uniform(size=50) ** 3
    assert stats.discoveries(dict(enumerate(ps))) == {
        *np.flatnonzero(scipy_stats.false_discovery_control(ps) <= 0.05)
    }
    assert stats.discoveries({}) == set()
    assert stats.discoveries({"a": 0.04, "b": 0.9, "c": 0.9}) == set()


def over(centers, is_disturbed, confidence=stats.REPORTED):
    return stats.over_processes(
        [stats.around(center, 0.0, 1.0, 1) for center in centers], is_disturbed, confidence
    )


@pytest.mark.parametrize(
    ("is_disturbed", "counted"),
    [
        ([False] * 4, [0, 1, 2, 3]),
        ([False, False, False, True], [0, 1, 2]),  # whatever its value
        ([True, False, False, True], [1, 2]),
        ([True, False, True, True], [0, 1, 2, 3]),  # one alone does not show what is right
        ([True] * 4, [0, 1, 2, 3]),
    ],
)
def test_a_cell_is_students_t_over_the_processes_without_evidence(is_disturbed, counted):
    centers = [0.40, 0.42, 0.44, 0.10]
    values = [centers[place] for place in counted]
    low, high = scipy_stats.t.interval(
        0.975, len(values) - 1, np.mean(values), scipy_stats.sem(values)
    )
    interval = over(centers, is_disturbed)
    assert (*interval.ends, interval.n) == pytest.approx((np.mean(values), low, high, len(values)))


def test_processes_that_agree_by_chance_still_differ_by_a_least_spread():
    interval = over([0.4] * 4, [False] * 4)
    assert interval.error == pytest.approx(stats.LEAST_SPREAD / 2)
    lone = stats.rounds_interval([0.39, 0.4, 0.41])
    assert stats.over_processes([lone], [True]) is lone


def test_the_noise_is_how_far_off_1_the_interval_reaches():
    low = over([0.0, -0.01, -0.02], [False] * 3).low
    processes = [stats.around(center, 0.0, 1.0, 1) for center in (0.0, -0.01, -0.02)]
    assert stats.aa_noise(processes, [False] * 3) == pytest.approx(math.expm1(-low))
    assert stats.aa_noise([], []) is None
    assert stats.aa_noise(processes[:1], [False]) is None


UNKNOWN = [math.nan] * 6
CALM = [""] * 6


@pytest.mark.parametrize(
    ("named", "load_pct", "switches_per_s", "seen"),
    [
        (CALM, [2, 3, 2, 60, 1, 2], UNKNOWN, [3]),
        (CALM, [40, 55, 48, 60, 44, 50], UNKNOWN, []),  # on a shared machine all have some
        (CALM, UNKNOWN, [5, 4, 6, 5, 300, 5], [4]),
        (["", "thermal slowdown for 1 s", *CALM[2:]], UNKNOWN, UNKNOWN, [1]),
        (["heat"] * 6, UNKNOWN, UNKNOWN, [0, 1, 2, 3, 4, 5]),
        (CALM[:2], [2, 60], UNKNOWN[:2], []),  # of two, neither shows what is usual
    ],
)
def test_a_process_shows_evidence_where_it_is_named_or_a_measure_is_far_above_the_others(
    named, load_pct, switches_per_s, seen
):
    evidence = stats.disturbed(
        named, {"foreign_load_pct": load_pct, "switches_per_s": switches_per_s}
    )
    assert np.flatnonzero(evidence).tolist() == seen


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.02, 1.5, "FASTER"),
        (0.5, 0.98, "SLOWER"),
        (0.995, 1.005, "SAME"),
        (0.9, 1.1, "INCONCLUSIVE"),
        (1.005, 1.2, "INCONCLUSIVE"),
        (None, None, "INCONCLUSIVE"),
    ],
)
def test_the_verdict_needs_the_whole_interval_on_one_side_of_the_margin(low, high, verdict):
    ends = [None if end is None else math.log(end) for end in (low, high)]
    assert (
        stats.verdict(Interval(center=0.0, low=ends[0], high=ends[1], n=3), math.log1p(0.01))
        == verdict
    )
