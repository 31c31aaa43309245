"""The way of a batch from a loader to the arm's device, as the arm's techniques say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from bench.data.batch import Batch, to_device
from bench.data.sampling import Normalizer
from bench.data.transfer import Prefetcher
from bench.devices.backend import backend_of
from bench.spec.suite import Data
from bench.spec.techniques import AblationStep
from bench.training.step import Arm


class LoaderKind(NamedTuple):
    """The options in which loaders differ."""

    pinned: bool
    normalize: bool
    """Whether the loader normalises images; else the device does."""

    @staticmethod
    def of(step: AblationStep) -> LoaderKind:
        """Return the loader of an ablation step: with the prefetcher the device normalises."""
        return LoaderKind(pinned=step.settings.non_blocking, normalize=not step.settings.prefetcher)


@dataclass(slots=True)
class _Timed:
    """An iterator, and the time spent in it."""

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

    def __init__(self, arm: Arm, data: Data | None, loaded: Iterator[Any]) -> None:
        """Open the pipeline of an arm, whose techniques decide; the prefetcher makes one batch ready ahead.

        Where there are ``data`` of images, batches are ``loaded`` as inputs (B, ...), normalised floats or uint8, and
        targets; the data have the mean and standard deviation of the images that come as uint8.
        """
        techniques, device = arm.techniques, arm.device
        normalizer = Normalizer(data.mean, data.std, device) if data and data.is_image else None

        def ready(batch: Batch) -> Batch:
            batch = to_device(batch, device, techniques.non_blocking)
            if normalizer is not None and batch[0].dtype == torch.uint8:
                return normalizer(batch[0]), batch[1]
            return batch

        self._prefetcher: Prefetcher | None = None
        self._waited = _Timed(loaded)
        self._batches: Iterator[Batch] = map(ready, self._waited)
        if techniques.prefetcher and backend_of(device).is_gpu:
            self._batches = self._prefetcher = Prefetcher(self._waited, device, ready)
        elif techniques.prefetcher:
            # Its thread asks the loader while the step runs; the host waits only for what the thread has not done yet.
            self._prefetcher = Prefetcher(loaded, device, ready)
            self._batches = self._waited = _Timed(self._prefetcher)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        return next(self._batches)

    @property
    def waited_ns(self) -> int:
        """Time that the host has waited for the loader, copies excluded."""
        return self._waited.ns

    def close(self) -> None:
        """Stop making batches ahead."""
        if self._prefetcher is not None:
            self._prefetcher.close()
