"""Batches of images, augmented on the device, a batch at a time; where they stay meanwhile is in ``places``."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.data import sampling
from bench.data.augment import Normalizer, crop, mirror, resize
from bench.data.cache import Dataset
from bench.data.sampling import Augmentation
from bench.data.shard import WHOLE, Share
from bench.data.storage import Images, Place, choose_place, free_bytes, open_images
from bench.spec.errors import UsageError
from bench.spec.suite import Data

TRAIN_SAMPLE = 2000
"""Most training images that accuracy on them is told of."""


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
    ) -> None:
        """Bring the images to the device, or to host memory, if they fit.

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
        self.place: Place = choose_place(total_bytes, *free_bytes(device, share.ranks))
        self._train, self._test = (open_images(split, self.place, device) for split in (dataset.train, dataset.test))

    def train(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield full batches, (B, 3, H, W) float32 and (B,) int64, in the order of ``seed`` and ``epoch``.

        B is this process's share of the batch size.
        """
        padding = self.data.crop_padding
        total = self.steps_per_epoch * self._batch_size
        order = sampling.order(len(self._train), seed=self._seed, epoch=epoch)
        drawn = Augmentation.draw(total, padding, seed=self._seed, epoch=epoch).to(self._device)
        batches = [self._share.of(start, self._batch_size) for start in range(0, total, self._batch_size)]
        for batch, (images, labels) in zip(batches, self._train.take(order, batches), strict=True):
            yield self._normalized(self._augmented(images, drawn.of(batch))), labels

    def test(self, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every test image once, or a share of every batch, in order, never augmented.

        The last batch may be smaller; a batch of which the share is nothing is left out.
        """
        return self._plain(self._test, torch.arange(len(self._test)), share)

    def train_sample(self, share: Share = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield at most 2,000 training images as ``test`` does, no more than it yields: always the same, evenly spread.

        Those of a folder lie by class, of which each has its part then.
        """
        count, total = min(len(self._train), len(self._test), TRAIN_SAMPLE), len(self._train)
        return self._plain(self._train, torch.arange(count) * total // count, share)

    def _plain(self, images: Images, order: Tensor, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        total, size = len(order), self._batch_size
        parts = [share.within(start, min(start + size, total)) for start in range(0, total, size)]
        batches = [part for part in parts if part.start < part.stop]
        for taken, labels in images.take(order, batches):
            yield self._normalized(self._resized(taken)), labels

    def _augmented(self, images: Tensor, chance: Augmentation) -> Tensor:
        # Mirrored before it is resized, while it is small; cropped after, for the padding counts input pixels.
        turned = self._resized(mirror(images, chance.mirrored) if self.data.flip else images)
        padding = self.data.crop_padding
        return crop(turned, chance.top, chance.left, padding) if padding else turned

    def _resized(self, images: Tensor) -> Tensor:
        return images if images.shape[2:] == self._size else resize(images, self._size)
