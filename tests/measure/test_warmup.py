"""Warm-up, switches between arms, and the length of blocks, on simulated arms."""

import itertools

import pytest

from bench.measure.rounds import Sizes, time_block
from bench.measure.warmup import WarmUp, block_steps, empty_block_ns, prepare, switch_profiles, warm_up
from tests.measure.simulated import MS, SimulatedMachine, SimulatedRunner, gaussian


def warm(step_ns):
    return WarmUp(steady=True, steps=10, step_ns=step_ns)


def one(step_ns, *, look_ns=0, **disturbances):
    """Return a machine and the only arm on it."""
    machine = SimulatedMachine(look_ns)
    return machine, SimulatedRunner("fp32", machine, step_ns, **disturbances)


def warmed(step_ns, cap_s=60, expected_ms=0.0, **disturbances):
    """Warm an arm up; return how, and the time that it took."""
    machine, arm = one(step_ns, **disturbances)
    return warm_up(arm, cap_s, machine.clock, expected_ms=expected_ms), machine.now_ns


def test_warm_up_goes_on_until_step_times_are_steady():
    warm, took_ns = warmed(MS, drift=lambda now: 1 + 9 * max(0.0, 1 - now / (300 * MS)))
    assert (warm.steady, warm.step_ns) == (True, pytest.approx(MS, rel=0.02))
    assert took_ns >= 300 * MS


def test_first_steps_that_are_far_slower_are_not_taken_for_the_steady_state():
    steps = itertools.count()
    warm, _ = warmed(2 * MS, noise=lambda: 150.0 if next(steps) < 8 else 1.0)
    assert (warm.steady, warm.step_ns) == (True, pytest.approx(2 * MS))


def test_warm_up_gives_up_at_the_cap_and_says_so():
    warm, took_ns = warmed(MS, cap_s=1.0, drift=lambda now: 1 + now / (20 * MS))
    assert not warm.steady
    assert took_ns >= 1e9


def test_first_steps_in_which_kernels_are_loaded_take_nothing_of_the_time_to_warm_up():
    steps = itertools.count()
    warm, _ = warmed(10 * MS, cap_s=2.0, noise=lambda: 1000.0 if next(steps) < 3 else 1.0)
    assert warm.steady


@pytest.mark.parametrize(("expected_ms", "windows"), [(10.0, 1), (5.0, 2)])
def test_the_first_window_is_enough_where_steps_take_as_long_as_in_an_earlier_process(expected_ms, windows):
    assert warmed(10 * MS, expected_ms=expected_ms)[0].steps == 3 + 20 * windows  # 0.2 s of 10 ms


def test_warm_up_waits_for_allocations_to_end():
    machine, arm = one(MS)
    arm.noise = lambda: setattr(arm, "new_allocations", min(arm.steps, 300)) or 1.0
    result = warm_up(arm, cap_s=60, clock=machine.clock)
    assert result.steady
    assert result.steps > 300


def test_the_switch_warm_up_covers_the_transient_after_a_switch():
    machine = SimulatedMachine()
    arms = [
        SimulatedRunner(name, machine, step, transient=lambda index: 1 + 0.2 * 0.5**index, noise=gaussian(seed, 0.002))
        for seed, (name, step) in enumerate((("fp32", 2 * MS), ("amp-bf16", MS)))
    ]
    for profile in switch_profiles(arms, [warm(2 * MS), warm(MS)], budget_s=10, clock=machine.clock):
        assert profile.transient_pct == pytest.approx(20, abs=1)
        assert 6 <= profile.switch_warmup <= 9  # 0.2 · 0.5^k falls below 0.5 % at k = 6, and half as many again


def test_noise_alone_is_not_taken_for_a_transient():
    machine = SimulatedMachine()
    arms = [SimulatedRunner(str(n), machine, MS, noise=gaussian(n, 0.01)) for n in range(2)]
    profiles = switch_profiles(arms, [warm(MS)] * 2, budget_s=10, clock=machine.clock)
    assert all(profile.switch_warmup <= 3 for profile in profiles)


def test_without_time_to_watch_one_step_of_switch_warm_up_is_taken_and_no_transient_claimed():
    machine = SimulatedMachine()
    arms = [SimulatedRunner(str(n), machine, n * MS) for n in (500, 2000)]
    profiles = switch_profiles(arms, [warm(500 * MS), warm(2000 * MS)], budget_s=2, clock=machine.clock)
    assert [(profile.switch_warmup, profile.transient_pct) for profile in profiles] == [(1, None), (0, None)]
    assert machine.now_ns == 0


def test_a_block_is_long_against_the_clock():
    machine, arm = one(50_000, look_ns=10_000)
    empty = empty_block_ns(arm, machine.clock)
    assert empty == 10_000
    assert block_steps(arm, warm(50_000), 0, empty, machine.clock) == 200  # 10 µs of 200 × 50 µs is 0.1 %


def test_an_asynchronous_device_gets_blocks_that_hide_the_draining_of_its_queue():
    machine, arm = one(MS, launch_ns=0.1 * MS, asynchronous=True)
    steps = block_steps(arm, warm(MS), 1, 0.0, machine.clock)
    lengths = (steps // 2, steps, 4 * steps)
    half, short, long = (time_block(arm, Sizes(switch_warmup=1, steps=n), machine.clock) / n for n in lengths)
    assert short / long - 1 < 0.002 < half / long - 1


@pytest.mark.parametrize(("step_ms", "steps"), [(1, 500), (60, 9), (700, 1)])
def test_where_there_is_no_time_to_compare_lengths_a_block_takes_half_a_second(step_ms, steps):
    machine = SimulatedMachine()
    arm = SimulatedRunner("fp32", machine, step_ms * MS, asynchronous=True)
    assert block_steps(arm, warm(step_ms * MS), 1, 0.0, machine.clock, cap_s=0.01) == steps
    assert machine.now_ns == 0


def test_blocks_of_a_noisy_arm_take_as_long_as_those_of_the_longest_so_that_none_hides_an_excess():
    machine = SimulatedMachine()
    calm = SimulatedRunner("fp32", machine, 20 * MS, launch_ns=MS, asynchronous=True)
    noisy = SimulatedRunner("bf16", machine, 10 * MS, launch_ns=MS, asynchronous=True, noise=gaussian(1, 0.3))
    fp32, bf16 = (cut.sizes.steps for cut in prepare([calm, noisy], 1.0, clock=machine.clock))
    assert fp32 > 10
    assert bf16 * 10 == pytest.approx(fp32 * 20, rel=0.35)  # a step's time is known as well as the noise allows
