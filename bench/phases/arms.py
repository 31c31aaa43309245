"""The arms of a measurement, and what a step of each is.

A step of ``TrainingRunner`` is a training step on batches that are on the device, of ``LoaderRunner`` one on batches
from a loader, of ``ForwardRunner`` the forward pass. All are ``bench.measure.rounds.Runner``.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.data import random_batches
from bench.data.loader import DEPTH
from bench.data.transfer import Batch
from bench.devices.backend import backend_of
from bench.phases.context import Context
from bench.phases.input_pipeline import InputPipeline
from bench.results.records import Message, Progress
from bench.spec.suite import Data
from bench.training import amp, distributed
from bench.training.step import Arm, leave_gradients, synchronize, training_step
from bench.training.techniques import arrange, compilations

BATCHES = 4
"""Batches on the device that the steps take in turn."""
CONTINUOUS_STEPS = 3 * DEPTH
"""Steps that show whether a loader is waited for; a third of them uses up the batches that were ready before."""
FEWEST_STEPS, MOST_STEPS = 20, 200
"""Single steps that are timed, if they fit into the time budget."""
SINGLE_STEPS = 10
"""Steps that are queued one at a time, for the host's share."""
MOST_COMPILED_STEPS = 8
"""A model that still compiles after so many steps of one shape is left to the timing, which discards such rounds."""


@dataclass
class TrainingRunner:
    """A model in training; a step trains on the next batch."""

    name: str
    arm: Arm
    batches: Iterator[Batch]
    loss: Tensor | None = field(default=None, init=False)
    asynchronous: bool = field(init=False)

    def __post_init__(self) -> None:
        self.asynchronous = backend_of(self.arm.device).is_gpu

    def activate(self) -> None:
        """Set TF32's switches to this arm's; all else that differs is in the arm."""
        amp.apply(self.arm.precision)

    def run(self, steps: int) -> None:
        """Queue that many steps."""
        arm, batches = self.arm, self.batches
        for _ in range(steps):
            self.loss = None  # and its graph with it, before the next is made
            self.loss = training_step(arm, *next(batches))

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.arm.device)

    def fingerprint(self) -> object:
        """Return the device allocations, the loss scale and the compilations, of all processes."""
        allocations = backend_of(self.arm.device).allocations()
        return distributed.gathered((allocations, self.arm.scaler.get_scale(), compilations()))

    def taken_steps(self) -> int:
        """Return how many optimizer steps were not skipped."""
        return self.arm.taken.count

    def finite(self) -> bool:
        """Return whether the last loss is a number."""
        return self.loss is None or bool(torch.isfinite(self.loss))

    def observable(self) -> TrainingRunner:
        """Return a runner of the same arm whose operations can be observed: neither compiled nor captured."""
        return replace(self, arm=replace(self.arm, forward=self.arm.model, graph=None))

    def compile_s(self, context: Context) -> float | None:
        """Let the arm compile, and return the seconds that took; None where it does not compile."""
        return compile_s(self.arm, context.data, context.trial.cell.batch_size)


@dataclass
class LoaderRunner(TrainingRunner):
    """A model in training whose batches come from a loader."""

    batches: InputPipeline
    wait_ns: int = field(default=0, init=False)
    """Time that the host waited for the loader in the timed steps of all blocks before the last,"""
    last_wait_ns: int = field(default=0, init=False)
    """and in the last call of ``run``."""

    def activate(self) -> None:
        """Set TF32's switches to this arm's; a block of steps begins here."""
        super().activate()
        self.wait_ns, self.last_wait_ns = self.wait_ns + self.last_wait_ns, 0

    def run(self, steps: int) -> None:
        """Queue that many steps; a block's switch warm-up comes first, its timed steps last."""
        before = self.batches.waited_ns
        super().run(steps)
        self.last_wait_ns = self.batches.waited_ns - before

    def steady_wait(self, rest_s: float) -> float:
        """Return the share of a continuous run that the host waits for batches that are not made yet.

        The first steps use up the batches that were ready and show what taking one costs, which does not count as
        waiting in the steps after them. Each step is synchronized, so that a host that runs ahead of its device does
        not wait for a batch that the device does not need yet.

        Args:
            rest_s: time in which the loader makes as many batches ready as it may, in seconds.
        """
        self.activate()
        time.sleep(rest_s)
        # The second shortest: beside other programs few may be ready, and the prefetcher's first is taken already.
        taking_ns = sorted(wait_ns for wait_ns, _ in self._single_steps(DEPTH))[1]
        steps = self._single_steps(CONTINUOUS_STEPS - DEPTH)
        waited_ns = sum(wait_ns for wait_ns, _ in steps) - taking_ns * len(steps)
        return max(0.0, waited_ns / sum(step_ns for _, step_ns in steps))

    def _single_steps(self, count: int) -> list[tuple[int, int]]:
        """Run synchronized steps; return each one's wait for the loader and its time, in nanoseconds."""
        times = []
        for _ in range(count):
            start = time.perf_counter_ns()
            self.run(1)
            self.synchronize()
            times.append((self.last_wait_ns, time.perf_counter_ns() - start))
        return times


@dataclass
class ForwardRunner(TrainingRunner):
    """A model in eval mode; a step is the forward pass over the next batch."""

    passes: int = field(default=0, init=False)

    def run(self, steps: int) -> None:
        """Queue that many forward passes."""
        for _ in range(steps):
            self.forward(next(self.batches)[0])
        self.passes += steps

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's output for a batch, (B, ...)."""
        with torch.inference_mode(), self.arm.autocast():
            output: Tensor = self.arm.forward(arrange(inputs, self.arm.techniques))
        return output

    def taken_steps(self) -> int:
        """Return the number of passes; none is ever skipped."""
        return self.passes

    def compile_s(self, context: Context) -> float | None:
        """Let the arm compile for batches and for single samples; return the seconds, None where it does not."""
        if not self.arm.techniques.compile:
            return None
        self.activate()
        size = context.trial.cell.batch_size
        ((inputs, _),) = random_batches(context.data, batch_size=size, count=1, device=self.arm.device, seed=0)
        shapes = inputs, inputs[:1].contiguous()
        return sum(until_compiled(partial(self.forward, one), self.arm.device) for one in shapes)


def compiled(runner: TrainingRunner, context: Context, send: Callable[[Message], None]) -> float | None:
    """Let an arm compile before anything is observed or timed; return the seconds, None where it does not compile."""
    if not runner.arm.techniques.compile:
        return None
    send(Progress(text=f"{runner.name}: compiling"))
    return runner.compile_s(context)


def compile_s(arm: Arm, data: Data, batch_size: int) -> float | None:
    """Let a training step's forward and backward compile, and return the seconds; None where the arm does not compile.

    They run over one random batch until nothing is compiled any more. The seconds are those beyond as many steps that
    compile nothing. Nothing is learned: weights stay as they are, batch norm's statistics and the random generators
    are restored, and gradients are dropped.

    Args:
        arm: newly built.
        data: what a sample is.
        batch_size: samples in the batches that it will be trained on.
    """
    if not arm.techniques.compile:
        return None
    amp.apply(arm.precision)
    (batch,) = random_batches(data, batch_size=batch_size, count=1, device=arm.device, seed=0)
    buffers = [(buffer, buffer.clone()) for buffer in arm.model.buffers()]
    spent_s = until_compiled(lambda: leave_gradients(arm, *batch), arm.device)
    arm.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, kept in buffers:
            buffer.copy_(kept)
    return spent_s


def until_compiled(step: Callable[[], object], device: torch.device) -> float:
    """Repeat a step until nothing is compiled in it; return the seconds beyond as many ordinary ones.

    Args:
        step: the same each time; the random generators are restored after it.
        device: where it runs.
    """
    spent_s, steps = 0.0, 0
    with backend_of(device).fork_rng():
        while True:
            before = compilations()
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            step_s = time.perf_counter() - start
            if compilations() == before or steps == MOST_COMPILED_STEPS:
                break
            spent_s, steps = spent_s + step_s, steps + 1
    return max(0.0, spent_s - steps * step_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """The times of single steps."""

    p50_ms: float
    p95_ms: float
    host_ratio: float | None
    """Host time to queue a step over its time on the GPU; None on a CPU, which does both itself, and with a
    GradScaler, which waits for the GPU in each step."""


def step_times(runner: TrainingRunner, budget_s: float) -> StepTimes | None:
    """Time single steps that run back to back, and on a GPU the host's share of a step alone.

    The times are those between events, without waiting. None where 20 steps take longer than the budget. Of processes
    that train together, the slowest's.

    Args:
        runner: the arm, warm.
        budget_s: time to spend, in seconds.
    """
    runner.activate()
    clock = distributed.clock()  # one for all, so that all run as many steps
    start = clock()
    runner.run(1)
    runner.synchronize()
    steps = min(MOST_STEPS, int(1e9 * budget_s / (clock() - start)))
    assert len(set(distributed.gathered(steps))) == 1, "processes that train together must take as many steps each"
    if steps < FEWEST_STEPS:
        return None
    times_ms = _between_events(runner, steps)
    p50, p95 = np.max(distributed.gathered(tuple(np.percentile(times_ms, [50, 95]))), axis=0)
    known = runner.asynchronous and not runner.arm.scaler.is_enabled()
    ratio = statistics.median(_host_ratio(runner) for _ in range(SINGLE_STEPS)) if known else None
    ratios = [each for each in distributed.gathered(ratio) if each is not None]
    return StepTimes(p50_ms=float(p50), p95_ms=float(p95), host_ratio=max(ratios, default=None))


def _between_events(runner: TrainingRunner, steps: int) -> list[float]:
    backend = backend_of(runner.arm.device)
    events = [backend.record_event(timing=True)]
    for _ in range(steps):
        runner.run(1)
        events.append(backend.record_event(timing=True))
    runner.synchronize()
    return [before.elapsed_time(after) for before, after in itertools.pairwise(events)]


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
