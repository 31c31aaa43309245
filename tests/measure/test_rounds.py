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


@pytest.fixture(autouse=True)
def quick_collection(monkeypatch):
    """Collecting is slow where torch is loaded; that it is off while timing is tested below all the
    same.
    """
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def machine():
    return SimulatedMachine()


def runner(machine, step_ms, **disturbances):
    return SimulatedRunner("", machine, step_ms * MS, **disturbances)


def runners(machine, *steps_ms):
    return [runner(machine, step_ms) for step_ms in steps_ms]


def measure(machine, arms, sizes=ONE, watch=lambda _comparison: None, **asked):
    """Compare arms in a process that has the whole time budget."""
    protocol = Protocol(replicates=1, most_replicates=1, **asked)
    return compare(
        arms,
        [sizes] * len(arms),
        protocol,
        seed=0,
        clock=machine.clock,
        watch=watch,
    )


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
        assert set(positions.values()) == {2 * arms - 1}
    assert beginnings == set(range(arms))


class Queue:
    """An arm whose device does nothing until it is waited for; a step takes it 1 ms."""

    now_ns = 0
    queued = 0

    def activate(self):
        pass

    def run_steps(self, steps):
        self.queued += steps

    def synchronize(self):
        self.now_ns += self.queued * MS
        self.queued = 0


def test_a_block_is_timed_from_when_its_warm_up_is_done_until_its_steps_are():
    arm = Queue()
    sizes = Sizes(switch_warmup=5, steps=2)
    assert time_block(arm, sizes, lambda: arm.now_ns) == 2 * MS


def test_an_arm_that_ran_last_has_no_switch_warm_up(machine):
    arms = runners(machine, 3, 3)
    sizes = Sizes(switch_warmup=5, steps=2)
    comparison = measure(machine, arms, sizes)
    assert len(comparison.blocks) == 4 * comparison.rounds
    # Of the four blocks of a round, only the third has no switch warm-up.
    steps = sum(arm.steps for arm in arms)
    assert steps == (4 * 2 + 3 * 5) * comparison.rounds


@pytest.mark.parametrize(
    ("min_rounds", "count"),
    [
        (20, 20),
        (25, 30),
    ],
)
def test_known_ratios_are_found_with_one_baseline_by_the_first_look_after_the_least_rounds(
    machine, min_rounds, count
):
    arms = runners(machine, 4, 3.2, 2, 1)
    heard = []
    comparison = measure(machine, arms, min_rounds=min_rounds, watch=heard.append)
    _, *logs = comparison.logs
    speedups = [log.exp().center for log in logs]
    assert speedups == pytest.approx([1.25, 2, 4])
    assert comparison.is_within(0.01)
    assert heard[-1] == comparison
    assert comparison.rounds == count
    blocks = Counter()
    for block in comparison.blocks:
        blocks[block.arm_index] += 1
    assert set(blocks.values()) == {2 * count}


def test_noise_wider_than_the_target_ends_when_time_is_up(machine):
    fp32, narrow = runners(machine, 3, 2)
    fp32.noise = narrow.noise = gaussian(0, 0.5)
    comparison = measure(machine, [fp32, narrow], time_budget_s=0.3)
    assert not comparison.is_within(0.01)
    assert comparison.rounds > 5
    assert 1 < machine.now_ns / (2 * 0.3e9) < 1.2


@pytest.mark.parametrize(
    ("budget_s", "count"),
    [
        (0.005, 3),
        (0.0005, 1),
    ],
)
def test_steps_longer_than_the_budget_still_give_a_few_rounds(machine, budget_s, count):
    arms = runners(machine, 3, 1.5)
    comparison = measure(machine, arms, time_budget_s=budget_s)
    assert comparison.rounds == count
    _, log = comparison.logs
    assert log.exp().center == pytest.approx(2)
    assert comparison.is_within(0.01) is (count > 1)  # of a lone round nothing is known


def test_a_lone_arm_is_timed_until_its_own_time_is_known(machine):
    arm = runner(machine, 2, noise=gaussian(5, 0.02))
    comparison = measure(machine, [arm])
    (log,) = comparison.logs
    assert math.exp(log.center) == pytest.approx(2 * MS, rel=0.01)
    assert comparison.is_within(0.01)
    assert comparison.rounds < 100


def test_blocks_count_the_optimizer_steps_that_were_skipped(machine):
    fp32, scaled = runners(machine, 1, 1)
    scaled.skip_every = 4
    sizes = Sizes(switch_warmup=1, steps=3)
    comparison = measure(machine, [fp32, scaled], sizes)
    skipped = Counter()
    for block in comparison.blocks:
        skipped[block.arm_index] += block.skipped_steps
    assert skipped == {0: 0, 1: scaled.steps // 4}
    assert skipped[1] > 0


def test_garbage_is_not_collected_while_timing_and_is_again_after(machine):
    seen = set()

    def drift(_now_ns):
        seen.add(gc.isenabled())
        return 1.0

    arm = runner(machine, 3, drift=drift)
    measure(machine, [arm])
    assert seen == {False}
    assert gc.isenabled()
