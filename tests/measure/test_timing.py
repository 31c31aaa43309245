import random
from collections import Counter

import pytest

from bench.measure.rounds import Sizes, palindrome, time_block
from tests.measure.simulated import SimulatedMachine, SimulatedRunner

MS = 1_000_000


def test_two_arms_are_ordered_abba_or_baab_at_random():
    chance = random.Random(1)
    orders = Counter(tuple(palindrome(2, chance)) for _ in range(200))
    assert set(orders) == {(0, 1, 1, 0), (1, 0, 0, 1)}
    assert 60 < orders[0, 1, 1, 0] < 140


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
def test_every_arm_of_a_quad_has_the_same_mean_position(arms):
    order = palindrome(arms, random.Random(arms))
    means = {sum(i for i, arm in enumerate(order) if arm == which) / 2 for which in range(arms)}
    assert means == {(2 * arms - 1) / 2}


def test_a_block_times_its_steps_and_not_the_settling_ones():
    machine = SimulatedMachine()
    arm = SimulatedRunner("fp32", machine, 3 * MS, transient=lambda index: 10.0 if index < 2 else 1.0)
    assert time_block(arm, Sizes(switch_warmup=2, steps=4), machine.clock) == 4 * 3 * MS


class Queue:
    """An arm whose device does nothing until it is waited for; a step takes it 1 ms."""

    def __init__(self):
        self.now_ns = self.queued = 0

    def activate(self):
        pass

    def run(self, steps):
        self.queued += steps

    def synchronize(self):
        self.now_ns, self.queued = self.now_ns + self.queued * MS, 0


def test_on_an_asynchronous_device_settling_is_over_before_the_clock_starts_and_the_steps_before_it_stops():
    arm = Queue()
    assert time_block(arm, Sizes(switch_warmup=5, steps=2), lambda: arm.now_ns) == 2 * MS
