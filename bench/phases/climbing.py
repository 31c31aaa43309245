"""A rung as the timing knows it: a model in training, and its batches on their way from the loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench import precision as switches
from bench.data.augment import Normalizer
from bench.data.transfer import Batch, Prefetcher, to_device
from bench.phases.runner import BATCHES, TorchRunner, step_times
from bench.phases.setting import Setting, enter
from bench.precision_names import precision
from bench.rungs import Rung
from bench.spec import Data
from bench.technique_names import UnsupportedError
from bench.techniques import compilations
from bench.train import Arm, build_arm, synchronize, training_step
from bench.trial import Trial


@dataclass(slots=True)
class RungRunner:
    """A rung, to be timed: each step takes the loader's next batch to the device, and trains on it."""

    name: str
    arm: Arm
    batches: Iterator[Batch]
    """On the device."""
    asynchronous: bool
    loss: Tensor | None = field(default=None)
    wait_ns: int = 0
    """Host time spent in asking for batches,"""
    run_ns: int = 0
    """of this time in all."""

    def activate(self) -> None:
        """Set TF32's switches to this arm's."""
        switches.apply(self.arm.precision)

    def run(self, steps: int) -> None:
        """Queue that many training steps."""
        start = time.perf_counter_ns()
        for _ in range(steps):
            asked = time.perf_counter_ns()
            batch = next(self.batches)
            self.wait_ns += time.perf_counter_ns() - asked
            self.loss = training_step(self.arm, *batch)
        self.run_ns += time.perf_counter_ns() - start

    def synchronize(self) -> None:
        """Wait for the device."""
        start = time.perf_counter_ns()
        synchronize(self.arm.device)
        self.run_ns += time.perf_counter_ns() - start

    def fingerprint(self) -> object:
        """Return the number of device allocations, of compilations, and the loss scale."""
        allocations = 0
        if self.arm.device.type == "cuda":
            allocations = torch.cuda.memory_stats(self.arm.device).get("num_device_alloc", 0)
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
        close: Callable[[], None] | None = getattr(self.batches, "close", None)
        if close is not None:
            close()


def on_device(arm: Arm, data: Data, loaded: Iterator[Any]) -> Iterator[Batch]:
    """Return a loader's batches on the arm's device, brought there as its techniques say.

    Args:
        arm: whose techniques decide; the prefetcher's batches are made ready one ahead.
        data: mean and spread of the images, for batches that come as uint8.
        loaded: batches as the loader gives them: inputs (B, ...), normalised floats or uint8, and targets.
    """
    chosen, device = arm.techniques, arm.device
    normalizer = Normalizer(data.mean, data.std, device) if data.is_image else None

    def ready(batch: Any) -> Batch:
        inputs, targets = to_device((batch[0], batch[1]), device, chosen.non_blocking)
        if inputs.dtype == torch.uint8 and normalizer is not None:
            inputs = normalizer(inputs)
        return inputs, targets

    if chosen.prefetcher:
        return Prefetcher(loaded, device, ready)
    return map(ready, loaded)


def build_rung(setting: Setting, trial: Trial, rung: Rung) -> Arm:
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
        precision(rung.precision),
        setting.device,
        seed=trial.seed,
        techniques=rung.chosen,
    )
    switches.apply(arm.precision)  # again: a model may have set switches of its own
    return arm
