"""Speedups at a shared clock and of each arm alone, under a simulated power governor (``perf/sustained.py``)."""

from __future__ import annotations

import pytest

from bench.measure.sustained import ALONE_READINGS, APART, READINGS, ROUNDS, UNSETTLED, Clocks, each_alone
from tests.measure.simulated import MS, GovernedMachine, GovernedRunner, governed, sustained
from tests.measure.test_rounds import Bursts

CAPPED = (0.8, 1.3)
"""Powers of two arms over the cap."""


@pytest.fixture
def machine():
    return GovernedMachine()


@pytest.mark.parametrize("tau_s", [0.5, 2.0])
def test_arms_that_share_a_clock_are_flagged_and_right_alone(tau_s):
    for seed in range(3):
        result = governed(seed, tau_s, CAPPED)
        assert result.shared == pytest.approx(1.8, abs=0.01)
        assert result.apart > APART
        assert result.readings >= READINGS
        assert result.alone.center == pytest.approx(sustained(CAPPED), rel=0.007)
        assert not result.unsettled


def test_below_the_cap_nothing_is_flagged_and_both_figures_agree():
    result = governed(0, 0.5, (0.7, 0.95))
    assert result.apart < APART
    assert result.shared == pytest.approx(1.8, rel=0.004)
    assert result.alone.center == pytest.approx(1.8, rel=0.007)


@pytest.mark.parametrize(("tau_s", "powers"), [(20.0, CAPPED), (10.0, (1.1, 1.3))])
def test_a_clock_that_goes_on_falling_has_not_settled(tau_s, powers):
    """In the second case the first run ends at the full clock, before its power has reached the cap."""
    assert governed(0, tau_s, powers).unsettled == UNSETTLED


def test_without_a_clock_to_read_nothing_runs_for_it_and_nothing_is_known(machine):
    runner = GovernedRunner("fp32", machine, MS, 1.0)
    clocks = Clocks([runner], lambda: None, machine.clock)
    clocks.settle(0, MS)
    clocks.look(1, 0)
    assert (runner.steps, clocks.apart(0), clocks.flags) == (0, None, False)


@pytest.mark.parametrize("missed", [3, ALONE_READINGS])
def test_a_reading_that_was_not_had_does_not_count(machine, missed):
    readings = iter([None, 2.0] + [None] * missed + [2.0] * (ALONE_READINGS - missed) + [None, 2.0])
    clocks = Clocks([GovernedRunner("fp32", machine, MS, 1.0)], lambda: next(readings), machine.clock)
    clocks.settle(0, MS)
    for number in (1, 3):
        clocks.look(number, 0)
    assert clocks.apart(0) == (None if missed == ALONE_READINGS else 0.0)


def test_the_clock_is_read_in_every_second_round_and_later_in_every_eighth(machine):
    clocks = Clocks([GovernedRunner("fp32", machine, MS, 1.0)], lambda: 1.0, machine.clock)
    clocks.settle(0, MS)
    read = []
    for number in range(41):
        clocks.look(number, 0)
        read += [number] * (len(clocks.turns[0]) > len(read))
    assert read == [1, 3, 5, 7, 9, 11, 13, 15, 17, 25, 33]


@pytest.mark.parametrize("busy_s", [(25.0, 26.0), (122.1, 122.4)])  # in the third run, and at the end of the last
def test_each_run_begins_with_its_arms_switches_and_what_disturbs_one_is_named(monkeypatch, machine, busy_s):
    runners = [GovernedRunner(name, machine, 20 * MS, 0.5) for name in ("fp32", "amp-bf16")]
    order: list[int] = []
    bursts = Bursts(monkeypatch, machine, 1.0, 500.0)
    bursts.load = lambda now_s: busy_s[0] < now_s < busy_s[1]
    results = each_alone(
        runners,
        [5, 5],
        seed=0,
        activate=order.append,
        poll=bursts.poll,
        wait=bursts.watch.wait,
        clock=machine.seconds,
        sleep=machine.sleep,
    )
    assert [sorted(order[start : start + 4]) for start in range(0, 4 * ROUNDS, 4)] == [[0, 0, 1, 1]] * ROUNDS
    assert "pid 123" in results[1].unsettled
    assert results[0].step_s == pytest.approx(0.02)


@pytest.mark.parametrize(("step_s", "settles"), [(0.02, True), (2.0, True), (9.0, False)])
def test_a_run_of_few_bursts_has_not_settled(machine, step_s, settles):
    runners = [GovernedRunner(name, machine, int(step_s * 1e9), 0.5) for name in ("fp32", "amp-bf16")]
    told = {"seed": 0, "activate": lambda _arm: None, "clock": machine.seconds, "sleep": machine.sleep}
    assert [not result.unsettled for result in each_alone(runners, [1, 1], **told)] == [settles] * 2
