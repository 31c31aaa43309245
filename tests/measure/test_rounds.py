"""Blocks, ABBA rounds and the stopping rule, on simulated arms."""

import gc
import math
import random
from collections import Counter

import pytest

from bench.measure.rounds import Sizes, compare, palindrome, time_block
from bench.spec.protocol import Protocol
from tests.measure.simulated import MS, SimulatedMachine, SimulatedRunner, gaussian

ONE = Sizes(switch_warmup=1, steps=1)

ALONE = {"replicates": 1, "most_replicates": 1}
"""A process that has the whole time budget."""


@pytest.fixture(autouse=True)
def quick_collection(monkeypatch):
    """Collecting is slow where torch is loaded; that it is off while timing is tested below all the
    same.
    """
    monkeypatch.setattr(gc, "collect", lambda: 0)


def pair(ratio=1.5, **disturbances):
    machine = SimulatedMachine()
    fp32 = SimulatedRunner("fp32", machine, 3 * MS, **disturbances)
    return machine, [fp32, SimulatedRunner("amp-bf16", machine, 3 * MS / ratio, **disturbances)]


def measure(machine, arms, sizes=ONE, **options):
    watch = options.pop("watch", lambda _comparison: None)
    protocol = Protocol(**ALONE, **options)
    return compare(arms, [sizes] * len(arms), protocol, seed=0, clock=machine.clock, watch=watch)


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_rounds_have_random_orders_in_which_every_arm_has_the_same_mean_position(arms):
    rng = random.Random(1)
    beginnings = set()
    for _ in range(50):
        order = palindrome(arms, rng)
        beginnings.add(order[0])
        positions = Counter()
        for position, arm_index in enumerate(order):
            positions[arm_index] += position
        assert positions == dict.fromkeys(range(arms), 2 * arms - 1)
    assert beginnings == set(range(arms))


class Queue:
    """An arm whose device does nothing until it is waited for; a step takes it 1 ms."""

    def __init__(self):
        self.now_ns = self.queued = 0

    def activate(self):
        pass

    def run_steps(self, steps):
        self.queued += steps

    def synchronize(self):
        self.now_ns, self.queued = self.now_ns + self.queued * MS, 0


def test_a_block_is_timed_from_when_its_warm_up_is_done_until_its_steps_are():
    arm = Queue()
    assert time_block(arm, Sizes(switch_warmup=5, steps=2), lambda: arm.now_ns) == 2 * MS


def test_an_arm_that_ran_last_has_no_switch_warm_up():
    machine, (arm, other) = pair(ratio=1.0)
    comparison = measure(machine, [arm, other], sizes=Sizes(switch_warmup=5, steps=2))
    rounds = comparison.rounds
    assert len(comparison.blocks) == 4 * rounds
    # Of the four blocks of a round, only the third has no switch warm-up.
    assert arm.steps + other.steps == (4 * 2 + 3 * 5) * rounds


@pytest.mark.parametrize(("min_rounds", "count"), [(20, 20), (25, 30)])
def test_known_ratios_are_found_with_one_baseline_by_the_first_look_after_the_least_rounds(
    min_rounds, count
):
    machine = SimulatedMachine()
    ratios = (1.0, 1.25, 2.0, 4.0)
    arms = [SimulatedRunner("", machine, 4 * MS / ratio) for ratio in ratios]
    heard = []
    comparison = measure(machine, arms, min_rounds=min_rounds, watch=heard.append)
    speedups = [log.exp().center for log in comparison.logs[1:]]
    assert speedups == pytest.approx(ratios[1:])
    assert comparison.is_within(0.01)
    assert heard[-1] == comparison
    assert comparison.rounds == count
    blocks = Counter(block.arm_index for block in comparison.blocks)
    assert blocks == dict.fromkeys(range(4), 2 * count)


def test_noise_wider_than_the_target_ends_when_time_is_up():
    machine, arms = pair(noise=gaussian(0, 0.5))
    comparison = measure(machine, arms, time_budget_s=0.3)
    assert not comparison.is_within(0.01)
    assert comparison.rounds > 5
    assert 2 * 0.3e9 < machine.now_ns < 2 * 0.3e9 * 1.2


@pytest.mark.parametrize(("budget_s", "count"), [(0.005, Protocol().fewest_rounds), (0.0005, 1)])
def test_steps_longer_than_the_budget_still_give_a_few_rounds(budget_s, count):
    machine, arms = pair(ratio=2)
    heard = []
    comparison = measure(machine, arms, time_budget_s=budget_s, watch=heard.append)
    assert comparison.rounds == count
    assert comparison.logs[1].exp().center == pytest.approx(2)
    assert heard[-1] == comparison
    assert comparison.is_within(0.01) is (count > 1)  # of a lone round nothing is known


def test_a_lone_arm_is_timed_until_its_own_time_is_known():
    machine = SimulatedMachine()
    arm = SimulatedRunner("fp32", machine, 2 * MS, noise=gaussian(5, 0.02))
    comparison = measure(machine, [arm])
    assert math.exp(comparison.logs[0].center) == pytest.approx(2 * MS, rel=0.01)
    assert comparison.is_within(0.01)
    assert comparison.rounds < 100


def test_blocks_count_the_optimizer_steps_that_were_skipped():
    machine = SimulatedMachine()
    fp32 = SimulatedRunner("fp32", machine, MS)
    scaled = SimulatedRunner("amp-fp16", machine, MS, skip_every=4)
    comparison = measure(machine, [fp32, scaled], sizes=Sizes(switch_warmup=1, steps=3))
    skipped = Counter()
    for block in comparison.blocks:
        skipped[block.arm_index] += block.skipped_steps
    assert skipped == {0: 0, 1: scaled.steps // 4}
    assert skipped[1] > 0


def test_garbage_is_not_collected_while_timing_and_is_again_after():
    machine, arms = pair()
    seen = []
    arms[0].drift = lambda _now: seen.append(gc.isenabled()) or 1.0
    measure(machine, arms)
    assert set(seen) == {False}
    assert gc.isenabled()
