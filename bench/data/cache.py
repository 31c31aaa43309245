"""Decoded images: packed once into one file, which processes map, or copied to the device."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from bench.data.transfer import prefetched
from bench.devices.backend import backend_of
from bench.devices.cpu import available_bytes

# What is kept with the pixels, as JSON.
Facts = dict[str, Any]
# Writes the pixels of all images.
Pack = Callable[[BinaryIO], Facts]
# Images stay on the device if they take no more than this share of its free memory: the rest is for
# training. Others are read from their file, which the system keeps in memory as far as there is
# room.
DEVICE_SHARE = 0.25
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Images and their classes."""

    images: Tensor
    """(N, 3, height, width) uint8."""
    labels: Tensor
    """(N,) int64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A training and a test set of the same classes."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    """Names, in the order of the labels."""
    left_out: tuple[str, ...] = ()
    """The images that cannot be read."""


def divided(
    images: Tensor,
    labels: Tensor,
    tested: int,
    classes: tuple[str, ...],
    left_out: tuple[str, ...] = (),
) -> Dataset:
    """Return the data set whose last images, as many as ``tested``, are tested on."""
    trained = len(labels) - tested
    return Dataset(
        train=Split(images=images[:trained], labels=labels[:trained]),
        test=Split(images=images[trained:], labels=labels[trained:]),
        classes=classes,
        left_out=left_out,
    )


def packed(file: Path, pack: Pack) -> tuple[Tensor, Facts]:
    """Return the images in ``file``, packed first if it is not there, and the facts kept with them.

    The images are mapped, not copied: a dataset larger than memory can be used. Of several
    processes that want the same file one packs it, and the others wait.

    Args:
        file: of pixels. The facts lie beside it as JSON; they appear last, and say that the file is
            whole.
        pack: writes the pixels of all images, and returns facts: ``size`` is (height, width), the
        others are its own.

    Returns:
        (N, 3, height, width) uint8, and the facts.

    Raises:
        OSError: the directory cannot be written, or the disk is full.
    """
    index = file.with_suffix(".json")
    if not index.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if not index.exists():
                _pack(file, index, pack)
    facts = json.loads(index.read_text())
    height, width = facts["size"]
    # Copy on write: torch takes no read-only array without a warning, and nobody writes.
    pixels = np.memmap(file, np.uint8, "c")
    images = pixels.reshape(-1, 3, height, width)
    return torch.from_numpy(images), facts


def _pack(file: Path, index: Path, pack: Pack) -> None:
    with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=file.parent) as name:
        draft = Path(name, "pixels")
        with draft.open("wb") as pixels:
            facts = pack(pixels)
            os.fsync(pixels)
        draft.replace(file)
        # Facts that are there say that the pixels are whole, so they come last.
        draft.write_text(json.dumps(facts))
        draft.replace(index)


def fits(size_bytes: int, device: torch.device, ranks: int = 1) -> bool:
    """Return whether so many bytes of decoded images stay on the device, in each of its ranks."""
    backend = backend_of(device)
    free = backend.free_bytes() if backend.is_gpu else available_bytes() // ranks
    return size_bytes <= DEVICE_SHARE * free


class Images:
    """A split's images on the device, or mapped from their file; labels are on the device."""

    def __init__(self, split: Split, device: torch.device, *, is_mapped: bool) -> None:
        self._is_mapped = is_mapped
        self._device = device
        self._images = split.images
        if not is_mapped:
            # A copy on the CPU too: mapped from the file, pages would arrive while something is
            # measured.
            self._images = split.images.to(device, copy=True)
        self._labels = split.labels.to(device, copy=True)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, order: Tensor, batches: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, (B, 3, H, W) uint8, and labels, (B,) int64, on the device.

        Images that are not on the device are gathered by a thread: the next batch while one is
        trained on. A thread suffices, because numpy gathers and disks are waited for without the
        interpreter's lock. Processes would have to be sent every batch, and a trial's process is
        daemonic and may have none.

        Args:
            order: indices of images, (N,) int64, on the CPU.
            batches: the part of the order that each batch takes.
        """
        on_device = order.to(self._device)
        if not self._is_mapped:
            for batch in batches:
                chosen = on_device[batch]
                images = self._images.index_select(0, chosen)
                labels = self._labels.index_select(0, chosen)
                yield images, labels
            return
        with closing(prefetched(self._gathered(order, batches), CPU)) as gathered:
            for batch, images in zip(batches, gathered, strict=True):
                # The pinned allocator knows of the copy under way, and does not reuse the buffer
                # before it ends.
                on_its_way = images.to(self._device, non_blocking=True)
                labels = self._labels.index_select(0, on_device[batch])
                yield on_its_way, labels

    def _gathered(self, order: Tensor, batches: Sequence[slice]) -> Iterator[Tensor]:
        """Yield batches of images in host memory, gathered in the thread that asks for them."""
        backend = backend_of(self._device)
        backend.set_current()  # for this thread: buffers are pinned for its current GPU
        images = self._images.numpy()
        for batch in batches:
            rows = order[batch].numpy()
            shape = (len(rows), *images.shape[1:])
            buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=backend.is_gpu)
            # torch's own gathering would start a second team of threads; other modes than clip copy
            # once more.
            gathered = buffer.numpy()
            np.take(
                images,
                rows,
                axis=0,
                out=gathered,
                mode="clip",
            )
            yield buffer
