import random
from collections import Counter

import pytest

from bench.measure.timing import Sizes, palindrome, time_block
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
    assert time_block(arm, Sizes(settle=2, steps=4), machine.clock) == 4 * 3 * MS
