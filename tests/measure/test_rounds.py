import gc
import itertools
import math
from collections import Counter

import pytest

from bench.measure import rounds
from bench.measure.rounds import MAX_ROUNDS, Sizes, compare, time_block
from bench.spec.trial import Protocol
from tests.measure.simulated import SimulatedMachine, SimulatedRunner, gaussian

MS = 1_000_000
ONE = Sizes(switch_warmup=1, steps=1)


@pytest.fixture(autouse=True)
def quick_collection(monkeypatch):
    """Collecting is slow where torch is loaded; that it is off while timing is tested below all the same."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def pair(ratio=1.5, machine=None, **disturbances):
    machine = machine or SimulatedMachine()
    arms = [SimulatedRunner("fp32", machine, 3 * MS, **disturbances)]
    arms.append(SimulatedRunner("amp-bf16", machine, 3 * MS / ratio, **disturbances))
    return machine, arms


def measure(machine, arms, sizes=ONE, seed=0, **protocol):
    return compare(arms, [sizes] * len(arms), Protocol(**protocol), seed=seed, clock=machine.clock)


def test_an_arm_that_ran_last_does_not_settle_again():
    machine, (arm, other) = pair(ratio=1.0)
    settling = Sizes(switch_warmup=5, steps=2)
    found = measure(machine, [arm, other], sizes=settling)
    settled = sum(b.position > 0 and a.arm == b.arm for a, b in itertools.pairwise(found.blocks))
    assert arm.steps + other.steps == 2 * len(found.blocks) + 5 * (len(found.blocks) - settled)
    assert settled == found.rounds  # the middle of each


def test_a_known_ratio_is_found_and_stops_at_the_least_number_of_quads():
    machine, arms = pair(ratio=1.5)
    found = measure(machine, arms, min_rounds=20)
    assert found.speedups[0] is None
    assert found.speedups[1].center == pytest.approx(1.5, rel=1e-6)
    assert found.rounds == 28  # the third look that finds it narrow enough
    assert found.converged == (True, True)


def test_drift_cancels_where_consecutive_runs_are_far_off():
    def drift(now_ns):
        return math.exp(now_ns / (800 * MS))  # doubles the step time in 0.55 s

    machine, arms = pair(ratio=1.5, drift=drift)
    found = measure(machine, arms, min_rounds=20)
    assert found.speedups[1].center == pytest.approx(1.5, rel=0.01)
    machine, arms = pair(ratio=1.5, drift=drift)
    runs = [time_block(arm, Sizes(switch_warmup=0, steps=40), machine.clock) for arm in arms]
    assert runs[0] / runs[1] < 1.3  # the later run paid for the drift


def test_all_arms_share_the_baselines_blocks():
    machine = SimulatedMachine()
    arms = [SimulatedRunner(str(ratio), machine, 4 * MS / ratio) for ratio in (1.0, 1.25, 2.0, 4.0)]
    found = measure(machine, arms)
    assert [speedup.center for speedup in found.speedups[1:]] == pytest.approx([1.25, 2.0, 4.0])
    assert Counter(block.arm for block in found.blocks) == dict.fromkeys(range(4), 2 * found.rounds)


def test_noise_wider_than_the_target_ends_unconverged_when_time_is_up():
    machine, arms = pair(noise=gaussian(0, 0.5))
    found = measure(machine, arms, time_budget_s=0.3, target_ci=0.001)
    assert found.converged == (False, False)
    assert found.rounds > 5
    assert machine.now_ns < 2 * 0.3e9 * 1.2


def test_more_noise_takes_more_quads():
    quads = []
    for sigma in (0.01, 0.1):
        machine, arms = pair(noise=gaussian(3, sigma))
        found = measure(machine, arms, time_budget_s=600)
        assert all(found.converged)
        assert found.speedups[1].center == pytest.approx(1.5, rel=0.03)
        quads.append(found.rounds)
    assert quads[0] == 28 < quads[1] < MAX_ROUNDS


def test_steps_longer_than_the_budget_still_give_a_few_quads():
    machine, arms = pair(ratio=2)
    found = measure(machine, arms, time_budget_s=0.01)
    assert found.rounds == 5
    assert found.converged == (False, False)
    assert found.speedups[1].center == pytest.approx(2)


def test_the_last_look_is_at_every_quad_and_each_arm_is_judged_by_its_own_interval(monkeypatch):
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 44)
    machine = SimulatedMachine()
    arms = [SimulatedRunner("fp32", machine, MS), SimulatedRunner("steady", machine, MS)]
    arms.append(SimulatedRunner("restless", machine, MS, noise=gaussian(1, 0.5)))
    found = measure(machine, arms, time_budget_s=600)
    assert found.speedups[2].n == found.rounds == 44
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
    found = measure(machine, arms, sizes=Sizes(switch_warmup=1, steps=3))
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


def test_the_watcher_hears_the_running_speedup():
    machine, arms = pair(ratio=1.5)
    heard = []
    compare(arms, [ONE, ONE], Protocol(), seed=0, clock=machine.clock, watch=lambda *news: heard.append(news))
    assert heard[-1][0] == 28
    assert heard[-1][1][1].center == pytest.approx(1.5)


def test_steps_far_longer_than_the_budget_end_after_two_quads():
    machine, arms = pair(ratio=2)
    found = measure(machine, arms, time_budget_s=0.0005)
    assert found.rounds == 2
    assert found.converged == (False, False)
    assert found.speedups[1].center == pytest.approx(2)


def test_a_disturbed_quad_is_kept_with_its_cause_and_does_not_count(monkeypatch):
    machine, arms = pair(ratio=1.5)
    said = itertools.cycle(["", "", "hot"])
    slow = {"now": 1.0}
    arms[1].drift = lambda _now: slow["now"]

    def poll():
        cause = next(said)
        slow["now"] = 3.0 if cause == "" and said_next() == "hot" else 1.0
        return cause

    def said_next():
        nonlocal said
        first, said = itertools.tee(said)
        return next(first)

    monkeypatch.setattr(rounds, "LATE_NS", 0)
    found = compare(arms, [ONE, ONE], Protocol(), seed=0, clock=machine.clock, poll=poll)
    assert found.speedups[1].center == pytest.approx(1.5)
    assert set(found.invalid) == {"hot"}
    marked = {block.round for block in found.blocks if block.invalid}
    assert len(marked) == len(found.invalid) > 5
    assert found.rounds == len({block.round for block in found.blocks}) - len(marked)
    assert all(block.step_ns > 5 * MS for block in found.blocks if block.invalid and block.arm == 1)


def test_what_ended_a_tenth_of_a_second_before_a_cause_is_told_does_not_count_either():
    machine, arms = pair()
    round_ns = 4 * 2 * 2.5 * MS  # four blocks of about two steps
    calls = itertools.count()
    found = compare(
        arms, [ONE, ONE], Protocol(), seed=0, clock=machine.clock, poll=lambda: "hot" if next(calls) == 12 else ""
    )
    discarded = sorted({block.round for block in found.blocks if block.invalid})
    assert discarded[-1] == 11
    assert len(discarded) == len(found.invalid)
    assert 0.1e9 / round_ns - 2 <= len(discarded) - 1 <= 0.1e9 / round_ns + 3
    assert found.rounds == 28


def test_where_every_quad_is_disturbed_nothing_is_said():
    machine, arms = pair()
    found = compare(
        arms, [ONE, ONE], Protocol(time_budget_s=0.1), seed=0, clock=machine.clock, poll=lambda: "another process"
    )
    assert found.rounds == 0
    assert found.speedups == (None, None)
    assert found.converged == (False, False)
    assert machine.now_ns < 12 * 0.2e9


def test_quads_far_from_the_others_are_counted_and_not_left_out():
    machine, arms = pair(noise=gaussian(1, 0.01))
    steady, calls = arms[1].noise, itertools.count()
    arms[1].noise = lambda: 4.0 if next(calls) in (20, 21, 60, 61) else steady()
    found = measure(machine, arms)
    assert found.outliers[1] == len({block.round for block in found.blocks if block.step_ns > 6 * MS}) > 0
    assert found.rounds == len(found.blocks) / 4


def test_timing_ends_at_three_looks_running_that_find_the_interval_narrow():
    machine = SimulatedMachine()
    # Steps are so short that intervals are made at looks alone.
    arms = [SimulatedRunner("fp32", machine, MS / 30), SimulatedRunner("amp-bf16", machine, MS / 50)]
    heard = []

    def watch(quad, speedups):
        arms[1].noise = lambda: 3.0 if 22 <= quad < 28 else 1.0  # hidden by the trimming at the second look
        if speedups[1] is not None and (not heard or heard[-1].n != speedups[1].n):
            heard.append(speedups[1])

    protocol = Protocol(min_rounds=20)
    found = compare(arms, [ONE, ONE], protocol, seed=0, clock=machine.clock, watch=watch)
    narrow = [math.log(one.high / one.low) / 2 <= protocol.target_ci for one in heard]
    assert narrow == [True, True, False, True, True, True]
    assert all(found.converged)
