"""CIFAR-10: from its archive, downloaded where it is missing, to tensors."""

from __future__ import annotations

import hashlib
import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torchvision.datasets import CIFAR10

from bench.data import cache
from bench.data.cache import Dataset, Split
from bench.spec.errors import UsageError

STALLED_S = 30.0
"""Timeout of a server that sends nothing."""
FAILURES = (OSError, RuntimeError, http.client.HTTPException)
"""Exceptions of torch's and torchvision's downloads: no network, a wrong checksum, a broken answer."""

_SIZE_BYTES = 60_000 * 3 * 32 * 32
_COPIES = 3
"""Disk space is needed for the archive, its files, and the tensors made of them."""


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
        UsageError: it is not there and cannot be downloaded, or the directory cannot be written.
    """
    home = Path(directory)
    checksums = repr((CIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta))
    path = home / "cache" / f"cifar10-{hashlib.blake2b(checksums.encode(), digest_size=8).hexdigest()}.pt"
    if (cached := cache.read(path)) is not None:
        return cached
    cache.require_room(home, _COPIES * _SIZE_BYTES, "CIFAR-10, its archive and its images")
    kept = home / CIFAR10.filename
    with cache.staging(home) as folder:
        for name in (CIFAR10.filename, CIFAR10.base_folder):
            if (home / name).exists():
                (folder / name).symlink_to((home / name).resolve())
        try:
            with connection_timeout():
                train, test = (CIFAR10(folder, train=train, download=True) for train in (True, False))
        except FAILURES as error:
            state = f"has a damaged {kept.name} (wrong checksum) in" if kept.exists() else "is not in"
            raise UsageError(
                f"CIFAR-10 {state} '{home}' and could not be downloaded from {CIFAR10.url} "
                f"({getattr(error, 'reason', error)}). Put {kept.name} in '{home}', "
                "or give --data folder:PATH or --data synthetic."
            ) from error
        if not kept.exists() and (folder / kept.name).exists():
            (folder / kept.name).replace(kept)
        return cache.write(path, Dataset(train=_split(train), test=_split(test), classes=tuple(train.classes)))


def _split(part: CIFAR10) -> Split:
    images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
    return Split(images=images, labels=torch.tensor(part.targets, dtype=torch.int64))
