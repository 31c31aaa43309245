import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.stats import mstats

from bench import stats
from bench.stats import Interval


def test_the_robust_interval_is_yuens():
    values = np.random.default_rng(1).normal(0.4, 0.1, 30)
    interval = stats.robust_interval(values)
    assert (interval.low, interval.high) == pytest.approx(mstats.trimmed_mean_ci(values, (0.2, 0.2), alpha=0.05))


def test_one_value_has_no_interval_and_equal_values_one_without_width():
    assert stats.robust_interval([0.3]) == Interval(center=0.3, low=None, high=None, n=1)
    assert stats.robust_interval([0.3] * 8) == Interval(center=pytest.approx(0.3), low=0.3, high=0.3, n=8)
    assert stats.student_interval([0.3]).half_width is None


def test_students_interval_is_scipys():
    values = [0.41, 0.39, 0.42]
    low, high = scipy_stats.t.interval(0.95, 2, np.mean(values), scipy_stats.sem(values))
    interval = stats.student_interval(values)
    assert (interval.center, interval.low, interval.high, interval.n) == pytest.approx((np.mean(values), low, high, 3))


def test_welchs_interval_is_of_the_difference_of_means():
    a, b = [1.0, 1.1, 0.9], [0.5, 0.7, 0.6, 0.55]
    interval = stats.welch(a, b).interval()
    bounds = scipy_stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert interval.center == pytest.approx(np.mean(a) - np.mean(b))
    assert (interval.low, interval.high) == pytest.approx((bounds.low, bounds.high))
    assert stats.welch([1.0], [0.5]).interval().low is None


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_a_difference_is_beyond_a_margin_where_its_interval_is(margin):
    a, b = [1.0, 1.1, 0.9], [0.5, 0.7, 0.6, 0.55]
    difference = stats.welch(a, b)
    expected = scipy_stats.ttest_ind(a, np.array(b) + margin, equal_var=False).pvalue
    assert difference.beyond(margin) == pytest.approx(expected)
    assert difference.beyond(difference.interval().low) == pytest.approx(0.05)
    assert difference.beyond(1.0) == 1.0
    assert stats.welch([1.0], [0.5]).beyond(0.0) == 1.0


def test_a_difference_that_never_varies_is_beyond_every_smaller_margin():
    estimate = stats.student([0.5, 0.5, 0.5])
    assert (estimate.beyond(0.4), estimate.beyond(0.6), estimate.interval().half_width) == (0.0, 1.0, 0.0)


def test_discoveries_are_those_of_scipy():
    ps = np.random.default_rng(0).uniform(size=50) ** 3
    assert stats.discoveries(ps) == (scipy_stats.false_discovery_control(ps) <= 0.05).tolist()
    assert stats.discoveries([]) == []
    assert stats.discoveries([0.04, 0.9, 0.9]) == [False, False, False]


def test_correlated_values_are_merged_and_independent_ones_are_not():
    rng = np.random.default_rng(3)
    independent = rng.normal(size=200)
    walk = np.empty(200)
    walk[0] = 0.0
    for index in range(1, 200):
        walk[index] = 0.8 * walk[index - 1] + rng.normal()
    assert stats.merge_correlated(independent).size == 200
    merged = stats.merge_correlated(walk)
    assert 10 <= merged.size <= 100
    assert stats.robust_interval(merged).half_width > stats.robust_interval(walk).half_width


def test_a_rounds_log_ratio_takes_both_blocks_of_each_arm():
    assert stats.round_log_ratio((3.0, 3.0), (2.0, 2.0)) == pytest.approx(math.log(1.5))
    assert stats.round_log_ratio((2.0, 8.0), (1.0, 4.0)) == pytest.approx(math.log(2))


def process(center, error=0.01):
    half = error * 1.959963984540054
    return Interval(center=center, low=center - half, high=center + half, n=20)


def test_the_random_effects_mean_is_that_of_statsmodels():
    centers, errors = [0.405, 0.395, 0.42, 0.122, 0.409], [0.004, 0.01, 0.02, 0.08, 0.006]
    pooled = stats.random_effects(centers, errors)  # combine_effects(method_re="iterated", use_t=True) of 0.15.0
    assert (pooled.center, pooled.low, pooled.high) == pytest.approx((0.367583024, 0.230231505, 0.504934543), abs=1e-8)
    alike = stats.random_effects([0.10, 0.12, 0.14], [0.05] * 3)  # differ by less than their errors
    assert (alike.center, alike.low, alike.high) == pytest.approx((0.12, 0.070317250, 0.169682750), abs=1e-8)


GOOD = [process(center) for center in (0.405, 0.404, 0.407, 0.406)]
BAD = process(0.122, error=0.03)


def test_a_process_is_left_out_only_if_it_is_disturbed_and_lies_far_off():
    disturbed = replace(BAD, is_disturbed=True)
    assert stats.left_out([*GOOD, BAD]) == [False] * 5
    assert stats.left_out([*GOOD, disturbed]) == [False] * 4 + [True]
    assert stats.left_out([*GOOD[:2], disturbed, disturbed, disturbed]) == [False] * 2 + [True] * 3  # no cap
    assert stats.left_out([GOOD[0], disturbed, disturbed]) == [False] * 3  # one alone does not show what is right
    assert stats.left_out([replace(GOOD[0], is_disturbed=True), *GOOD[1:]]) == [False] * 4
    assert stats.process_interval([*GOOD, disturbed]).n == 4
    assert stats.process_interval([*GOOD, disturbed]).center == pytest.approx(0.4055, abs=1e-3)


def test_processes_far_off_without_evidence_are_a_group_of_their_own():
    assert stats.groups(GOOD) == [(4, pytest.approx(0.4055))]
    assert stats.groups([*GOOD, BAD]) == [(4, pytest.approx(0.4055)), (1, pytest.approx(0.122))]
    assert stats.groups([*GOOD, replace(BAD, is_disturbed=True)]) == [(4, pytest.approx(0.4055))]


UNKNOWN = [math.nan] * 6


@pytest.mark.parametrize(
    ("load_pct", "switches_per_s", "rounds", "discarded", "seen"),
    [
        ([2, 3, 2, 60, 1, 2], UNKNOWN, [30] * 6, [0] * 6, 3),
        ([40, 55, 48, 60, 44, 50], UNKNOWN, [30] * 6, [0] * 6, None),  # on a shared machine all have some
        (UNKNOWN, [5, 4, 6, 5, 300, 5], [30] * 6, [0] * 6, 4),
        (UNKNOWN, UNKNOWN, [30, 30, 20, 30, 30, 30], [0, 1, 10, 0, 0, 2], 2),
        ([2, 60], UNKNOWN[:2], [30] * 2, [0] * 2, None),  # of two, neither shows what is usual
    ],
)
def test_a_process_shows_evidence_where_a_measure_is_far_above_the_others(
    load_pct, switches_per_s, rounds, discarded, seen
):
    evidence = stats.disturbed(load_pct, switches_per_s, rounds, discarded).tolist()
    assert evidence == [place == seen for place in range(len(rounds))]


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
    assert stats.verdict(Interval(center=1.0, low=low, high=high, n=3), 0.01) == verdict


@pytest.mark.parametrize("between", [0.0, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("runs", [1, 2, 3])
def test_runs_of_two_days_show_no_change_where_there_is_none(between, runs):
    rng, held, changed = np.random.default_rng(runs), 0, 0
    for trial in range(300):
        of_run = (3, 10)[trial % 2]
        sides = [[rng.normal(rng.normal(0, between), 0.01, of_run) for _ in range(runs)] for _ in range(2)]
        within = stats.welch(*(np.concatenate(side) for side in sides))
        interval = stats.between_runs(*sides, within).interval()
        held += interval.low <= 0 <= interval.high
        changed += min(abs(interval.low), abs(interval.high)) > math.log(1.01) and interval.low * interval.high > 0
    assert held / 300 >= 0.92
    assert changed / 300 <= 0.05
