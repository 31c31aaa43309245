"""A rung as the timing knows it: a model in training, and its batches on their way from the loader."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from bench.data.loader import DEPTH
from bench.devices.backend import backend_of
from bench.phases.context import Setting, enter
from bench.phases.feeding import Feed
from bench.phases.runner import BATCHES, TorchRunner, step_times
from bench.spec.ablation import AblationStep
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import parse_precision
from bench.spec.trial import Trial
from bench.training import amp as switches
from bench.training.step import Arm, build_arm, synchronize, training_step
from bench.training.techniques import compilations

CONTINUED = 3 * DEPTH
"""Steps of a continuous run; after the first third nothing is left of what was ready before."""


class Waiting(NamedTuple):
    """Host time spent in waiting for the loader, of a time in all, in nanoseconds."""

    wait_ns: int = 0
    all_ns: int = 0

    def plus(self, other: Waiting) -> Waiting:
        """Return both one after the other."""
        return Waiting(self.wait_ns + other.wait_ns, self.all_ns + other.all_ns)

    @property
    def share(self) -> float:
        """Of the time in all; 0 where there is none."""
        return self.wait_ns / self.all_ns if self.all_ns else 0.0


@dataclass(slots=True)
class RungRunner:
    """A rung, to be timed: each step takes the loader's next batch to the device, and trains on it."""

    name: str
    arm: Arm
    batches: Feed
    asynchronous: bool
    loss: Tensor | None = field(default=None)
    last: Waiting = Waiting()
    """Since ``run`` was called last,"""
    timed: Waiting = Waiting()
    """and in all blocks before, each without its settling steps."""

    def activate(self) -> None:
        """Set TF32's switches to this arm's; a block of steps begins here."""
        switches.apply(self.arm.precision)
        self.timed = self.timed.plus(self.last)
        self.last = Waiting()

    def run(self, steps: int) -> None:
        """Queue that many training steps; of a block, which settles first, the last ones are those that are timed."""
        start, before = time.perf_counter_ns(), self.batches.waited.ns
        for _ in range(steps):
            self.loss = training_step(self.arm, *next(self.batches))
        self.last = Waiting(self.batches.waited.ns - before, time.perf_counter_ns() - start)

    def synchronize(self) -> None:
        """Wait for the device."""
        start = time.perf_counter_ns()
        synchronize(self.arm.device)
        self.last = self.last.plus(Waiting(0, time.perf_counter_ns() - start))

    def steady_wait(self, rest_s: float) -> float:
        """Return the share of its time that the host waits for batches that are not made yet.

        The first steps use up what is ready, and tell what it takes to be handed a batch that is; that does not count
        as waiting in those after them. No other rung's turn comes between. Each step is waited for, so that a host
        that runs ahead of its device does not wait for a batch that the device does not need yet.

        Args:
            rest_s: time in which the loader makes ready as many batches as it may, in seconds.
        """
        self.activate()
        time.sleep(rest_s)
        # The second shortest: beside other programs few may be ready, and the prefetcher's first is taken already.
        handed_ns = sorted(step.wait_ns for step in self._continue(DEPTH))[1]
        steps = self._continue(CONTINUED - DEPTH)
        waited_ns = sum(step.wait_ns for step in steps) - handed_ns * len(steps)
        return max(0.0, waited_ns / sum(step.all_ns for step in steps))

    def _continue(self, steps: int) -> list[Waiting]:
        found = []
        for _ in range(steps):
            self.run(1)
            self.synchronize()
            found.append(self.last)
        return found

    def fingerprint(self) -> object:
        """Return the number of device allocations, of compilations, and the loss scale."""
        allocations = backend_of(self.arm.device).allocations()
        return allocations, compilations(), self.arm.scaler.get_scale()

    def taken_steps(self) -> int:
        """Return how many optimizer steps were not skipped."""
        return self.arm.taken.count

    def finite(self) -> bool:
        """Say whether the last loss is a number."""
        return self.loss is None or bool(torch.isfinite(self.loss))

    def host_ratio(self, budget_s: float) -> float | None:
        """Return the host's time to queue a step, on a batch already on the device, over its time on the device.

        Args:
            budget_s: time to spend, in seconds.

        Returns:
            The ratio; None where it tells nothing or steps are too long for the time, as ``step_times`` has it.
        """
        if not self.asynchronous:
            return None
        batches = [next(self.batches)] * BATCHES  # one, for more might not fit
        alone = TorchRunner(name=self.name, arm=self.arm, batches=batches, asynchronous=True)
        times = step_times(alone, budget_s)
        return times.host_ratio if times else None

    def close(self) -> None:
        """Stop making batches ahead."""
        self.batches.close()


def build_rung(setting: Setting, trial: Trial, rung: AblationStep) -> Arm:
    """Set the process to a rung's precision and build its model in training.

    Raises:
        UnsupportedError: a technique does not go with this suite or device, or the suite has a loop of its own.
    """
    if setting.suite.trainer == "lightning":
        raise UnsupportedError("Lightning's Trainer runs steps of its own, which the ladder cannot climb")
    enter(rung.precision, setting.device)
    arm = build_arm(
        setting.suite,
        setting.data,
        parse_precision(rung.precision),
        setting.device,
        seed=trial.seed,
        techniques=rung.settings,
    )
    switches.apply(arm.precision)  # again: a model may have set switches of its own
    return arm
