"""Blocks, ABBA rounds, the stopping rule and the check with longer blocks, on simulated arms."""

import gc
import itertools
import math
import os
import random
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bench.measure import rounds
from bench.measure.disturbance import open_watch
from bench.measure.rounds import Sizes, check_long_blocks, compare, palindrome, time_block
from bench.results.records import Device
from bench.spec.trial import Protocol
from tests.devices.fake_nvml import FakeDriver, FakeGpu
from tests.measure.simulated import MS, SimulatedMachine, SimulatedRunner, gaussian

OWN, OTHER = os.getpid(), 123
ONE = Sizes(switch_warmup=1, steps=1)

ALONE = {"replicates": 1, "most_replicates": 1}
"""A process that has the whole time budget."""


@pytest.fixture(autouse=True)
def quick_collection(monkeypatch):
    """Collecting is slow where torch is loaded; that it is off while timing is tested below all the same."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def pair(ratio=1.5, **disturbances):
    machine = SimulatedMachine()
    steps = {"fp32": 3 * MS, "amp-bf16": 3 * MS / ratio}
    return machine, [SimulatedRunner(name, machine, step_ns, **disturbances) for name, step_ns in steps.items()]


def measure(machine, arms, sizes=ONE, **options):
    watching = {name: options.pop(name) for name in ("poll", "window", "wait", "watch") if name in options}
    protocol = Protocol(**ALONE, **options)
    return compare(arms, [sizes] * len(arms), protocol, seed=0, clock=machine.clock, **watching)


def check(machine, arms, normal, sizes=ONE, **options):
    watching = {"poll": options.pop("poll")} if "poll" in options else {}
    sizes, protocol = [sizes] * len(arms), Protocol(**ALONE, **options)
    return check_long_blocks(arms, sizes, normal, protocol, seed=0, clock=machine.clock, **watching)[1]


def test_two_arms_are_ordered_abba_or_baab_at_random():
    rng = random.Random(1)
    orders = Counter(tuple(palindrome(2, rng)) for _ in range(200))
    assert set(orders) == {(0, 1, 1, 0), (1, 0, 0, 1)}
    assert 60 < orders[0, 1, 1, 0] < 140


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_every_arm_of_a_round_has_the_same_mean_position(arms):
    order = palindrome(arms, random.Random(arms))
    assert {sum(i for i, arm in enumerate(order) if arm == which) for which in range(arms)} == {2 * arms - 1}


def test_a_block_times_its_steps_and_not_the_switch_warm_up():
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


def test_on_an_asynchronous_device_the_clock_is_read_when_warm_up_and_when_all_steps_are_done():
    arm = Queue()
    assert time_block(arm, Sizes(switch_warmup=5, steps=2), lambda: arm.now_ns) == 2 * MS


def test_an_arm_that_ran_last_has_no_switch_warm_up():
    machine, (arm, other) = pair(ratio=1.0)
    comparison = measure(machine, [arm, other], sizes=Sizes(switch_warmup=5, steps=2))
    warm = sum(b.position > 0 and a.arm == b.arm for a, b in itertools.pairwise(comparison.blocks))
    assert arm.steps + other.steps == 2 * len(comparison.blocks) + 5 * (len(comparison.blocks) - warm)
    assert warm == comparison.rounds  # the middle of each


def test_a_known_ratio_is_found_and_stops_at_the_least_number_of_rounds():
    machine, arms = pair(ratio=1.5)
    heard = []
    comparison = measure(machine, arms, min_rounds=20, watch=lambda *news: heard.append(news))
    assert comparison.speedups[0] is None
    assert comparison.speedups[1].center == pytest.approx(1.5, rel=1e-6)
    assert comparison.rounds == 28  # the third interim analysis that finds it narrow enough
    assert comparison.converged == (True, True)
    count, speedups = heard[-1]
    assert (count, speedups[1].center) == (28, pytest.approx(1.5))


def test_all_arms_share_the_baselines_blocks():
    machine = SimulatedMachine()
    arms = [SimulatedRunner(str(ratio), machine, 4 * MS / ratio) for ratio in (1.0, 1.25, 2.0, 4.0)]
    comparison = measure(machine, arms)
    assert [speedup.center for speedup in comparison.speedups[1:]] == pytest.approx([1.25, 2.0, 4.0])
    assert Counter(block.arm for block in comparison.blocks) == dict.fromkeys(range(4), 2 * comparison.rounds)


def test_noise_wider_than_the_target_ends_unconverged_when_time_is_up():
    machine, arms = pair(noise=gaussian(0, 0.5))
    comparison = measure(machine, arms, time_budget_s=0.3, target_ci=0.001)
    assert comparison.converged == (False, False)
    assert comparison.rounds > 5
    assert machine.now_ns < 2 * 0.3e9 * 1.2


@pytest.mark.parametrize(("budget_s", "count"), [(0.005, Protocol().fewest_rounds), (0.0005, 2)])
def test_steps_longer_than_the_budget_still_give_a_few_rounds(budget_s, count):
    machine, arms = pair(ratio=2)
    comparison = measure(machine, arms, time_budget_s=budget_s)
    assert (comparison.rounds, comparison.converged) == (count, (False, False))
    assert comparison.speedups[1].center == pytest.approx(2)


def test_the_last_analysis_is_of_every_round_and_each_arm_is_judged_by_its_own_interval(monkeypatch):
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 44)
    machine = SimulatedMachine()
    arms = [SimulatedRunner("fp32", machine, MS), SimulatedRunner("steady", machine, MS)]
    arms.append(SimulatedRunner("restless", machine, MS, noise=gaussian(1, 0.5)))
    comparison = measure(machine, arms, time_budget_s=600)
    assert comparison.speedups[2].n == comparison.rounds == 44
    assert comparison.converged == (False, True, False)


def test_a_lone_arm_is_timed_until_its_own_time_is_known():
    machine = SimulatedMachine()
    comparison = measure(machine, [SimulatedRunner("fp32", machine, 2 * MS, noise=gaussian(5, 0.02))])
    assert (comparison.converged, comparison.speedups) == ((True,), (None,))
    assert {block.arm for block in comparison.blocks} == {0}


def test_blocks_count_the_optimizer_steps_that_were_skipped():
    machine = SimulatedMachine()
    arms = [SimulatedRunner("fp32", machine, MS), SimulatedRunner("amp-fp16", machine, MS, skip_every=4)]
    comparison = measure(machine, arms, sizes=Sizes(switch_warmup=1, steps=3))
    skipped = {arm: sum(block.skipped_steps for block in comparison.blocks if block.arm == arm) for arm in (0, 1)}
    assert skipped == {0: 0, 1: arms[1].steps - arms[1].taken}
    assert skipped[1] == arms[1].steps // 4 > 0


def test_garbage_is_not_collected_while_timing_and_is_again_after():
    machine, arms = pair()
    seen = []
    arms[0].drift = lambda _now: seen.append(gc.isenabled()) or 1.0
    measure(machine, arms)
    assert set(seen) == {False}
    assert gc.isenabled()


def test_a_disturbed_round_is_kept_with_its_cause_and_does_not_count(monkeypatch):
    monkeypatch.setattr(rounds, "LATE_NS", 0)
    machine, arms = pair(ratio=1.5)
    number = {"now": -1}  # of the round that is timed; every third is disturbed
    arms[1].drift = lambda _now: 3.0 if number["now"] % 3 == 2 else 1.0

    def poll():
        cause = "hot" if number["now"] % 3 == 2 and number["now"] > 0 else ""
        number["now"] += 1
        return cause

    comparison = measure(machine, arms, poll=poll, wait=lambda: number.update(now=0))  # after the last, none is timed
    assert comparison.speedups[1].center == pytest.approx(1.5)
    assert set(comparison.invalid) == {"hot"}
    marked = {block.round for block in comparison.blocks if block.invalid}
    assert len(marked) == len(comparison.invalid) > 5
    assert comparison.rounds == len({block.round for block in comparison.blocks}) - len(marked)
    assert all(block.step_ns > 5 * MS for block in comparison.blocks if block.invalid and block.arm == 1)


@pytest.mark.parametrize("late_ns", [0, 10**12])
def test_what_disturbed_the_last_rounds_and_is_known_only_later_is_asked_for_before_the_end(monkeypatch, late_ns):
    monkeypatch.setattr(rounds, "LATE_NS", late_ns)
    machine, arms = pair()
    waited = []
    comparison = measure(machine, arms, poll=lambda: "hot" if waited else "", wait=lambda: waited.append(True))
    last = comparison.blocks[-1].round
    assert waited == [True]
    assert [block.invalid for block in comparison.blocks if block.round == last] == ["hot"] * 4
    assert (comparison.rounds, comparison.converged) == ((0, (False, False)) if late_ns else (last, (True, True)))
    assert (comparison.speedups[1] is None) is bool(late_ns)


class Bursts:
    """Another program's kernels in bursts of 1.5 s every 5 s, in samples of a driver that are read 0.1 s late."""

    def __init__(self, monkeypatch, machine, period_s, every_s, *, newest=False):
        self.machine, self.period_s, self.every_s, self.newest = machine, period_s, every_s, newest
        self.gpu = FakeGpu("GPU-a", processes={OWN: 1, OTHER: 1} if every_s else {OWN: 1})
        self.sampled, self.ends_s, self.waited_s, self.idle_s = int(self.now_s() / period_s), [], 0.0, math.inf
        FakeDriver([self.gpu], clock=self.now_s).install(monkeypatch)
        monkeypatch.setattr(time, "time", lambda: 1e9 + self.now_s())
        monkeypatch.setattr(time, "sleep", self.sleep)
        device = Device(placement="0", kind="cuda", name="GPU", architecture="Hopper", uuid="GPU-a")
        self.context = open_watch(device, self.now_s)
        self.watch = self.context.__enter__()
        self.watching = {"poll": self.poll, "window": lambda: self.watch.window_s, "wait": self.watch.wait}

    def now_s(self):
        return self.machine.now_ns / 1e9

    def load(self, now_s):
        return self.every_s and now_s % self.every_s > self.every_s - 1.5

    def sleep(self, seconds):
        self.waited_s, self.idle_s = self.waited_s + seconds, min(self.idle_s, self.now_s())
        self.machine.now_ns += round(1e9 * seconds)

    def poll(self):
        self.ends_s.append(self.now_s())
        while (ended_s := (self.sampled + 1) * self.period_s) + 0.1 <= self.now_s():
            spent = [bool(self.load(at_s)) for at_s in np.linspace(ended_s - self.period_s, ended_s, 100)]
            own = 50 if ended_s - self.period_s < self.idle_s else 0  # we compute nothing while we wait
            samples = [(OWN, own), (OTHER, round(100 * np.mean(spent)))]
            stamps = [(int(1e6 * (1e9 + ended_s)) + lag, *sample) for lag, sample in enumerate(samples)]
            self.gpu.work += [stamp for stamp in stamps if stamp[2]]
            self.sampled += 1
        if self.newest:
            self.gpu.work = list({pid: sample for sample in self.gpu.work for pid in sample[1:2]}.values())
        return self.watch.poll()


@pytest.mark.parametrize("every_s", [5.0, 0.0])
@pytest.mark.parametrize(("period_s", "newest"), [(1 / 6, True), (1.0, False)])
def test_rounds_that_another_process_disturbed_are_discarded_although_the_driver_says_so_late(
    monkeypatch, period_s, newest, every_s
):
    machine, arms = pair(noise=gaussian(2, 0.01))
    bursts = Bursts(monkeypatch, machine, period_s, every_s, newest=newest)
    for arm, slower in zip(arms, (1.8, 1.4), strict=True):
        arm.drift = lambda now_ns, slower=slower: slower if bursts.load(now_ns / 1e9) else 1.0
    comparison = measure(machine, arms, target_ci=1e-9, time_budget_s=20.0, **bursts.watching)
    spans = zip(bursts.ends_s, bursts.ends_s[1:], strict=False)
    hit = [any(bursts.load(at_s) for at_s in np.linspace(*span, 20)) for span in spans]
    kept = {block.round for block in comparison.blocks if not block.invalid}
    assert np.mean([hit[number] for number in kept]) <= 0.005
    assert comparison.speedups[1].center == pytest.approx(1.5, rel=0.002)
    assert len(kept) == len(hit) - 1 if not every_s else len(kept) > 0.2 * len(hit)
    assert bursts.waited_s == (1.1 if every_s else 0.1)


def test_rounds_far_from_the_others_are_counted_and_not_left_out():
    machine, arms = pair(noise=gaussian(1, 0.01))
    steady, calls = arms[1].noise, itertools.count()
    arms[1].noise = lambda: 4.0 if next(calls) in (20, 21, 60, 61) else steady()
    comparison = measure(machine, arms)
    assert comparison.outliers[1] == len({block.round for block in comparison.blocks if block.step_ns > 6 * MS}) > 0
    assert comparison.rounds == len(comparison.blocks) / 4


@pytest.mark.parametrize(("warm_up", "agree"), [(0, False), (5, True)])
def test_longer_blocks_disagree_where_the_switch_warm_up_is_too_short(warm_up, agree):
    machine, arms = pair(ratio=1.5)
    arms[1].transient = lambda index: 1.2 if index < 5 else 1.0
    sizes = Sizes(switch_warmup=warm_up, steps=2)
    checked = check(machine, arms, measure(machine, arms, sizes), sizes)
    assert checked.agree is agree
    assert (checked.difference > 0.05) is not agree


def test_steps_too_long_for_the_check_go_without_it():
    machine, arms = pair()
    comparison = measure(machine, arms, time_budget_s=0.2)
    before = machine.now_ns
    assert check(machine, arms, comparison, time_budget_s=0.2) is None
    assert machine.now_ns == before


def test_a_check_whose_rounds_were_all_disturbed_is_known_not_to_have_been_made():
    machine, arms = pair(ratio=1.5)
    checked = check(machine, arms, measure(machine, arms), poll=lambda: "hot")
    assert (checked.difference, checked.agree) == (None, True)


@pytest.mark.parametrize(("difference", "agree"), [(0.03, True), (0.05, False)])
def test_longer_blocks_may_differ_by_twice_the_joint_half_width(difference, agree):
    machine, arms = pair(ratio=1.5)  # without noise, so that theirs has no width
    comparison = measure(machine, arms)
    center = comparison.logs[1].center - difference
    here = replace(comparison.logs[1], center=center, low=center - 0.02, high=center + 0.02)
    checked = check(machine, arms, replace(comparison, logs=(comparison.logs[0], here)))
    assert checked.difference == pytest.approx(difference, abs=1e-6)
    assert checked.agree is agree
