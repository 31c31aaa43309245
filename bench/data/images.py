"""Batches of images: resident on the device where they fit, augmented there, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import torch
from torch import Tensor

from bench.data import draws
from bench.data.augment import Normalizer, crop, mirror, resize
from bench.data.cache import Dataset, Split
from bench.data.draws import Augmentation
from bench.data.share import WHOLE, Share
from bench.spec import Data, UsageError

_RESIDENT_SHARE = 0.25
"""Images stay on the device if they take less than this share of its free memory."""


class ImageBatches:
    """Epochs of training batches, augmented, and the test set, in order."""

    has_test = True

    def __init__(
        self,
        dataset: Dataset,
        data: Data,
        *,
        batch_size: int,
        device: torch.device,
        seed: int,
        share: Share = WHOLE,
        non_blocking: bool = False,
    ) -> None:
        """Bring the images to the device if they fit.

        Raises:
            UsageError: a batch is larger than the training set.
        """
        count = len(dataset.train.labels)
        if batch_size > count:
            raise UsageError(
                f"A batch of {batch_size} is larger than the training set, which has {count} images. "
                f"Give --batch-sizes of {count} or less, or more images."
            )
        self.data = data
        self.steps_per_epoch = count // batch_size
        self._batch_size = batch_size
        self._device = device
        self._seed = seed
        self._share = share
        self._size = (data.input_shape[1], data.input_shape[2])
        self._normalized = Normalizer(data.mean, data.std, device)
        total_bytes = dataset.train.images.nbytes + dataset.test.images.nbytes
        resident = total_bytes < _RESIDENT_SHARE * _free_bytes(device)
        self._train, self._test = (
            _Store(split, device, resident, non_blocking) for split in (dataset.train, dataset.test)
        )

    def train(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield full batches, (B, 3, H, W) float32 and (B,) int64, in the order of ``seed`` and ``epoch``.

        B is this process's share of the batch size.
        """
        padding = self.data.crop_padding
        total = self.steps_per_epoch * self._batch_size
        order = draws.order(len(self._train), seed=self._seed, epoch=epoch)
        there = order.to(self._device)
        drawn = Augmentation.draw(total, padding, seed=self._seed, epoch=epoch).to(self._device)
        for start in range(0, total, self._batch_size):
            batch = self._share.of(start, self._batch_size)
            images, labels = self._train.take(order[batch], there[batch])
            chance = drawn.of(batch)
            # Mirrored before it is resized, while it is small; cropped after, for the padding counts input pixels.
            if self.data.flip:
                images = mirror(images, chance.mirrored)
            images = self._resized(images)
            if padding:
                images = crop(images, chance.top, chance.left, padding)
            yield self._normalized(images), labels

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every test image once, in order, never augmented; the last batch may be smaller."""
        total = len(self._test)
        order = torch.arange(total)
        there = order.to(self._device)
        for start in range(0, total, self._batch_size):
            batch = slice(start, start + self._batch_size)
            images, labels = self._test.take(order[batch], there[batch])
            yield self._normalized(self._resized(images)), labels

    def _resized(self, images: Tensor) -> Tensor:
        return images if images.shape[2:] == self._size else resize(images, self._size)


class _Store:
    """One split's images, on the device or in host memory, and its labels, on the device."""

    def __init__(self, split: Split, device: torch.device, resident: bool, non_blocking: bool) -> None:
        # A copy on the CPU too: mapped from the file, pages would arrive while something is measured.
        self._images = split.images.to(device, copy=True) if resident else split.images
        self._labels = split.labels.to(device, copy=True)
        self._device, self._non_blocking = device, non_blocking

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return images, uint8, and labels on the device, by indices given on the CPU and also ``there``."""
        labels = self._labels.index_select(0, there)
        if self._images.device == self._device:
            return self._images.index_select(0, there), labels
        # Pinned for a copy that nobody waits for, and only the batch, so that images larger than memory can stay in
        # their file. The allocator of pinned memory knows of the copy under way, and does not hand this buffer out
        # again before it ends.
        batch = torch.empty((len(rows), *self._images.shape[1:]), dtype=torch.uint8, pin_memory=self._non_blocking)
        torch.index_select(self._images, 0, rows, out=batch)
        return batch.to(self._device, non_blocking=self._non_blocking), labels


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
