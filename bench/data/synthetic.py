"""Random samples: as many as are asked for, with no file behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bench.data.sampling import value_generator
from bench.data.shard import WHOLE, Share
from bench.data.storage import Place
from bench.spec.suite import Data

_POOL_BYTES = 512 * 2**20
"""An epoch cycles through as many distinct batches as take this much memory."""


def random_batches(
    data: Data, *, batch_size: int, count: int, device: torch.device, seed: int
) -> list[tuple[Tensor, Tensor]]:
    """Return ``count`` batches of normal inputs and random targets, made on ``device``.

    The values follow from the seed on devices of one kind; a CPU and a GPU have different generators and so different
    values, for drawing large batches on the CPU and copying them would take longer than training on them.
    Normal values, because zeros and constants change how fast and how hot hardware runs.

    Args:
        data: what a sample is.
        batch_size: samples in a batch.
        count: batches.
        device: where they are made.
        seed: of their values.

    Returns:
        Pairs of inputs, (B, *input_shape) float32, and targets: (B,) int64 classes, uniform, or (B, *target_shape)
        float32 values, normal.
    """
    generator = value_generator(seed, device)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn((batch_size, *shape), generator=generator, device=device)

    def targets() -> Tensor:
        if data.classes is None:
            return normal(data.target_shape or ())
        return torch.randint(data.classes, (batch_size,), generator=generator, device=device)

    return [(normal(data.input_shape), targets()) for _ in range(count)]


class SyntheticBatches:
    """Epochs of ``data.steps_per_epoch`` batches out of a pool on the device; there is no test set."""

    has_test = False
    place: Place = "device"

    def __init__(self, data: Data, *, batch_size: int, device: torch.device, seed: int, share: Share = WHOLE) -> None:
        """Fill the pool: all of an epoch's batches, or as many as its memory holds, but at least two."""
        self.data = data
        self.steps_per_epoch = data.steps_per_epoch
        fitting = max(2, _POOL_BYTES // _batch_bytes(data, batch_size))
        count = min(fitting, self.steps_per_epoch)
        part = share.of(0, batch_size)
        pool = random_batches(data, batch_size=batch_size, count=count, device=device, seed=seed)
        self._pool = [(inputs[part], targets[part]) for inputs, targets in pool]

    def train(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same batches in every epoch, so that the losses of two epochs can be compared."""
        del epoch
        for step in range(self.steps_per_epoch):
            yield self._pool[step % len(self._pool)]

    def test(self, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield nothing."""
        del share
        return iter(())

    train_sample = test


def _batch_bytes(data: Data, batch_size: int) -> int:
    target_bytes = 8 if data.classes is not None else 4 * math.prod(data.target_shape or ())
    return batch_size * (4 * math.prod(data.input_shape) + target_bytes)
