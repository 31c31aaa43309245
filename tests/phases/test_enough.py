import math

import pytest

from bench.phases.speed.processes import enough
from bench.spec.protocol import Protocol
from bench.stats import around, over_processes

DECIDED = (0.40, 0.41, 0.39)
UNDECIDED = (0.02, -0.05, 0.06)


def processes(centers):
    intervals = [around(center, 0.0025, 11, 20) for center in centers]
    return intervals, [center == DISTURBED for center in centers]


NEAR, APART, DISTURBED = (0.40, 0.41), 0.12, 0.13


@pytest.mark.parametrize(
    ("asked", "arms", "timed_s", "wanted"),
    [
        # Processes are added until it is decided what is faster.
        ({}, [NEAR], 1.0, False),  # fewer than three
        ({}, [DECIDED], 1.0, True),
        ({}, [UNDECIDED], 1.0, False),
        ({}, [(0.0, 0.001, -0.001)], 1.0, False),  # three may be alike by chance
        ({}, [(0.0, 0.001, -0.001, 0.0)], 1.0, True),  # the same
        ({}, [(*NEAR, APART)], 1.0, False),  # one of three lies apart
        ({}, [(*NEAR, APART, 0.405)], 1.0, False),  # and may be right
        ({}, [(*NEAR, DISTURBED)], 1.0, False),  # it does not count, and two are too few
        ({}, [(*NEAR, DISTURBED, 0.405)], 1.0, True),
        # Every arm must be decided but those that most processes did not measure.
        ({}, [DECIDED, UNDECIDED], 1.0, False),
        ({}, [DECIDED, UNDECIDED[:1]], 1.0, True),
        # A width that was asked for is waited for whatever is decided.
        ({"target_ci": 0.001}, [DECIDED], 1.0, False),
        ({"target_ci": 0.05}, [DECIDED], 1.0, True),
        ({"target_ci": 0.25}, [UNDECIDED], 1.0, True),
        # No more is spent than may be, of processes and of time.
        ({"most_replicates": 3}, [UNDECIDED], 1.0, True),
        ({}, [UNDECIDED], 30.0, True),
        ({}, [UNDECIDED[:2]], 30.0, False),
    ],
)
def test_a_cell_has_enough_processes_when_they_answer_or_have_spent_what_they_may(
    asked, arms, timed_s, wanted
):
    measured = [processes(centers) for centers in arms]
    assert enough(Protocol(**asked), len(arms[0]), measured, timed_s) is wanted


def test_a_decision_must_clear_the_noise_that_was_measured():
    assert enough(Protocol(), 3, [processes(DECIDED)], 1.0, noise=0.2)
    assert not enough(Protocol(), 3, [processes(DECIDED)], 1.0, noise=0.5)


def test_an_interval_that_clears_the_threshold_at_the_reported_confidence_alone_ends_nothing():
    centers = (0.024, 0.025, 0.023)
    half = over_processes(*processes(centers)).half_width
    assert 0.024 - half > math.log(1.01)
    assert not enough(Protocol(), 3, [processes(centers)], 1.0)


def test_a_width_is_reached_where_reports_say_so():
    half = over_processes(*processes(UNDECIDED)).half_width
    # Half of a ratio's is wider.
    assert not enough(Protocol(target_ci=half * 1.001), 3, [processes(UNDECIDED)], 1.0)
    assert enough(Protocol(target_ci=math.expm1(half) * 1.001), 3, [processes(UNDECIDED)], 1.0)


@pytest.mark.parametrize(
    ("protocol", "wanted"),
    [
        (Protocol(), 3.0),
        (Protocol(time_budget_s=1.5), 0.5),
        (Protocol(time_budget_s=200.0, replicates=10, most_replicates=20), 10.0),
        (Protocol(time_budget_s=3.0, replicates=1, most_replicates=1), 3.0),
    ],
)
def test_processes_share_the_budget_of_a_comparison(protocol, wanted):
    assert protocol.process_s == wanted
