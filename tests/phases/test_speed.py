"""The speed phase: orders of its own in each process, and what disturbed it."""

import itertools
import os
import re
from dataclasses import replace

import pytest
import torch

from bench.data import random_batches
from bench.phases.speed.measure import _observe
from bench.results.records import Block, TrialResult
from bench.spec.precisions import PRECISIONS
from bench.spec.protocol import Protocol
from bench.training.arms import BATCHES, TrainingRunner
from bench.training.step import build_arm
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import Now, install_gpus, of_kind, result_of, run_phase
from tests.processes import together
from tests.training.test_distributed import SUITE

ARMS = ("fp32", "amp-fp16")
CPU = torch.device("cpu")


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


def build(seed=0):
    arm = build_arm(SUITE, SUITE.data, PRECISIONS["amp-bf16"], CPU, seed=0)
    batches = random_batches(SUITE.data, batch_size=4, count=BATCHES, device=CPU, seed=seed)
    return TrainingRunner("amp-bf16", arm, itertools.cycle(batches))


def observe(rank):
    runner = build(rank)
    before = [value.clone() for value in runner.arm.model.parameters()]
    operations = _observe(runner)
    moved = any(not torch.equal(*pair) for pair in zip(before, runner.arm.model.parameters(), strict=True))
    return operations, moved


@pytest.mark.slow
def test_an_observed_step_of_two_processes_has_the_flops_of_both_and_trains_neither(tmp_path):
    whole = _observe(build())
    for operations, moved in together(tmp_path, observe):
        assert operations.compute_dtypes == whole.compute_dtypes == "bfloat16:100%"
        assert operations.flops_per_step == 2 * whole.flops_per_step
        assert not moved
