"""CIFAR-10: from its archive, downloaded where it is missing, to tensors."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torchvision.datasets import CIFAR10

from bench.data import cache
from bench.data.cache import Dataset, Facts
from bench.spec.errors import UsageError

# Timeout of a server that sends nothing.
STALLED_S = 30.0
# Exceptions of torch's and torchvision's downloads: no network, a wrong checksum, a broken answer.
FAILURES = (OSError, RuntimeError, http.client.HTTPException)


@contextmanager
def connection_timeout() -> Iterator[None]:
    """Give up on a server that stalls: torch's and torchvision's downloads would wait forever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALLED_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def load(directory: str) -> Dataset:
    """Return CIFAR-10: 50,000 training and 10,000 test images of 32 × 32, in ten classes.

    Looked for in this order: the cache, torchvision's ``cifar-10-batches-py`` in ``directory``, the
    archive there, the network. Nothing is read whose checksum is not torchvision's.

    Raises:
        UsageError: it is not there and cannot be downloaded.
        OSError: the directory cannot be written.
    """
    home = Path(directory)

    def pack(pixels: BinaryIO) -> Facts:
        train, test = _downloaded(home)
        for part in (train, test):
            # torchvision has the channels last.
            channels_first = part.data.transpose(0, 3, 1, 2)
            pixels.write(channels_first.tobytes())
        return {
            "size": (32, 32),
            "labels": train.targets + test.targets,
            "tested": len(test),
            "classes": train.classes,
        }

    images, facts = cache.packed(home / "cache" / "cifar10.pixels", pack)
    labels = torch.tensor(facts["labels"])
    return cache.divided(images, labels, facts["tested"], tuple(facts["classes"]))


def _downloaded(home: Path) -> list[CIFAR10]:
    """Return torchvision's training and test images; what is downloaded for them stays."""
    try:
        with connection_timeout():
            return [CIFAR10(home, train=train, download=True) for train in (True, False)]
    except FAILURES as error:
        # A URLError's reason is what the network said.
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"CIFAR-10 is not in '{home}', or not with the right checksums, and could not be "
            f"downloaded from {CIFAR10.url} ({reason}). Put "
            f"{CIFAR10.filename} in '{home}', or give --data folder:PATH or --data synthetic."
        ) from error
