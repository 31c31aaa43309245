"""How a rung gets its batches: the loaders that rungs share, and the way of a batch from one to the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from bench.data.augment import Normalizer
from bench.data.loader import Turns, open_loader, open_samples
from bench.data.transfer import Batch, Prefetcher, to_device
from bench.devices.backend import backend_of
from bench.phases.context import Setting
from bench.spec.ablation import AblationStep
from bench.spec.suite import Data
from bench.spec.trial import Trial
from bench.training.step import Arm

Kind = tuple[bool, bool]
"""Of a loader: whether its batches are pinned, and whether it normalises them itself."""


@dataclass(slots=True)
class Waited:
    """Batches, and how long whoever takes them has waited for them."""

    batches: Iterator[Any]
    ns: int = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        asked = time.perf_counter_ns()
        try:
            return next(self.batches)
        finally:
            self.ns += time.perf_counter_ns() - asked


@dataclass(frozen=True, slots=True)
class Feed:
    """A loader's batches on a device."""

    batches: Iterator[Batch]
    waited: Waited
    """What the host waits in for the loader, copies apart."""
    ahead: Prefetcher | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        return next(self.batches)

    def close(self) -> None:
        """Stop making batches ahead."""
        if self.ahead is not None:
            self.ahead.close()


def on_device(arm: Arm, data: Data, loaded: Iterator[Any]) -> Feed:
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

    if chosen.prefetcher and device.type == "cpu":
        # Its thread asks the loader while the step runs; the host waits only for what the thread has not done yet.
        ahead = Prefetcher(loaded, device, ready)
        waited = Waited(ahead)
        return Feed(waited, waited, ahead)
    waited = Waited(loaded)
    if chosen.prefetcher:
        ahead = Prefetcher(waited, device, ready)
        return Feed(ahead, waited, ahead)
    return Feed(map(ready, waited), waited)


def kind_of(rung: AblationStep) -> Kind:
    """Return which loader feeds a rung: with the prefetcher the device normalises, else the loader does."""
    return rung.settings.non_blocking, not rung.settings.prefetcher


@contextmanager
def open_loaders(setting: Setting, trial: Trial, rungs: list[AblationStep]) -> Iterator[tuple[dict[Kind, Turns], int]]:
    """Open a loader for each kind that the rungs need, each with worker processes of its own; close them all.

    Yields:
        The loaders, and how many training samples they have.
    """
    # A loader's pinning thread makes a context on the device that is current when its iterator is made. Worker
    # processes may be forked from a process that has one, as in any training loop: they never use the device.
    backend_of(setting.device).set_current()
    loaders: dict[Kind, Turns] = {}
    count = 0
    try:
        for pinned, normalize in dict.fromkeys(map(kind_of, rungs)):
            samples: Any = open_samples(setting.data, trial.cell.data, normalize=normalize, seed=trial.seed)
            count = len(samples)
            opened = open_loader(samples, batch_size=trial.cell.batch_size, seed=trial.seed, pinned=pinned)
            loaders[pinned, normalize] = Turns(iter(opened))
        yield loaders, count
    finally:
        for loader in loaders.values():
            loader.batches._shutdown_workers()  # type: ignore[attr-defined]  # else they end with the iterator
