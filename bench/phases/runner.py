"""An arm as the timing knows it, and the times of its single steps."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bench.devices.backend import backend_of
from bench.training import amp as switches
from bench.training import distributed
from bench.training.step import Arm, synchronize, training_step
from bench.training.techniques import compilations

BATCHES = 4
"""Batches resident on the device that the steps take in turn."""
FEWEST_STEPS, MOST_STEPS = 20, 200
"""Single steps whose times are looked at, if they take no more than the time given."""
SINGLE = 10
"""Steps queued one at a time, to see what queueing costs the host."""


@dataclass(slots=True)
class TorchRunner:
    """A model in training, to be timed."""

    name: str
    arm: Arm
    batches: list[tuple[Tensor, Tensor]]
    asynchronous: bool
    turn: int = 0
    loss: Tensor | None = field(default=None)

    def activate(self) -> None:
        """Set TF32's switches to this arm's; all else that differs is in the arm."""
        switches.apply(self.arm.precision)

    def run(self, steps: int) -> None:
        """Queue that many training steps."""
        arm, batches = self.arm, self.batches
        for turn in range(self.turn, self.turn + steps):
            self.loss = None  # and its graph with it, before the next is made
            self.loss = training_step(arm, *batches[turn % BATCHES])
        self.turn += steps

    def unhidden(self) -> TorchRunner:
        """Return a runner of the same arm whose operations can be watched one by one: neither compiled nor captured."""
        return replace(self, arm=replace(self.arm, forward=self.arm.model, graph=None))

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.arm.device)

    def fingerprint(self) -> object:
        """Return the number of device allocations, the loss scale and the number of compilations."""
        allocations = backend_of(self.arm.device).allocations()
        return distributed.gathered((allocations, self.arm.scaler.get_scale(), compilations()))

    def taken_steps(self) -> int:
        """Return how many optimizer steps were not skipped."""
        return self.arm.taken.count

    def finite(self) -> bool:
        """Say whether the last loss is a number."""
        return self.loss is None or bool(torch.isfinite(self.loss))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """How single steps are spread, and how much of a step its queueing takes."""

    p50_ms: float
    p95_ms: float
    host_ratio: float | None
    """Host time to queue a step over its time on the GPU; None on a CPU, which does both itself, and where a
    GradScaler waits for the GPU in each step."""


def step_times(runner: TorchRunner, budget_s: float) -> StepTimes | None:
    """Run steps back to back after the timing, and tell them apart.

    By events between them, without waiting; on a GPU then a few by themselves, for the host's share. None where 20
    steps take longer than the budget. Of processes that train together, the slowest's.

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
    # A GradScaler waits for the GPU within each step, to see whether a gradient overflowed: then it tells nothing.
    telling = runner.asynchronous and not runner.arm.scaler.is_enabled()
    ratio = statistics.median(_host_ratio(runner) for _ in range(SINGLE)) if telling else None
    ratios = [each for each in distributed.gathered(ratio) if each is not None]
    return StepTimes(p50_ms=float(p50), p95_ms=float(p95), host_ratio=max(ratios, default=None))


def _between_events(runner: TorchRunner, steps: int) -> list[float]:
    backend = backend_of(runner.arm.device)
    events = [backend.record_event(timing=True)]
    for _ in range(steps):
        runner.run(1)
        events.append(backend.record_event(timing=True))
    runner.synchronize()
    return [before.elapsed_time(after) for before, after in itertools.pairwise(events)]


def _host_ratio(runner: TorchRunner) -> float:
    """Return the share for one step alone: with more, a full launch queue would hold the host up."""
    backend = backend_of(runner.arm.device)
    runner.synchronize()
    start = time.perf_counter()
    first = backend.record_event(timing=True)
    runner.run(1)
    last = backend.record_event(timing=True)
    queued_ms = 1000 * (time.perf_counter() - start)
    runner.synchronize()
    return queued_ms / float(first.elapsed_time(last))
