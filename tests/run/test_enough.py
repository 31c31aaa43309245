import math

import pytest

from bench.results.records import Speed
from bench.run.execute import enough, log_speedup
from bench.spec.trial import Protocol
from bench.stats import Interval, process_interval

DECIDED = (0.40, 0.41, 0.39)
UNDECIDED = (0.02, -0.05, 0.06)


def processes(centers):
    return [Interval(center=center, low=center - 0.005, high=center + 0.005, n=20) for center in centers]


@pytest.mark.parametrize(
    ("centers", "wanted"),
    [
        (DECIDED[:2], False),  # fewer than three
        (DECIDED, True),
        (UNDECIDED, False),
        ((0.0, 0.001, -0.001), True),  # the same
        ((0.40, 0.41, 0.12), False),  # one of three lies apart
        ((0.40, 0.41, 0.12, 0.405), True),  # and is known to be the one
    ],
)
def test_processes_are_added_until_it_is_decided_what_is_faster(centers, wanted):
    assert enough(Protocol(), len(centers), [processes(centers)], 1.0) is wanted


def test_every_arm_must_be_decided_but_those_that_most_processes_did_not_measure():
    arms = [processes(DECIDED), processes(UNDECIDED)]
    assert not enough(Protocol(), 3, arms, 1.0)
    assert enough(Protocol(), 3, [arms[0], arms[1][:1]], 1.0)


def test_a_width_that_was_asked_for_is_waited_for_whatever_is_decided():
    assert not enough(Protocol(target_ci=0.001), 3, [processes(DECIDED)], 1.0)
    assert enough(Protocol(target_ci=0.05), 3, [processes(DECIDED)], 1.0)
    assert enough(Protocol(target_ci=0.2), 3, [processes(UNDECIDED)], 1.0)


def test_a_width_is_reached_where_reports_say_so():
    half = process_interval(processes(UNDECIDED)).half_width
    assert not enough(Protocol(target_ci=half * 1.001), 3, [processes(UNDECIDED)], 1.0)  # half of a ratio's is wider
    assert enough(Protocol(target_ci=math.expm1(half) * 1.001), 3, [processes(UNDECIDED)], 1.0)


def test_no_more_is_spent_than_may_be():
    assert enough(Protocol(), 10, [processes(UNDECIDED)], 1.0)
    assert enough(Protocol(), 3, [processes(UNDECIDED)], 30.0)
    assert not enough(Protocol(), 2, [processes(UNDECIDED)], 30.0)


@pytest.mark.parametrize(
    ("protocol", "wanted"),
    [
        (Protocol(), 3.0),
        (Protocol(time_budget_s=9.0), 3.0),
        (Protocol(time_budget_s=1.5), 0.5),
        (Protocol(time_budget_s=200.0, replicates=10, most_replicates=20), 10.0),
        (Protocol(time_budget_s=3.0, replicates=1, most_replicates=1), 3.0),
    ],
)
def test_processes_share_the_budget_of_a_comparison(protocol, wanted):
    assert protocol.process_s == wanted


def test_a_speed_without_a_partner_has_no_log_speedup():
    speed = Speed(steady=True, warmup_steps=3, switch_warmup_steps=1, block_steps=4, rounds=5, step_ms=2.0)
    assert log_speedup(speed) is None
    assert speed.timed_s == pytest.approx(2 * 5 * 4 * 2e-3)
