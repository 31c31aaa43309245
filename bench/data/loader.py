"""The usual loader: image files decoded, cropped and mirrored one by one by worker processes, without end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms

from bench.data import folder
from bench.data.decode import rgb
from bench.data.prepare import is_synthetic, load
from bench.data.sampling import value_generator
from bench.data.transfer import Batch
from bench.spec.suite import Data
from bench.spec.trial import DataSource

WORKERS, AHEAD = 2, 2
"""Worker processes, and batches that each keeps ready."""
DEPTH = WORKERS * AHEAD + 1
"""Batches that may be ready when an arm's turn comes, one in the prefetcher's hands among them."""
RANDOM_IMAGES = 256
"""Distinct samples where there are no image files."""


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Training images as files, each decoded when it is asked for, as torchvision's ImageFolder does."""

    def __init__(self, images: Any, labels: Any, data: Data, *, normalize: bool) -> None:
        """Take the images.

        Args:
            images: paths, or arrays of (N, H, W, 3) uint8.
            labels: their classes.
            data: the shape wanted, and what is done to an image.
            normalize: whether pixels become normalised floats here, or stay uint8 for the device to do it.
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
        picture = rgb(image) if isinstance(image, str) else Image.fromarray(image)
        return self._transform(picture), int(self._labels[index])


class RandomSamples(Dataset[Batch]):
    """Samples of a suite that is not trained on images."""

    def __init__(self, data: Data, seed: int) -> None:
        """Draw them."""
        generator = value_generator(seed, torch.device("cpu"))
        self._inputs = torch.randn((RANDOM_IMAGES, *data.input_shape), generator=generator)
        if data.classes is None:
            self._targets = torch.randn((RANDOM_IMAGES, *(data.target_shape or ())), generator=generator)
        else:
            self._targets = torch.randint(data.classes, (RANDOM_IMAGES,), generator=generator)

    def __len__(self) -> int:
        return RANDOM_IMAGES

    def __getitem__(self, index: int) -> Batch:
        return self._inputs[index], self._targets[index]


class Endless(torch.utils.data.Sampler[list[int]]):
    """Whole batches of indices in random order, epoch after epoch."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        """Set the seed of the order."""
        self._count, self._batch_size, self._seed = count, batch_size, seed

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self._seed)
        rest: list[int] = []
        while True:
            while len(rest) < self._batch_size:
                rest += torch.randperm(self._count, generator=generator).tolist()
            yield rest[: self._batch_size]
            rest = rest[self._batch_size :]


class Turns:
    """Batches that several threads take from one loader, whose iterator knows of one: each waits for its turn."""

    def __init__(self, batches: Iterator[Any]) -> None:
        """Take a loader's iterator."""
        self.batches = batches
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch, whoever asks."""
        with self._turn:
            return next(self.batches)


def open_samples(data: Data, source: DataSource, *, normalize: bool, seed: int) -> Dataset[Any]:
    """Return the samples that a source is trained on: files where there are files, without those set apart."""
    if not data.is_image:
        return RandomSamples(data, seed)
    if source.kind == "folder":
        listing = folder.training_images(str(source.path), data.validation_share)
        return ImageFiles(listing.paths, listing.labels, data, normalize=normalize)
    if source.kind == "cifar10":
        split = load(data, source).train
        pixels = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        return ImageFiles(pixels, split.labels.numpy(), data, normalize=normalize)
    chance = np.random.default_rng(seed)
    height, width = data.input_shape[1:]
    pixels = chance.integers(0, 256, (RANDOM_IMAGES, height, width, 3), dtype=np.uint8)
    return ImageFiles(pixels, chance.integers(0, data.classes or 1, RANDOM_IMAGES), data, normalize=normalize)


def open_loader(samples: Dataset[Any], *, batch_size: int, seed: int, pinned: bool) -> DataLoader[Any]:
    """Return an endless loader over ``samples`` with its worker processes, batches in pinned memory if asked for."""
    if isinstance(samples, IterableDataset):
        raise TypeError("samples must have a length and an order")
    return DataLoader(
        samples,
        batch_sampler=Endless(len(samples), batch_size, seed),  # type: ignore[arg-type]  # Dataset has no len
        num_workers=WORKERS,
        prefetch_factor=AHEAD,
        pin_memory=pinned,
        multiprocessing_context="fork",
    )


def steps_per_epoch(data: Data, source: DataSource, batch_size: int, samples: int) -> int:
    """Return the whole batches in an epoch: of ``samples`` of files, or as many as the suite says of random ones."""
    if is_synthetic(data, source):
        return data.steps_per_epoch
    return max(1, samples // batch_size)


def batch_ms(batches: Iterator[Any], count: int) -> float:
    """Return the time that the loader takes for a batch when nothing else runs, in milliseconds.

    Args:
        batches: a loader's, of which as many as may be ready are dropped first.
        count: how many to time.
    """
    for _ in range(DEPTH):
        next(batches)
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return 1000 * (time.perf_counter() - start) / count
