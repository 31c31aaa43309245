import math

import pytest

from bench.phases.speed.processes import enough
from bench.spec.protocol import Protocol
from bench.stats import around, over_processes

DECIDED = (0.40, 0.41, 0.39)
UNDECIDED = (0.02, -0.05, 0.06)
NEAR = (0.40, 0.41)
APART = 0.12
DISTURBED = 0.13


def processes(centers):
    intervals = [around(center, 0.0025, 11, 20) for center in centers]
    return intervals, [center == DISTURBED for center in centers]


def is_enough(*arms, timed_s=1.0, noise=None, **asked):
    """Whether these log-speedups of arms, each in some processes, are enough."""
    measured = list(map(processes, arms))
    return enough(Protocol(**asked), len(arms[0]), measured, timed_s, noise)


@pytest.mark.parametrize(
    ("centers", "wanted"),
    [
        (NEAR, False),  # fewer than three
        (DECIDED, True),
        (UNDECIDED, False),
        ((0.0, 0.001, -0.001), False),  # three may be alike by chance
        ((0.0, 0.001, -0.001, 0.0), True),  # the same
        ((*NEAR, APART), False),  # one of three lies apart
        ((*NEAR, APART, 0.405), False),  # and may be right
        ((*NEAR, DISTURBED), False),  # it does not count, and two are too few
        ((*NEAR, DISTURBED, 0.405), True),
    ],
)
def test_processes_are_added_until_it_is_decided_what_is_faster(centers, wanted):
    assert is_enough(centers) is wanted


def test_every_arm_must_be_decided_but_those_that_most_processes_did_not_measure():
    assert not is_enough(DECIDED, UNDECIDED)
    assert is_enough(DECIDED, UNDECIDED[:1])


def test_a_width_that_was_asked_for_is_waited_for_whatever_is_decided():
    assert not is_enough(DECIDED, target_ci=0.001)
    assert is_enough(UNDECIDED, target_ci=0.25)


def test_no_more_is_spent_than_may_be_of_processes_and_of_time():
    assert is_enough(UNDECIDED, most_replicates=3)
    assert is_enough(UNDECIDED, timed_s=30.0)
    assert not is_enough(UNDECIDED[:2], timed_s=30.0)


def test_a_decision_must_clear_the_noise_that_was_measured():
    assert is_enough(DECIDED, noise=0.2)
    assert not is_enough(DECIDED, noise=0.5)


def test_an_interval_that_clears_the_threshold_at_the_reported_confidence_alone_ends_nothing():
    centers = (0.024, 0.025, 0.023)
    half = over_processes(*processes(centers)).half_width
    assert 0.024 - half > math.log(1.01)
    assert not is_enough(centers)


def test_a_width_is_reached_where_reports_say_so():
    half = over_processes(*processes(UNDECIDED)).half_width
    of_ratio = math.expm1(half)  # which is wider
    assert not is_enough(UNDECIDED, target_ci=half * 1.001)
    assert is_enough(UNDECIDED, target_ci=of_ratio * 1.001)


@pytest.mark.parametrize(
    ("budget_s", "replicates", "most", "wanted"),
    [
        (30.0, 3, 10, 3.0),
        (1.5, 3, 10, 0.5),
        (200.0, 10, 20, 10.0),
        (3.0, 1, 1, 3.0),
    ],
)
def test_processes_share_the_budget_of_a_comparison(budget_s, replicates, most, wanted):
    protocol = Protocol(
        time_budget_s=budget_s,
        replicates=replicates,
        most_replicates=most,
    )
    assert protocol.process_s == wanted
