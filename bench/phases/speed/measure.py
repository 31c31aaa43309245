"""The speed phase: a training step in every precision, all arms of a cell in one process."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from bench.data.batch import Batch
from bench.devices.backend import backend_of
from bench.phases.speed.paired import measure
from bench.results.records import Device, Operations, Progress, Send
from bench.spec.techniques import ArmSpec
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import BATCHES, Context, TrainingRunner, open_context, use_precision
from bench.training.pipeline import from_host

# Steps that are queued one at a time, for the host's share.
SINGLE_STEPS = 10
# In longer steps the host has launched all kernels long before they are done.
LONGEST_STEP_S = 0.2


def run(trial: Trial, device: Device, send: Send) -> None:
    """Time the trial's arms against the first of them; send blocks, then a result for each."""
    context = open_context(trial)
    use_precision(trial.arms[0].precision, context.device)
    # An ablation's steps copy their batches to the device.
    place = torch.device("cpu") if trial.ablation else None
    batches = context.resident_batches(BATCHES, device=place)
    with ExitStack() as stack:
        runners = [_runner(context, arm, batches, stack) for arm in trial.arms]
        for runner in runners:
            runner.compile(context, send)
        # Before the warm-up, which settles what observing leaves behind, such as free blocks of the
        # allocator.
        operations = [_observe(runner) for runner in runners]
        paired = measure(context, runners, device, send, batches=batches)
        for block in paired.blocks():
            send(block)
        for index, observed in enumerate(operations):
            result = paired.result(index, operations=observed)
            # One process is enough: the share hardly differs between them, and an advice needs no
            # more than its size.
            if trial.replicate == 0:
                send(Progress(text=f"{result.arm}: the host's share"))
                ratio = host_ratio(runners[index], paired.step_ns(index) / 1e9)
                result = replace(result, row=replace(result.row, host_ratio=ratio))
            send(result)


def _runner(
    context: Context, arm: ArmSpec, batches: Sequence[Batch], stack: ExitStack
) -> TrainingRunner:
    """Return an arm in training on its batches, which in an ablation lie in host memory."""
    trial = context.trial
    built = context.build(arm.precision, techniques=trial.techniques_of(arm))
    source = from_host(built, batches, stack) if trial.ablation else itertools.cycle(batches)
    return TrainingRunner(arm.name, built, source)


def _observe(runner: TrainingRunner) -> Operations:
    """Observe a step's operations without the update.

    Where several train together, the FLOPs are those of all. The update would set their weights
    apart, for gradients are not averaged in what is observed; one that compiles cannot be observed;
    and the products of one such as Muon's are not the model's.
    """
    operations = runner.operations()
    flops = distributed.total(distributed.gathered(operations.flops_per_step))
    return replace(operations, flops_per_step=flops)


def host_ratio(runner: TrainingRunner, step_s: float) -> float | None:
    """Return the host's time to queue a step over the GPU's to run it.

    It is a median; of several GPUs, the largest. None on a CPU, which does both itself, with a
    GradScaler, which waits for the GPU in each step, and where ``step_s``, the time of a step, is
    so long that launching cannot limit it.
    """
    step_s = max(distributed.gathered(step_s))  # all processes decide alike
    if not runner.asynchronous or runner.arm.scaler.is_enabled() or step_s > LONGEST_STEP_S:
        return None
    runner.activate()
    backend = backend_of(runner.arm.device)
    ratios = []
    # One at a time: with more, a full launch queue would hold the host up.
    for _ in range(SINGLE_STEPS):
        runner.synchronize()
        start = time.perf_counter()
        first = backend.record_event(timing=True)
        runner.run_steps(1)
        last = backend.record_event(timing=True)
        queued_ms = 1000 * (time.perf_counter() - start)
        runner.synchronize()
        ratios.append(queued_ms / float(first.elapsed_time(last)))
    return max(distributed.gathered(statistics.median(ratios)))
