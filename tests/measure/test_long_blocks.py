"""Longer blocks tell whether arms had settled after a switch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bench.measure.rounds import Sizes, check_long_blocks, compare
from bench.spec.trial import Protocol
from tests.measure.simulated import gaussian
from tests.measure.test_rounds import ONE, measure, pair, quick_collection

__all__ = ["quick_collection"]


def test_longer_blocks_tell_when_the_arms_have_not_settled():
    def slow_start(index):
        return 1.2 if index < 5 else 1.0

    for settle, agree in ((0, False), (5, True)):
        machine, arms = pair(ratio=1.5)
        arms[1].transient = slow_start
        sizes = [Sizes(switch_warmup=settle, steps=2)] * 2
        found = compare(arms, sizes, Protocol(), seed=0, clock=machine.clock)
        _, check = check_long_blocks(arms, sizes, found, Protocol(), seed=0, clock=machine.clock)
        assert check.agree is agree
        assert (check.difference > 0.05) is not agree


def test_noise_alone_seldom_makes_longer_blocks_disagree():
    wrong = 0
    for seed in range(20):
        machine, arms = pair(noise=gaussian(seed, 0.05))
        sizes = [Sizes(switch_warmup=2, steps=2)] * 2
        found = compare(arms, sizes, Protocol(time_budget_s=0.3), seed=seed, clock=machine.clock)
        wrong += not check_long_blocks(arms, sizes, found, Protocol(), seed=seed, clock=machine.clock)[1].agree
    assert wrong <= 1


def test_steps_too_long_for_the_check_go_without_it():
    machine, arms = pair()
    sizes = [ONE, ONE]
    found = compare(arms, sizes, Protocol(time_budget_s=0.2), seed=0, clock=machine.clock)
    before = machine.now_ns
    assert check_long_blocks(arms, sizes, found, Protocol(time_budget_s=0.2), seed=0, clock=machine.clock) == [None] * 2
    assert machine.now_ns == before


def test_what_is_disturbed_while_longer_blocks_are_timed_says_nothing_of_the_arms():
    machine, arms = pair(ratio=1.5)
    found = measure(machine, arms)
    slow = itertools.cycle([1.0, 3.0])
    state = {"now": next(slow)}
    arms[1].drift = lambda _now: state["now"]

    def poll():
        was, state["now"] = state["now"], next(slow)
        return "hot" if was > 1 else ""

    _, check = check_long_blocks(arms, [ONE, ONE], found, Protocol(), seed=0, clock=machine.clock, poll=poll)
    assert check.difference == pytest.approx(0, abs=1e-6)
    assert check.agree


@pytest.mark.parametrize(("apart", "agree"), [(0.03, True), (0.05, False)])
def test_longer_blocks_may_differ_by_twice_the_joint_half_width(apart, agree):
    machine, arms = pair(ratio=1.5)  # without noise, so that theirs has no width
    found = measure(machine, arms)
    center = found.logs[1].center - apart
    here = replace(found.logs[1], center=center, low=center - 0.02, high=center + 0.02)
    found = replace(found, logs=(found.logs[0], here))
    _, check = check_long_blocks(arms, [ONE, ONE], found, Protocol(), seed=0, clock=machine.clock)
    assert check.difference == pytest.approx(apart, abs=1e-6)
    assert check.agree is agree
