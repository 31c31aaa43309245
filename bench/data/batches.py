"""Batches on a device, whatever they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from bench.data.images import ImageBatches
from bench.data.prepare import filled_in, is_synthetic, load
from bench.data.shard import WHOLE, Share
from bench.data.storage import Place
from bench.data.synthetic import SyntheticBatches
from bench.spec.suite import Data
from bench.spec.trial import DataSource


class Batches(Protocol):
    """Epochs of training batches, and a test set where there is one."""

    @property
    def data(self) -> Data:
        """What a sample is, with the number of classes that the samples really have."""

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch; all are full."""

    @property
    def place(self) -> Place:
        """Where the samples are while they are trained on."""

    @property
    def has_test(self) -> bool:
        """Whether ``test`` yields anything."""

    def train(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the epoch's batches: inputs (B, *input_shape) float32, and targets, on the device.

        Targets are classes, (B,) int64, or values, (B, *target_shape) float32.
        """

    def test(self, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every test sample once, in order, or a share of every batch; the last batch may be smaller."""

    def train_sample(self, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a part of the training samples as ``test`` does, always the same; nothing where that yields nothing."""


def open_batches(
    data: Data,
    source: DataSource,
    *,
    batch_size: int,
    device: torch.device,
    seed: int,
    share: Share = WHOLE,
) -> Batches:
    """Open the samples of ``source`` as batches on ``device``.

    What ``prepare`` left in the cache is used; without it, it is made now. Order and augmentation are a
    function of ``seed`` and the epoch alone: the same for every precision and device.

    Args:
        data: what a sample is, and what is done to an image.
        source: where samples come from. Data that are not images with a class are always synthetic.
        batch_size: samples in a batch.
        device: where batches are wanted.
        seed: of order and augmentation, or of the synthetic values.
        share: this process's part of every training batch.

    Raises:
        UsageError: as ``prepare``, a batch is larger than the training set, or it cannot be shared evenly.
    """
    share.require_even(batch_size)
    if is_synthetic(data, source):
        return SyntheticBatches(data, batch_size=batch_size, device=device, seed=seed, share=share)
    dataset = load(data, source)
    return ImageBatches(
        dataset,
        filled_in(data, dataset),
        batch_size=batch_size,
        device=device,
        seed=seed,
        share=share,
    )
