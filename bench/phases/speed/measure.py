"""The speed phase: a training step in every precision, all arms of a cell in one process, and the limits of each.

The floor phase times the baseline against itself, for the A/A noise.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench.data.batch import Batch
from bench.devices.backend import backend_of
from bench.measure.operations import peak_tflops
from bench.measure.rounds import Sizes, compare
from bench.phases.floor import AGAIN
from bench.phases.speed import Speed
from bench.phases.speed.paired import measure
from bench.results.records import Device, Message, Operations, Progress
from bench.spec.techniques import AblationStep
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import BATCHES, Context, TrainingRunner, enter, open_context
from bench.training.pipeline import from_host

FEWEST_STEPS, MOST_STEPS = 20, 200
"""Single steps that are timed, if they fit into the time budget."""
SINGLE_STEPS = 10
"""Steps that are queued one at a time, for the host's share."""
TAIL_SHARE, LEAST_TAIL_S = 0.1, 2.0
"""Share of the time budget that single steps may take in addition; on a GPU at least two seconds, for only they show
whether the host launches kernels more slowly than the GPU runs them."""
CEILING_S = 0.3
"""Time for finding the rate of large matrix products, for each arm."""
COMMUNICATION_SHARE = 0.3
"""Share of the time budget that the comparison with silent steps may take in addition."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's arms against the first of them; send blocks, then a result for each."""
    floor = trial.phase == "floor"
    context = open_context(trial)
    enter(trial.arms[0].precision, context.device)
    batches = context.resident_batches(BATCHES, device=torch.device("cpu") if trial.ablation else None)
    with ExitStack() as stack:
        runners = [_runner(context, arm, batches, stack) for arm in trial.arms]
        if floor:
            runners.append(context.runner(trial.arms[0].precision, batches, trial.arms[0].name + AGAIN))
        for runner in runners:
            runner.compile(context, send)
        operations = [None if floor else _observe(runner) for runner in runners]
        samples = context.samples_per_step(batches)
        paired = measure(trial, runners, device, send, batches=batches, samples=samples)
        for block in paired.blocks():
            send(block)
        for index, (runner, observed) in enumerate(zip(runners, operations, strict=True)):
            if floor and index == 0:
                continue
            status, detail = paired.judge(index)
            switches = runner.switches_after_a_step()
            speed = paired.speed(index, context.data.tokens_per_sample)
            if not floor and trial.replicate == 0:
                speed = replace(
                    speed,
                    communication_pct=communication_pct(runner, paired.plans[index].sizes, trial),
                )
                speed = _with_limits(speed, runner, trial, send)
            result = runner.result(
                status,
                detail,
                switches=switches,
                precision=runner.arm.precision.name if floor else runner.name,
                operations=observed,
                conversion=runner.arm.conversion,
                row=speed,
            )
            send(result)


def _runner(context: Context, arm: AblationStep, batches: Sequence[Batch], stack: ExitStack) -> TrainingRunner:
    """Return an arm in training on batches on the device, or of an ablation on those in host memory."""
    if not context.trial.ablation:
        return context.runner(arm.precision, batches)
    built = context.build(arm.precision, techniques=context.trial.techniques_of(arm))
    return TrainingRunner(arm.name, built, from_host(built, batches, stack))


def _observe(runner: TrainingRunner) -> Operations:
    """Observe a step's operations without the update; where several train together, their FLOPs are those of all.

    The update would set their weights apart, for gradients are not averaged in what is observed; one that compiles
    cannot be observed; and the products of one such as Muon's are not the model's.
    """
    operations = runner.operations()
    return replace(
        operations,
        flops_per_step=distributed.total(distributed.gathered(operations.flops_per_step)),
    )


class SilentRunner(TrainingRunner):
    """An arm whose processes do not average their gradients."""

    def run(self, steps: int) -> None:
        """Queue steps that do not communicate."""
        forward: Any = self.arm.forward
        with forward.no_sync():
            super().run(steps)


def communication_pct(runner: TrainingRunner, sizes: Sizes, trial: Trial) -> float | None:
    """Return the share of a step by which communication makes it longer; None where one process trains alone.

    Steps are timed against steps under DistributedDataParallel's ``no_sync``, in ABBA rounds. What overlaps with
    backward costs nothing and is not in the share. In it are sending gradients, broadcasting the first process's
    buffers, and each step's wait for the slowest process; silent steps wait for each other once a block. The arm has
    been timed before, for its processes' weights drift apart here.
    """
    if distributed.ranks() == 1:
        return None
    silent = SilentRunner(runner.name, runner.arm, runner.batches)
    budget_s = COMMUNICATION_SHARE * trial.protocol.process_s
    protocol = replace(trial.protocol, replicates=1, most_replicates=1, time_budget_s=budget_s)
    clock = distributed.clock()
    comparison = compare([runner, silent], [sizes, sizes], protocol, seed=trial.seed, clock=clock)
    speedup = comparison.speedups[1]
    return None if speedup is None else 100 * (1 - 1 / speedup.center)


def _with_limits(speed: Speed, runner: TrainingRunner, trial: Trial, send: Callable[[Message], None]) -> Speed:
    """Time single steps and large matrix products, the device's own limit; of several devices, their sum."""
    send(Progress(text=f"{runner.name}: single steps, and the rate of large matrix products"))
    budget_s = max(TAIL_SHARE * trial.protocol.process_s, LEAST_TAIL_S * runner.asynchronous)
    speed = replace(speed, **step_times(runner, budget_s))
    peak = distributed.total(distributed.gathered(peak_tflops(runner.arm.precision, runner.arm.device, CEILING_S)))
    return replace(speed, peak_tflops=peak)


def step_times(runner: TrainingRunner, budget_s: float) -> dict[str, Any]:
    """Time single steps of a warm arm that run back to back, and on a GPU the host's share of a step alone.

    The times are those between events, without waiting; of processes that train together, the slowest's.

    Returns:
        Figures of ``Speed``; none where 20 steps take longer than the budget. A CPU has no ``host_ratio``, because it
        does both itself, nor has a GradScaler, which waits for the GPU in each step.
    """
    runner.activate()
    clock = distributed.clock()  # one for all, so that all run as many steps
    start = clock()
    runner.run(1)
    runner.synchronize()
    steps = min(MOST_STEPS, int(1e9 * budget_s / (clock() - start)))
    if steps < FEWEST_STEPS:
        return {}
    backend = backend_of(runner.arm.device)
    events = [backend.record_event(timing=True)]
    for _ in range(steps):
        runner.run(1)
        events.append(backend.record_event(timing=True))
    runner.synchronize()
    times_ms = [before.elapsed_time(after) for before, after in itertools.pairwise(events)]
    p50, p95 = np.max(distributed.gathered(tuple(np.percentile(times_ms, [50, 95]))), axis=0)
    times: dict[str, Any] = {"step_p50_ms": float(p50), "step_p95_ms": float(p95)}
    if runner.asynchronous and not runner.arm.scaled:
        ratio = statistics.median(_host_ratio(runner) for _ in range(SINGLE_STEPS))
        times["host_ratio"] = max(distributed.gathered(ratio))
    return times


def _host_ratio(runner: TrainingRunner) -> float:
    """Return the host's share of one step alone: with more, a full launch queue would hold the host up."""
    backend = backend_of(runner.arm.device)
    runner.synchronize()
    start = time.perf_counter()
    first = backend.record_event(timing=True)
    runner.run(1)
    last = backend.record_event(timing=True)
    queued_ms = 1000 * (time.perf_counter() - start)
    runner.synchronize()
    return queued_ms / float(first.elapsed_time(last))
