"""What ran, and single steps, of two processes that train together."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from bench.data import random_batches
from bench.phases.arms import BATCHES, FEWEST_STEPS, TrainingRunner, step_times
from bench.phases.speed import _observe
from bench.spec.precisions import PRECISIONS
from bench.spec.techniques import Techniques
from bench.training import distributed
from bench.training.step import build_arm
from tests.processes import together
from tests.training.test_distributed import SUITE

CPU = torch.device("cpu")


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
    techniques = Techniques(sync_bn=distributed.ranks() > 1)
    arm = build_arm(SUITE, SUITE.data, PRECISIONS[precision], CPU, seed=0, techniques=techniques)
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
    for found in (first, second):
        assert found["operations"].compute_dtypes == whole.compute_dtypes == "bfloat16:100%"
        assert found["operations"].flops_per_step == 2 * whole.flops_per_step  # of both parts
        assert not found["moved"]
        assert found["times"].p50_ms >= 5.0  # the slowest's
    assert first["times"] == second["times"]
    assert first["steps"] == second["steps"] > FEWEST_STEPS


def disagree(rank):
    """Time single steps by clocks of their own."""
    runner = build(TrainingRunner, "fp32", seed=rank)
    distributed.clock = lambda: iter((0, 10**7 * (1 + rank))).__next__
    with pytest.raises(AssertionError, match="as many steps each"):
        step_times(runner, 1.0)


@pytest.mark.slow
def test_processes_that_would_take_other_numbers_of_steps_do_not_begin(tmp_path):
    assert together(tmp_path, disagree) == [None, None]
