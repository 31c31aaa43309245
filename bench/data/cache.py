"""Decoded images: one file of uint8 tensors, which processes map, and where they stay while a model is trained."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench.devices.backend import backend_of
from bench.devices.cpu import available_bytes
from bench.spec.errors import UsageError

GIB = 2**30
SPLITS = ("train", "test")

Storage = Literal["device", "host", "file"]
DEVICE_SHARE = 0.25
"""Images stay on the device if they take no more than this share of its free memory: the rest is for training."""
HOST_SHARE = 0.5
"""Else in host memory if they take no more than this share of what is available there; else in the file."""


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


def read(path: Path) -> Dataset | None:
    """Return the data set in ``path``, or None where there is none that can be read.

    The images are mapped, not copied: a dataset larger than memory can be used.
    """
    try:
        state = torch.load(path, mmap=True, weights_only=True)
        train, test = (Split(images=state[f"{name}_images"], labels=state[f"{name}_labels"]) for name in SPLITS)
        return Dataset(
            train=train, test=test, classes=tuple(state["classes"]), left_out=tuple(state.get("left_out", ()))
        )
    except Exception:  # a missing file, or a damaged one, which raises nearly anything; it is decoded again
        return None


def write(path: Path, dataset: Dataset) -> Dataset:
    """Write the data set to ``path`` atomically, and return it as ``read`` does.

    Raises:
        UsageError: the directory cannot be written.
    """
    state: dict[str, list[str] | Tensor] = {"classes": list(dataset.classes), "left_out": list(dataset.left_out)}
    for name, split in zip(SPLITS, (dataset.train, dataset.test), strict=True):
        state |= {f"{name}_images": split.images, f"{name}_labels": split.labels}
    try:
        with staging(path.parent) as folder:
            torch.save(state, folder / path.name)
            (folder / path.name).replace(path)
    except (OSError, RuntimeError) as error:  # torch.save turns a full disk into a RuntimeError
        raise UsageError(
            f"The decoded images cannot be kept in '{path.parent}' ({error}). Choose another place with --data-dir."
        ) from error
    return read(path) or dataset


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """Yield a temporary folder inside ``directory``, out of which a finished file moves atomically.

    It is removed afterwards, and so are folders that were created for it and are still empty.
    """
    created = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=directory) as name:
            yield Path(name)
    finally:
        for folder in created:
            with suppress(OSError):
                folder.rmdir()


def require_room(directory: Path, size_bytes: int, what: str) -> None:
    """Check that the disk has room for decoded images and all intermediate files, before minutes are spent on them.

    The ``directory`` of the cache need not exist yet; the message says ``what`` needs the room.

    Raises:
        UsageError: the disk is too small, or the directory cannot be written.
    """
    existing = next(folder for folder in (directory, *directory.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"The data directory '{directory}' cannot be written. Choose another with --data-dir.")
    free_bytes = shutil.disk_usage(existing).free
    if size_bytes > free_bytes:
        raise UsageError(
            f"{what} take {size_bytes / GIB:.1f} GiB, and the disk of '{directory}' has {free_bytes / GIB:.1f} GiB "
            "free. Use fewer images, smaller input images, or a --data-dir with more room."
        )


def choose_storage(size_bytes: int, device_free: int, host_free: int) -> Storage:
    """Return where ``size_bytes`` of decoded images stay."""
    if size_bytes <= DEVICE_SHARE * device_free:
        return "device"
    return "host" if size_bytes <= HOST_SHARE * host_free else "file"


def free_bytes(device: torch.device, ranks: int = 1) -> tuple[int, int]:
    """Return the free memory of the device, and of the host for each of several ranks."""
    host, backend = available_bytes() // ranks, backend_of(device)
    return (backend.free_bytes() if backend.is_gpu else host), host


class Images:
    """A split's images on the device, in host memory, or mapped from their file; labels are on the device."""

    def __init__(self, split: Split, storage: Storage, device: torch.device) -> None:
        self._on_device, self._pinned = storage == "device", backend_of(device).is_gpu
        # A copy on the CPU too: mapped from the file, pages would arrive while something is measured.
        home = device if self._on_device else torch.device("cpu")
        self._images = split.images if storage == "file" else split.images.to(home, copy=True)
        self._labels = split.labels.to(device, copy=True)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, order: Tensor, batches: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, (B, 3, H, W) uint8, and labels, (B,) int64, on the device.

        Images that are not on the device are gathered by a thread: the next batch while one is trained on. A thread
        suffices, because numpy gathers and disks are waited for without the interpreter's lock. Processes would have to
        be sent every batch, and a trial's process is daemonic and may have none.

        Args:
            order: indices of images, (N,) int64, on the CPU.
            batches: the part of the order that each batch takes.
        """
        device = self._labels.device
        on_device = order.to(device)
        if self._on_device:
            for batch in batches:
                rows = on_device[batch]
                yield self._images.index_select(0, rows), self._labels.index_select(0, rows)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
            begun = (self._begin(reader, order[batch]) for batch in batches)
            for batch, (gathered, _ahead) in zip(batches, pairwise(chain(begun, [None])), strict=True):
                assert gathered is not None  # None follows the last
                # The pinned allocator knows of the copy under way, and does not reuse the buffer before it ends.
                images = gathered.result().to(device, non_blocking=True)
                yield images, self._labels.index_select(0, on_device[batch])

    def _begin(self, reader: ThreadPoolExecutor, rows: Tensor) -> Future[Tensor]:
        # Allocated here: in the reader's thread another GPU may be the current one.
        buffer = torch.empty((len(rows), *self._images.shape[1:]), dtype=torch.uint8, pin_memory=self._pinned)
        return reader.submit(_gather, self._images, rows, buffer)


def _gather(images: Tensor, rows: Tensor, buffer: Tensor) -> Tensor:
    """Copy images into the buffer by one thread; torch's own gathering would start a second team of threads."""
    np.take(images.numpy(), rows.numpy(), axis=0, out=buffer.numpy(), mode="clip")  # other modes copy once more
    return buffer
