"""The input pipeline of an ablation step: loaders, which steps share, and a batch's way from there to the device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from bench.data.loader import DEPTH, Turns, open_loader, open_samples
from bench.data.sampling import Normalizer
from bench.data.transfer import Batch, Prefetcher, to_device
from bench.devices.backend import backend_of
from bench.phases.arms import Context, TrainingRunner
from bench.spec.suite import Data
from bench.spec.techniques import AblationStep
from bench.training.step import Arm

CONTINUOUS_STEPS = 3 * DEPTH
"""Steps that show whether a loader is waited for; a third of them uses up the batches that were ready before."""


class LoaderKind(NamedTuple):
    """What differs between loaders."""

    pinned: bool
    normalize: bool
    """Whether the loader normalises images; else the device does."""

    @staticmethod
    def of(step: AblationStep) -> LoaderKind:
        """Return the loader of an ablation step: with the prefetcher the device normalises."""
        return LoaderKind(pinned=step.settings.non_blocking, normalize=not step.settings.prefetcher)


@dataclass(slots=True)
class _Timed:
    """An iterator, and the time that was spent in it."""

    batches: Iterator[Any]
    ns: int = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter_ns()
        try:
            return next(self.batches)
        finally:
            self.ns += time.perf_counter_ns() - start


class InputPipeline:
    """A loader's batches on the arm's device, brought there as its techniques say."""

    def __init__(self, arm: Arm, data: Data, loaded: Iterator[Any]) -> None:
        """Open the pipeline.

        Args:
            arm: whose techniques decide; the prefetcher makes one batch ready ahead.
            data: mean and standard deviation of the images, for batches that come as uint8.
            loaded: batches as the loader makes them: inputs (B, ...), normalised floats or uint8, and targets.
        """
        techniques, device = arm.techniques, arm.device
        normalizer = Normalizer(data.mean, data.std, device) if data.is_image else None

        def ready(batch: Any) -> Batch:
            inputs, targets = to_device((batch[0], batch[1]), device, techniques.non_blocking)
            if inputs.dtype == torch.uint8 and normalizer is not None:
                inputs = normalizer(inputs)
            return inputs, targets

        self._prefetcher: Prefetcher | None = None
        if techniques.prefetcher and not backend_of(device).is_gpu:
            # Its thread asks the loader while the step runs; the host waits only for what the thread has not done yet.
            self._prefetcher = Prefetcher(loaded, device, ready)
            self._batches: Iterator[Batch] = _Timed(self._prefetcher)
            self._waited: Any = self._batches
            return
        self._waited = _Timed(loaded)
        if techniques.prefetcher:
            self._batches = self._prefetcher = Prefetcher(self._waited, device, ready)
        else:
            self._batches = map(ready, self._waited)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        return next(self._batches)

    @property
    def waited_ns(self) -> int:
        """Time that the host has waited for the loader, copies excluded."""
        ns: int = self._waited.ns
        return ns

    def close(self) -> None:
        """Stop making batches ahead."""
        if self._prefetcher is not None:
            self._prefetcher.close()


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


@contextmanager
def open_loaders(context: Context, steps: Sequence[AblationStep]) -> Iterator[tuple[dict[LoaderKind, Turns], int]]:
    """Open a loader for each kind that the steps need, each with worker processes of its own; close them all.

    Yields:
        The loaders, and the number of their training samples.
    """
    # A loader's pinning thread makes a context on the device that is current when its iterator is made. Worker
    # processes may be forked from a process that has one, as in any training loop: they never use the device.
    backend_of(context.device).set_current()
    cell, seed = context.trial.cell, context.trial.seed
    loaders: dict[LoaderKind, Turns] = {}
    count = 0
    try:
        for kind in dict.fromkeys(map(LoaderKind.of, steps)):
            samples: Any = open_samples(context.data, cell.data, normalize=kind.normalize, seed=seed)
            count = len(samples)
            loaders[kind] = Turns(iter(open_loader(samples, batch_size=cell.batch_size, seed=seed, pinned=kind.pinned)))
        yield loaders, count
    finally:
        for loader in loaders.values():
            loader.batches._shutdown_workers()  # type: ignore[attr-defined]  # else they end with the iterator
