"""Where decoded images stay during training, and how a batch of them gets to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench.data.cache import Split
from bench.devices.backend import backend_of
from bench.devices.cpu import available_bytes

Storage = Literal["device", "host", "file"]
DEVICE_SHARE = 0.25
"""Images stay on the device if they take no more than this share of its free memory: the rest is for training."""
HOST_SHARE = 0.5
"""Else in host memory if they take no more than this share of what is available there; else in the file."""


def choose_storage(size_bytes: int, device_free: int, host_free: int) -> Storage:
    """Return where ``size_bytes`` of decoded images stay."""
    if size_bytes <= DEVICE_SHARE * device_free:
        return "device"
    return "host" if size_bytes <= HOST_SHARE * host_free else "file"


def free_bytes(device: torch.device, ranks: int = 1) -> tuple[int, int]:
    """Return the free memory of the device, and of the host for each of several ranks."""
    host, backend = available_bytes() // ranks, backend_of(device)
    return (backend.free_bytes() if backend.is_gpu else host), host


class OnDevice:
    """A split's images on the device, out of which a batch is one operation."""

    def __init__(self, split: Split, device: torch.device) -> None:
        # A copy on the CPU too: mapped from the file, pages would arrive while something is measured.
        self._images = split.images.to(device, copy=True)
        self._labels = split.labels.to(device, copy=True)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, order: Tensor, batches: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, (B, 3, H, W) uint8, and labels, (B,) int64, on the device.

        Args:
            order: indices of images, (N,) int64, on the CPU.
            batches: the part of the order that each batch takes.
        """
        order = order.to(self._labels.device)
        for batch in batches:
            yield self._images.index_select(0, order[batch]), self._labels.index_select(0, order[batch])


class OnHost:
    """A split's images in host memory, or mapped from their file, gathered by a thread one batch ahead."""

    def __init__(self, split: Split, storage: Storage, device: torch.device) -> None:
        self._images = split.images.clone() if storage == "host" else split.images
        self._labels = split.labels.to(device, copy=True)
        self._pinned = backend_of(device).is_gpu

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, order: Tensor, batches: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield as ``OnDevice`` does; while one batch is trained on, the next is gathered.

        A thread suffices, because numpy gathers and disks are waited for without the interpreter's lock. Processes
        would have to be sent every batch, and a trial's process is daemonic and may have none.
        """
        device = self._labels.device
        on_device = order.to(device)
        with ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
            begun = (self._begin(reader, order[batch]) for batch in batches)
            ahead = deque(islice(begun, 1))
            for batch in batches:
                images = ahead.popleft().result()
                ahead.extend(islice(begun, 1))
                # The pinned allocator knows of the copy under way, and does not reuse the buffer before it ends.
                yield images.to(device, non_blocking=True), self._labels.index_select(0, on_device[batch])

    def _begin(self, reader: ThreadPoolExecutor, rows: Tensor) -> Future[Tensor]:
        # Allocated here: in the reader's thread another GPU may be the current one.
        buffer = torch.empty((len(rows), *self._images.shape[1:]), dtype=torch.uint8, pin_memory=self._pinned)
        return reader.submit(_gather, self._images, rows, buffer)


Images = OnDevice | OnHost


def open_images(split: Split, storage: Storage, device: torch.device) -> Images:
    """Bring a split to its storage."""
    return OnDevice(split, device) if storage == "device" else OnHost(split, storage, device)


def _gather(images: Tensor, rows: Tensor, buffer: Tensor) -> Tensor:
    """Copy images into the buffer by one thread; torch's own gathering would start a second team of threads."""
    np.take(images.numpy(), rows.numpy(), axis=0, out=buffer.numpy(), mode="clip")  # other modes copy once more
    return buffer
