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
    ends = mstats.trimmed_mean_ci(values, (0.2, 0.2), alpha=0.05)
    assert interval.ends[1:] == pytest.approx(ends)
    assert stats.of_rounds(interval.center, interval.error, 30) == interval


def test_one_value_has_no_interval_and_equal_values_one_without_width():
    for estimate in (stats.rounds_interval, stats.student):
        assert estimate([0.3]).half_width is None
        equal = estimate([0.3] * 8)
        assert equal.center == pytest.approx(0.3)
        assert equal.half_width == pytest.approx(0.0)


def test_welchs_interval_is_of_the_difference_of_means_which_is_beyond_a_margin_where_it_is():
    new = np.array([1.0, 1.1, 0.9])
    old = np.array([0.5, 0.7, 0.6, 0.55])
    difference = stats.welch(new, old)
    welch = scipy_stats.ttest_ind(new, old, equal_var=False)
    ends = welch.confidence_interval()
    assert difference.ends == pytest.approx((0.4125, *ends))
    assert difference.chance(0.0) == pytest.approx(welch.pvalue)
    beyond = scipy_stats.ttest_ind(new - 0.1, old, equal_var=False)
    assert difference.chance(0.1) == pytest.approx(beyond.pvalue)
    assert difference.chance(1.0) == 1.0
    wide = difference.at(0.99)
    assert difference.chance(wide.low) == pytest.approx(0.01)


def test_single_values_have_no_difference_and_one_that_never_varies_is_beyond_smaller_margins():
    single = stats.welch([1.0], [0.5])
    assert single.low is None
    assert single.chance(0.0) == 1.0
    constant = stats.student([0.5, 0.5, 0.5])
    assert constant.chance(0.4) == 0.0
    assert constant.chance(0.6) == 1.0


def test_discoveries_are_those_of_scipy():
    chances = np.random.default_rng(0).uniform(size=50) ** 3
    controlled = scipy_stats.false_discovery_control(chances)
    expected = np.flatnonzero(controlled <= 0.05)
    numbered = dict(enumerate(chances))
    assert stats.discoveries(numbered) == {*expected}
    assert not stats.discoveries({})
    assert not stats.discoveries({0: 0.04, 1: 0.9, 2: 0.9})


def single(*centers):
    """Processes with a single round."""
    return [stats.rounds_interval([center]) for center in centers]


@pytest.mark.parametrize(
    ("is_disturbed", "counted"),
    [
        ([False] * 4, [0, 1, 2, 3]),
        ([False, False, False, True], [0, 1, 2]),  # whatever its value
        ([True, False, False, True], [1, 2]),
        ([True, False, True, True], [0, 1, 2, 3]),  # one alone does not show what is right
    ],
)
def test_a_cell_is_students_t_over_the_processes_without_evidence(is_disturbed, counted):
    centers = np.array([0.40, 0.42, 0.44, 0.10])
    interval = stats.over_processes(single(*centers), is_disturbed)
    values = centers[counted]
    count = len(values)
    mean = values.mean()
    error = scipy_stats.sem(values)
    ends = scipy_stats.t.interval(0.975, count - 1, mean, error)
    assert interval.n == count
    assert interval.ends == pytest.approx((mean, *ends))


def test_processes_that_agree_by_chance_still_differ_by_a_least_spread():
    equal = single(0.4, 0.4, 0.4, 0.4)
    interval = stats.over_processes(equal, [False] * 4)
    assert 2 * interval.error == pytest.approx(stats.LEAST_SPREAD)
    lone = stats.rounds_interval([0.39, 0.4, 0.41])
    assert stats.over_processes([lone], [True]) is lone


def test_the_noise_is_how_far_off_1_the_interval_reaches():
    processes = single(0.0, -0.01, -0.02)
    calm = [False] * 3
    interval = stats.over_processes(processes, calm)
    noise = stats.aa_noise(processes, calm)
    assert noise == pytest.approx(math.expm1(-interval.low))
    assert stats.aa_noise([], []) is None
    assert stats.aa_noise(processes[:1], calm[:1]) is None


UNKNOWN = [math.nan] * 4
CALM = [""] * 4


@pytest.mark.parametrize(
    ("named", "load_pct", "switches_per_s", "seen"),
    [
        (CALM, [2, 3, 60, 1], UNKNOWN, [2]),
        (CALM, [40, 55, 60, 48], UNKNOWN, []),  # on a shared machine all have some
        (CALM, UNKNOWN, [5, 4, 6, 300], [3]),
        (["", "thermal slowdown for 1 s", "", ""], UNKNOWN, UNKNOWN, [1]),
        (CALM[:2], [2, 60], UNKNOWN[:2], []),  # of two, neither shows what is usual
    ],
)
def test_a_process_shows_evidence_where_it_is_named_or_a_measure_is_far_above_the_others(
    named, load_pct, switches_per_s, seen
):
    measures = {"foreign_load_pct": load_pct, "switches_per_s": switches_per_s}
    evidence = stats.disturbed(named, measures)
    assert np.flatnonzero(evidence).tolist() == seen


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.02, 1.5, "FASTER"),
        (0.5, 0.98, "SLOWER"),
        (0.995, 1.005, "SAME"),
        (1.005, 1.2, "INCONCLUSIVE"),
        (None, None, "INCONCLUSIVE"),
    ],
)
def test_the_verdict_needs_the_whole_interval_on_one_side_of_the_margin(low, high, verdict):
    ratio = Interval(center=1.0, low=low, high=high, n=3)
    margin = math.log(1.01)
    assert stats.verdict(ratio.on(math.log), margin) == verdict
