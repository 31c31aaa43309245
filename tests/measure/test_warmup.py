"""Warm-up, switches between arms, and the length of blocks, on simulated arms."""

import itertools

import pytest

from bench.measure.warmup import FEWEST_BLOCKS, QUEUED_BLOCK_S, prepare, warm_up
from tests.measure.simulated import MS, SimulatedMachine, SimulatedRunner, measured_log_speedup


@pytest.fixture
def machine():
    return SimulatedMachine()


@pytest.fixture
def warmed(machine):
    """Return a function that warms an arm up."""

    def warm(step_ns, cap_s=60, **disturbances):
        arm = SimulatedRunner("fp32", machine, step_ns, **disturbances)
        return warm_up(arm, cap_s, machine.clock)

    return warm


@pytest.fixture
def sizes_of(machine):
    """Return a function that chooses the sizes of an arm's blocks."""

    def choose(step_ns, budget_s=3.0, **properties):
        arm = SimulatedRunner("fp32", machine, step_ns, **properties)
        (plan,) = prepare([arm], budget_s, clock=machine.clock)
        return plan.sizes

    return choose


def first(factors):
    """Return noise that is these factors in the first steps, and then none."""
    return itertools.chain(factors, itertools.repeat(1.0)).__next__


def test_warm_up_goes_on_until_step_times_are_steady(machine, warmed):
    def falling(now_ns):
        return max(1.0, 10 - 9 * now_ns / (300 * MS))

    warm = warmed(MS, drift=falling)
    assert warm.steady
    assert warm.step_ns == pytest.approx(MS, rel=0.02)
    assert machine.now_ns >= 300 * MS


@pytest.mark.parametrize(
    ("step_ns", "cap_s", "factors"),
    [
        (2 * MS, 60.0, [150.0] * 8),
        (10 * MS, 2.0, [1000.0] * 3),
    ],
    ids=["not taken for the steady state", "while kernels load, take nothing of the cap"],
)
def test_first_steps_that_are_far_slower_are_left_out(warmed, step_ns, cap_s, factors):
    warm = warmed(step_ns, cap_s=cap_s, noise=first(factors))
    assert warm.steady
    assert warm.step_ns == pytest.approx(step_ns)


def test_warm_up_gives_up_at_the_cap_and_says_so(machine, warmed):
    def rising(now_ns):
        return 1 + now_ns / (20 * MS)

    warm = warmed(MS, cap_s=1.0, drift=rising)
    assert not warm.steady
    assert machine.now_ns >= 1e9


@pytest.mark.parametrize(
    ("scatter", "steady"),
    [
        ([], True),
        ([1.0, 1.0, 1.0, 0.3, 1.6], False),
    ],
)
def test_steps_longer_than_the_cap_are_steady_if_two_of_them_agree(warmed, scatter, steady):
    warm = warmed(2000 * MS, cap_s=2.25, noise=first(scatter))
    assert warm.steady is steady


def test_warm_up_waits_for_allocations_to_end(machine):
    arm = SimulatedRunner("fp32", machine, MS)
    arm.fingerprint = lambda: min(arm.steps, 300)
    warm = warm_up(arm, cap_s=60, clock=machine.clock)
    assert warm.steady
    assert warm.steps > 300


@pytest.mark.parametrize(
    ("step_ns", "untimed"),
    [
        (0.05 * MS, 12),
        (10 * MS, 3),
        (500 * MS, 1),
        (2000 * MS, 0),
    ],
)
def test_steps_after_a_switch_are_untimed(sizes_of, step_ns, untimed):
    assert sizes_of(step_ns).switch_warmup == untimed


@pytest.mark.parametrize(
    ("step_ns", "look_ns", "steps"),
    [
        (50_000, 0, 100),
        (50_000, 10_000, 167),  # 10 µs are 0.1 % of 167 steps that take 60 µs by the clock
        (20 * MS, 0, 1),
    ],
)
def test_a_block_is_long_against_the_scheduler_and_the_clock(
    machine, sizes_of, step_ns, look_ns, steps
):
    machine.look_ns = look_ns
    assert sizes_of(step_ns).steps == steps


@pytest.mark.parametrize(
    ("budget_s", "block_s"),
    [
        (3.0, QUEUED_BLOCK_S),
        (0.6, 0.6 / FEWEST_BLOCKS),
        (0.006, 0.005),
    ],
)
def test_blocks_of_queued_steps_take_a_quarter_of_a_second_or_as_long_as_the_budget_allows(
    sizes_of, budget_s, block_s
):
    sizes = sizes_of(MS, budget_s, asynchronous=True)
    assert sizes.steps == pytest.approx(1000 * block_s, abs=1)


def test_blocks_of_queued_steps_hide_the_draining_of_the_queue_in_a_speedup(machine):
    fp32 = SimulatedRunner("fp32", machine, 6 * MS, launch_ns=0.2 * MS, asynchronous=True)
    narrow = SimulatedRunner("amp-bf16", machine, 4 * MS, launch_ns=0.5 * MS, asynchronous=True)
    speedup = measured_log_speedup(machine, [fp32, narrow], seed=0).exp()
    assert speedup.center == pytest.approx(1.5, rel=0.002)
