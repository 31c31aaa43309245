"""The speed phase: orders of its own in each process, and what disturbed it."""

import os
from dataclasses import replace

import pytest

from bench.results.records import Block, TrialResult
from bench.spec.protocol import Protocol
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import Now, install_gpus, of_kind, result_of, run_phase

ARMS = ("fp32", "amp-fp16")


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


@pytest.mark.parametrize(
    ("foreign_pct", "named"),
    [(40, "another process used the GPU (pid 123, 40% of the time)"), (3, "")],
)
def test_what_disturbed_the_gpu_while_a_process_was_timed_is_named_in_its_row(
    monkeypatch, tiny_trial, cpu, foreign_pct, named
):
    install_gpus(monkeypatch, FakeGpu("GPU-a", work=Now([(os.getpid(), 60), (123, foreign_pct)])))
    result = result_of(
        run_phase(tiny_trial, replace(cpu, kind="cuda", uuid="GPU-a"), "speed", "fp32")
    )
    assert (result.status, result.row.disturbance) == ("ok", named)
    assert result.row.rounds > 0


# Two processes that train together.
