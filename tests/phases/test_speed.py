"""The speed phase: orders of its own in each process, and what disturbed it."""

import itertools
import os
import re
import time
from dataclasses import replace

import pytest
import torch

from bench.data import random_batches
from bench.phases.speed.measure import FEWEST_STEPS, _observe, step_times
from bench.results.records import Block, TrialResult
from bench.spec.precisions import PRECISIONS
from bench.spec.protocol import Protocol
from bench.training import distributed
from bench.training.arms import BATCHES, TrainingRunner
from bench.training.step import build_arm
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import Now, install_gpus, of_kind, result_of, run_phase
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


def disturbing(cause):
    """A GPU on which this process computes, and what disturbs it."""
    if cause == "heat":
        return FakeGpu("GPU-a", work=Now([(os.getpid(), 60)]), reasons=0x20)
    return FakeGpu("GPU-a", work=Now([(os.getpid(), 60), (123, cause)]))


@pytest.mark.parametrize(
    ("cause", "named"),
    [
        (40, r"^another process used the GPU \(pid 123, 40% of the time\)$"),
        (3, "^$"),
        ("heat", r"^thermal slowdown for [\d.]+ s$"),
    ],
)
def test_what_disturbed_the_gpu_while_a_process_was_timed_is_named_in_its_row(
    monkeypatch, tiny_trial, cpu, cause, named
):
    install_gpus(monkeypatch, disturbing(cause))
    result = result_of(run_phase(tiny_trial, replace(cpu, kind="cuda", uuid="GPU-a"), "speed", "fp32"))
    assert re.search(named, result.row.disturbance)
    assert result.status == "ok"
    assert result.row.rounds > 0


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
        assert outcome["times"]["step_p50_ms"] >= 5.0  # the slowest's
    assert first["times"] == second["times"]
    assert first["steps"] == second["steps"] > FEWEST_STEPS
