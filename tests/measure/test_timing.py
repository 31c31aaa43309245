import gc
import itertools
import math
import random
from collections import Counter

import pytest

from bench.measure import timing
from bench.measure.timing import MAX_QUADS, Sizes, compare, palindrome, time_block
from bench.trial import Protocol
from tests.measure.simulated import SimulatedMachine, SimulatedRunner, gaussian

MS = 1_000_000
ONE = Sizes(settle=1, steps=1)


def pair(ratio=1.5, machine=None, **disturbances):
    machine = machine or SimulatedMachine()
    arms = [SimulatedRunner("fp32", machine, 3 * MS, **disturbances)]
    arms.append(SimulatedRunner("amp-bf16", machine, 3 * MS / ratio, **disturbances))
    return machine, arms


def measure(machine, arms, sizes=ONE, seed=0, **protocol):
    return compare(arms, [sizes] * len(arms), Protocol(**protocol), seed=seed, clock=machine.clock)


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
    machine, (arm, _) = pair(transient=lambda index: 10.0 if index < 2 else 1.0)
    assert time_block(arm, Sizes(settle=2, steps=4), machine.clock) == 4 * 3 * MS


def test_an_arm_that_ran_last_does_not_settle_again():
    machine, (arm, other) = pair(ratio=1.0)
    settling = Sizes(settle=5, steps=2)
    found = measure(machine, [arm, other], sizes=settling)
    switches = 1 + sum(a.arm != b.arm for a, b in itertools.pairwise(found.blocks))
    assert arm.steps + other.steps == 2 * len(found.blocks) + 5 * switches
    assert switches < len(found.blocks) * 0.7


def test_a_known_ratio_is_found_and_stops_at_the_least_number_of_quads():
    machine, arms = pair(ratio=1.5)
    found = measure(machine, arms, min_quads=20)
    assert found.speedups[0] is None
    assert found.speedups[1].center == pytest.approx(1.5, rel=1e-6)
    assert found.quads == 20
    assert found.converged == (True, True)


def test_drift_cancels_where_consecutive_runs_are_far_off():
    def drift(now_ns):
        return math.exp(now_ns / (400 * MS))  # doubles the step time in 0.28 s

    machine, arms = pair(ratio=1.5, drift=drift)
    found = measure(machine, arms, min_quads=20)
    assert found.speedups[1].center == pytest.approx(1.5, rel=0.01)
    machine, arms = pair(ratio=1.5, drift=drift)
    runs = [time_block(arm, Sizes(settle=0, steps=40), machine.clock) for arm in arms]
    assert runs[0] / runs[1] < 1.3  # the later run paid for the drift


def test_all_arms_share_the_baselines_blocks():
    machine = SimulatedMachine()
    arms = [SimulatedRunner(str(ratio), machine, 4 * MS / ratio) for ratio in (1.0, 1.25, 2.0, 4.0)]
    found = measure(machine, arms)
    assert [speedup.center for speedup in found.speedups[1:]] == pytest.approx([1.25, 2.0, 4.0])
    assert Counter(block.arm for block in found.blocks) == dict.fromkeys(range(4), 2 * found.quads)


def test_noise_wider_than_the_target_ends_unconverged_when_time_is_up():
    machine, arms = pair(noise=gaussian(0, 0.5))
    found = measure(machine, arms, time_budget_s=0.3, target_ci=0.001)
    assert found.converged == (False, False)
    assert found.quads > 5
    assert machine.now_ns < 2 * 0.3e9 * 1.2


def test_more_noise_takes_more_quads():
    quads = []
    for sigma in (0.01, 0.1):
        machine, arms = pair(noise=gaussian(3, sigma))
        found = measure(machine, arms, time_budget_s=600)
        assert all(found.converged)
        assert found.speedups[1].center == pytest.approx(1.5, rel=0.03)
        quads.append(found.quads)
    assert quads[0] == 20 < quads[1] < MAX_QUADS


def test_steps_longer_than_the_budget_still_give_a_few_quads():
    machine, arms = pair(ratio=2)
    found = measure(machine, arms, time_budget_s=0.001)
    assert found.quads == 5
    assert found.converged == (False, False)
    assert found.speedups[1].center == pytest.approx(2)


def test_the_last_look_is_at_every_quad_and_each_arm_is_judged_by_its_own_interval(monkeypatch):
    monkeypatch.setattr(timing, "MAX_QUADS", 44)
    machine = SimulatedMachine()
    arms = [SimulatedRunner("fp32", machine, MS), SimulatedRunner("steady", machine, MS)]
    arms.append(SimulatedRunner("restless", machine, MS, noise=gaussian(1, 0.5)))
    found = measure(machine, arms, time_budget_s=600)
    assert found.speedups[2].n == found.quads == 44
    assert found.converged == (False, True, False)


def test_a_lone_arm_is_timed_until_its_own_time_is_known():
    machine = SimulatedMachine()
    arm = SimulatedRunner("fp32", machine, 2 * MS, noise=gaussian(5, 0.02))
    found = measure(machine, [arm])
    assert found.converged == (True,)
    assert found.speedups == (None,)
    assert {block.arm for block in found.blocks} == {0}


def test_blocks_tell_how_many_optimizer_steps_were_skipped():
    machine = SimulatedMachine()
    arms = [SimulatedRunner("fp32", machine, MS), SimulatedRunner("amp-fp16", machine, MS, skip_every=4)]
    found = measure(machine, arms, sizes=Sizes(settle=1, steps=3))
    skipped = {arm: sum(block.skipped_steps for block in found.blocks if block.arm == arm) for arm in (0, 1)}
    assert skipped == {0: 0, 1: arms[1].steps - arms[1].taken}
    assert skipped[1] == arms[1].steps // 4 > 0


def test_garbage_is_not_collected_while_timing_and_is_again_after():
    machine, arms = pair()
    seen = []
    arms[0].drift = lambda _now: seen.append(gc.isenabled()) or 1.0
    measure(machine, arms)
    assert set(seen) == {False}
    assert gc.isenabled()


@pytest.mark.parametrize(
    "disturbances",
    [
        {"noise": 0.02},
        {"noise": 0.02, "transient": lambda index: 1 + 0.2 * math.exp(-index / 1.2)},
        {"noise": 0.02, "drift": lambda now_ns: math.exp(now_ns / 20e9)},
    ],
    ids=["noise", "transient", "drift"],
)
def test_over_many_runs_the_estimate_is_unbiased_and_the_interval_holds_the_truth(disturbances, monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow where torch is loaded, and nothing here needs it
    errors, covered = [], 0
    for seed in range(120):
        machine, arms = pair(ratio=1.5, **{**disturbances, "noise": gaussian(seed, disturbances["noise"])})
        found = measure(machine, arms, sizes=Sizes(settle=7, steps=1), seed=seed).speedups[1]
        errors.append(math.log(found.center / 1.5))
        covered += found.low <= 1.5 <= found.high
    assert abs(sum(errors) / len(errors)) < 0.001
    assert 0.88 <= covered / 120 <= 0.99


def test_the_watcher_hears_the_running_speedup():
    machine, arms = pair(ratio=1.5)
    heard = []
    compare(arms, [ONE, ONE], Protocol(), seed=0, clock=machine.clock, watch=lambda *news: heard.append(news))
    assert heard[-1][0] == 20
    assert heard[-1][1][1].center == pytest.approx(1.5)
