"""The speed phase: orders of its own in each process, and what counts."""

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.data import random_batches
from bench.measure.rounds import Comparison, TimedBlock
from bench.phases.arms import BATCHES, FEWEST_STEPS, TrainingRunner, step_times
from bench.phases.paired import Paired
from bench.phases.speed import _observe
from bench.results.records import Block, TrialResult
from bench.spec.precisions import PRECISIONS
from bench.spec.trial import Protocol
from bench.stats import Interval
from bench.training import distributed
from bench.training.step import build_arm
from tests.arms import arms
from tests.phases.conftest import CUT, of_kind, run_phase
from tests.processes import together
from tests.training.test_distributed import SUITE

ARMS = ("fp32", "amp-fp16")
CPU = torch.device("cpu")
MS = 1_000_000


@pytest.fixture
def run(tiny_trial, cpu):
    """Time fp32 against amp-fp16 for a moment; return the blocks and the results."""

    def go(replicate=0, names=ARMS, **more):
        quick = Protocol(time_budget_s=0.1, replicates=2, **more)
        sent = run_phase(tiny_trial, cpu, "speed", *names, replicate=replicate, protocol=quick)
        return of_kind(Block, sent), of_kind(TrialResult, sent)

    return go


def test_each_process_takes_the_arms_in_an_order_of_its_own(run):
    first, other = ([block.precision for block in run(replicate)[0]] for replicate in (0, 1))
    shared = 4 * 2  # blocks of two rounds, which a slow machine has time for, too
    assert min(len(first), len(other)) >= shared
    assert first[:shared] != other[:shared]


def timed_rounds(trial, counted=2, *, names=ARMS, **known):
    """Arms that took turns in some rounds that count."""
    runners = [SimpleNamespace(name=name, finite=lambda: True) for name in names]
    known = {"foreign_load_pct": None, "switches_per_s": None} | known
    measured = {"comparison": compared(counted), "cuts": (CUT,) * len(names), "samples": 4}
    return Paired(trial=trial, runners=runners, **measured, **known)


def compared(counted: int) -> Comparison:
    """Two arms of 2 ms a step in the rounds that are counted, and of 90 ms in three that were disturbed."""
    blocks = [
        TimedBlock(arm, number, arm, 5, time_ns=5 * ms * MS, start_s=0.0, skipped_steps=0, invalid=cause)
        for number, (ms, cause) in enumerate([(90, "hot")] * 3 + [(2, "")] * counted)
        for arm in (0, 1)
    ]
    log = Interval(center=0.0, low=-0.001, high=0.001, n=counted)
    known = {"logs": (log, log), "converged": (True, True), "outliers": (0, 0), "invalid": ("hot",) * 3}
    return Comparison(blocks=tuple(blocks), rounds=counted, **known)


def test_the_time_of_a_step_is_that_of_rounds_that_count_unless_none_does(tiny_trial):
    trial = replace(tiny_trial, phase="speed", arms=arms(*ARMS))
    some, none = (timed_rounds(trial, counted).speed(1) for counted in (2, 0))
    assert (some.step_ms, some.samples_per_s) == (2.0, 2000.0)
    assert (some.rounds, some.discarded_rounds) == (2, 3)
    assert none.step_ms == 90.0


# Two processes that train together.


class Slow(TrainingRunner):
    """The second process is late by 5 ms in its every step, and by itself would run fewer of them."""

    taken = 0

    def run(self, steps):
        for _ in range(steps):
            if distributed.rank() == 1:
                time.sleep(0.005)
            super().run(1)
        self.taken += steps


def build(kind, precision, seed=0):
    arm = build_arm(SUITE, SUITE.data, PRECISIONS[precision], CPU, seed=0)
    batches = random_batches(SUITE.data, batch_size=4, count=BATCHES, device=CPU, seed=seed)
    return kind(precision, arm, itertools.cycle(batches))


def observe(rank):
    runner = build(Slow, "amp-bf16", seed=rank)
    before = [value.clone() for value in runner.arm.model.parameters()]
    operations = _observe(runner)
    moved = any(not torch.equal(*pair) for pair in zip(before, runner.arm.model.parameters(), strict=True))
    return {"operations": operations, "moved": moved, "times": step_times(runner, 5.0), "steps": runner.taken}


@pytest.mark.slow
def test_both_processes_take_the_same_single_steps_and_report_the_same(tmp_path):
    first, second = together(tmp_path, observe)
    whole = _observe(build(TrainingRunner, "amp-bf16"))
    for outcome in (first, second):
        assert outcome["operations"].compute_dtypes == whole.compute_dtypes == "bfloat16:100%"
        assert outcome["operations"].flops_per_step == 2 * whole.flops_per_step  # of both parts
        assert not outcome["moved"]
        assert outcome["times"].p50_ms >= 5.0  # the slowest's
    assert first["times"] == second["times"]
    assert first["steps"] == second["steps"] > FEWEST_STEPS
