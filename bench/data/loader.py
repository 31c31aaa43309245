"""The usual DataLoader, endless: worker processes decode, crop and mirror image files one by one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from torchvision import transforms

from bench.data import folder
from bench.data.batches import random_batches
from bench.data.prepare import is_synthetic, load
from bench.spec.suite import Data
from bench.spec.text import plain
from bench.spec.trial import DataSource

WORKERS, AHEAD = 2, 2
"""Worker processes, and batches that each keeps ready."""
DEPTH = WORKERS * AHEAD + 1
"""Batches that may be ready when an arm's turn comes, including the prefetcher's."""
RANDOM_SAMPLES = 256
"""Distinct samples where there are no image files."""


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Training images, each decoded and transformed when it is asked for, as torchvision's ImageFolder does."""

    def __init__(self, images: Any, labels: Any, data: Data, *, normalize: bool) -> None:
        """Take paths, or an array of (N, H, W, 3) uint8, and their classes.

        With ``normalize`` pixels become normalised floats; else they stay uint8 for the device to normalise.
        """
        self._images, self._labels = images, labels
        height, width = data.input_shape[1:]
        use: Any = transforms
        steps: list[Any] = [use.Resize((height, width))]
        steps += [use.RandomCrop((height, width), padding=data.crop_padding)] if data.crop_padding else []
        steps += [use.RandomHorizontalFlip()] if data.flip else []
        steps += [use.PILToTensor()]
        if normalize:
            steps += [use.ConvertImageDtype(torch.float32), use.Normalize(data.mean, data.std)]
        self._transform = use.Compose(steps)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._images[index]
        picture = folder.rgb(image) if isinstance(image, str) else Image.fromarray(image)
        return self._transform(picture), int(self._labels[index])


class Turns:
    """A loader's iterator, which is not safe for threads, shared by several: each waits for its turn."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        with self._turn:
            return next(self.batches)


def open_samples(data: Data, source: DataSource, *, normalize: bool, seed: int) -> ImageFiles | TensorDataset:
    """Return the training samples of a source, without the held-out ones; random ones where it has no files."""
    if not data.is_image:
        ((inputs, targets),) = random_batches(
            data, batch_size=RANDOM_SAMPLES, count=1, device=torch.device("cpu"), seed=seed
        )
        return TensorDataset(inputs, targets)
    images: Any
    labels: Any
    if source.kind == "folder":
        listing, unread = folder.listings(str(source.path), data.validation_share)[0], set(load(data, source).left_out)
        readable = listing.pick([at for at, path in enumerate(listing.paths) if plain(path) not in unread])
        images, labels = readable.paths, readable.labels
    elif source.kind in ("cifar10", "digits"):
        split = load(data, source).train
        images, labels = split.images.permute(0, 2, 3, 1).contiguous().numpy(), split.labels.numpy()
    else:
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (RANDOM_SAMPLES, *data.input_shape[1:], 3), dtype=np.uint8)
        labels = rng.integers(0, data.classes or 1, RANDOM_SAMPLES)
    return ImageFiles(images, labels, data, normalize=normalize)


def open_loader(samples: ImageFiles | TensorDataset, *, batch_size: int, seed: int, pinned: bool) -> DataLoader[Any]:
    """Return an endless loader with its worker processes: whole batches in random order, epoch after epoch.

    A batch may have the last samples of an epoch and the first of the next. ``pinned`` puts it into pinned memory.
    """
    dataset: Any = samples
    order = RandomSampler(samples, num_samples=sys.maxsize, generator=torch.Generator().manual_seed(seed))
    return DataLoader(
        dataset,
        batch_size,
        sampler=order,
        drop_last=True,
        num_workers=WORKERS,
        prefetch_factor=AHEAD,
        pin_memory=pinned,
        # Processes started anew would import torch for seconds, and hold a copy of all images each. A fork lacks the
        # threads that this process may have: those that feed another loader's workers or pin its batches, and CUDA's.
        # A worker uses nothing of theirs.
        multiprocessing_context="fork",
    )


def steps_per_epoch(data: Data, source: DataSource, batch_size: int, samples: int) -> int:
    """Return the batches in an epoch: the whole ones of ``samples`` files, or as many as the suite says."""
    if data.tokens or is_synthetic(data, source):
        return data.steps_per_epoch
    return max(1, samples // batch_size)


def batch_ms(batches: Iterator[Any], count: int) -> float:
    """Time ``count`` batches of a loader when nothing else runs, after those that may be ready; return the mean."""
    for _ in range(DEPTH):
        next(batches)
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return 1000 * (time.perf_counter() - start) / count
