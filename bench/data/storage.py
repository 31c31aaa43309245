"""Where a split's decoded images stay while they are trained on, and how a batch of them gets to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from bench.data.cache import Split
from bench.devices.backend import backend_of
from bench.devices.cpu import available_bytes

Place = Literal["device", "host", "file"]
DEVICE_SHARE = 0.25
"""Images stay on the device if they take no more than this share of its free memory: the rest is for training."""
HOST_SHARE = 0.5
"""Else in host memory if they take no more than this share of what is available there; else in the file."""


class Images(Protocol):
    """One split's images and labels, wherever they are."""

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self, order: Tensor, batches: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, (B, 3, H, W) uint8, and labels, (B,) int64, on the device.

        Args:
            order: indices of images, (N,) int64, on the CPU.
            batches: which part of the order each batch is.
        """


def choose_place(size_bytes: int, device_free: int, host_free: int) -> Place:
    """Choose by bytes where ``size_bytes`` of decoded images stay."""
    if size_bytes <= DEVICE_SHARE * device_free:
        return "device"
    return "host" if size_bytes <= HOST_SHARE * host_free else "file"


def free_bytes(device: torch.device, processes: int = 1) -> tuple[int, int]:
    """Return the free memory of the device and what of the host's is there for each of several processes."""
    host, backend = available_bytes() // processes, backend_of(device)
    return (backend.free_bytes() if backend.is_gpu else host), host


def open_images(split: Split, place: Place, device: torch.device) -> Images:
    """Bring a split to its place."""
    return OnDevice(split, device) if place == "device" else OnHost(split, place, device)


class OnDevice:
    """Images on the device, out of which a batch is one operation."""

    def __init__(self, split: Split, device: torch.device) -> None:
        # A copy on the CPU too: mapped from the file, pages would arrive while something is measured.
        self._images = split.images.to(device, copy=True)
        self._labels = split.labels.to(device, copy=True)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, order: Tensor, batches: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches."""
        there = order.to(self._labels.device)
        for batch in batches:
            yield self._images.index_select(0, there[batch]), self._labels.index_select(0, there[batch])


class OnHost:
    """Images in host memory, or mapped from their file, gathered by a thread one batch ahead."""

    def __init__(self, split: Split, place: Place, device: torch.device) -> None:
        self._images = split.images.clone() if place == "host" else split.images
        self._labels = split.labels.to(device, copy=True)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, order: Tensor, batches: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches; while one is trained on, the next is gathered.

        A thread suffices, for numpy gathers without the interpreter's lock, and disks are waited for without it.
        Processes would have to be handed every batch, and a trial's process is daemonic and may have none.
        """
        there = order.to(self._labels.device)
        with ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
            coming: deque[Future[Tensor]] = deque()
            for ahead, batch in zip((*batches[1:], None), batches, strict=True):
                if not coming:
                    coming.append(self._begin(reader, order[batch]))
                images = coming.popleft().result()
                if ahead is not None:
                    coming.append(self._begin(reader, order[ahead]))
                # The allocator of pinned memory knows of the copy under way, and does not hand the buffer out before
                # it ends.
                yield images.to(self._labels.device, non_blocking=True), self._labels.index_select(0, there[batch])

    def _begin(self, reader: ThreadPoolExecutor, rows: Tensor) -> Future[Tensor]:
        # Made here and not by the reader, for which another GPU may be the current one.
        on_gpu = backend_of(self._labels.device).is_gpu
        buffer = torch.empty((len(rows), *self._images.shape[1:]), dtype=torch.uint8, pin_memory=on_gpu)
        return reader.submit(_gather, self._images, rows, buffer)


def _gather(images: Tensor, rows: Tensor, buffer: Tensor) -> Tensor:
    """Copy images into the buffer by one thread; torch's own gathering would start a second team of threads."""
    np.take(images.numpy(), rows.numpy(), axis=0, out=buffer.numpy(), mode="clip")  # other modes copy once more
    return buffer
