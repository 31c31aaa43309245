"""What ran, and single steps, of two processes that train together."""

from __future__ import annotations

import time

import pytest
import torch

from bench.data import random_batches
from bench.phases.runner import BATCHES, FEWEST_STEPS, TorchRunner, step_times
from bench.phases.speed import _look
from bench.spec.precisions import PRECISIONS
from bench.spec.techniques import Techniques
from bench.training import distributed
from bench.training.step import build_arm
from tests.processes import together
from tests.training.test_synced_norm import SUITE

CPU = torch.device("cpu")


class Slow(TorchRunner):
    """The second process is late by 5 ms in its every step, and would by itself run fewer of them."""

    def run(self, steps):
        for _ in range(steps):
            if distributed.rank() == 1:
                time.sleep(0.005)
            TorchRunner.run(self, 1)


def look(rank):
    batches = random_batches(SUITE.data, batch_size=4, count=BATCHES, device=CPU, seed=rank)
    chosen = Techniques(sync_bn=distributed.ranks() > 1)
    arm = build_arm(SUITE, SUITE.data, PRECISIONS["amp-bf16"], CPU, seed=0, techniques=chosen)
    before = [value.clone() for value in arm.model.parameters()]
    runner = Slow(name="amp-bf16", arm=arm, batches=batches, asynchronous=False)
    operations = _look(runner)
    moved = any(not torch.equal(one, other) for one, other in zip(before, arm.model.parameters(), strict=True))
    times = step_times(runner, 5.0)
    return {"operations": operations, "moved": moved, "times": times, "steps": runner.turn}


@pytest.mark.slow
def test_both_look_at_the_same_steps_and_tell_the_same(tmp_path):
    first, second = together(tmp_path, look)
    whole = _look_alone()
    for found in (first, second):
        assert found["operations"].compute_dtypes == whole.compute_dtypes == "bfloat16:100%"
        assert found["operations"].flops_per_step == 2 * whole.flops_per_step  # of both parts
        assert not found["moved"]
        assert found["times"].p50_ms >= 5.0  # the slowest's
    assert first["times"] == second["times"]
    assert first["steps"] == second["steps"] > FEWEST_STEPS


def disagree(rank):
    """Time single steps by clocks of their own."""
    arm = build_arm(SUITE, SUITE.data, PRECISIONS["fp32"], CPU, seed=0)
    batches = random_batches(SUITE.data, batch_size=4, count=BATCHES, device=CPU, seed=rank)
    distributed.clock = lambda: iter((0, 10**7 * (1 + rank))).__next__
    with pytest.raises(AssertionError, match="as many steps each"):
        step_times(TorchRunner(name="fp32", arm=arm, batches=batches, asynchronous=False), 1.0)


def test_processes_that_would_take_other_numbers_of_steps_do_not_begin(tmp_path):
    assert together(tmp_path, disagree) == [None, None]


def _look_alone():
    arm = build_arm(SUITE, SUITE.data, PRECISIONS["amp-bf16"], CPU, seed=0)
    batches = random_batches(SUITE.data, batch_size=4, count=BATCHES, device=CPU, seed=0)
    return _look(TorchRunner(name="amp-bf16", arm=arm, batches=batches, asynchronous=False))
