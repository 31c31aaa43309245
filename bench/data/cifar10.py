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
from torchvision.datasets.utils import check_integrity, download_url, extract_archive

from bench.data import cache
from bench.data.cache import Dataset, Split
from bench.spec.errors import UsageError

STALLED_S = 30.0
"""Timeout of a server that sends nothing."""
FAILURES = (OSError, RuntimeError, http.client.HTTPException)
"""What torch's and torchvision's downloads raise: no network, a wrong checksum, a broken answer."""

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
    path = home / "cache" / f"cifar10-{_fingerprint()}.pt"
    if (cached := cache.read(path)) is not None:
        return cached
    cache.require_room(home, _COPIES * _SIZE_BYTES, "CIFAR-10, its archive and its images")
    if _is_extracted(home):
        return cache.write(path, _read(home))
    with cache.staging(home) as folder:
        archive = _archive(home, folder)
        extract_archive(str(archive), str(folder))
        return cache.write(path, _read(folder))


def _fingerprint() -> str:
    checksums = repr((CIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta))
    return hashlib.sha256(checksums.encode()).hexdigest()[:16]


def _is_extracted(home: Path) -> bool:
    parts = [*CIFAR10.train_list, *CIFAR10.test_list, [CIFAR10.meta["filename"], CIFAR10.meta["md5"]]]
    return all(check_integrity(home / CIFAR10.base_folder / name, checksum) for name, checksum in parts)


def _read(root: Path) -> Dataset:
    train, test = (CIFAR10(root, train=train) for train in (True, False))
    return Dataset(train=_split(train), test=_split(test), classes=tuple(train.classes))


def _split(part: CIFAR10) -> Split:
    images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
    return Split(images=images, labels=torch.tensor(part.targets, dtype=torch.int64))


def _archive(home: Path, folder: Path) -> Path:
    """Return the path of the archive in ``home``; a missing one is downloaded to ``folder`` and moved there whole."""
    archive = home / CIFAR10.filename
    if check_integrity(archive, CIFAR10.tgz_md5):
        return archive
    try:
        with connection_timeout():
            download_url(CIFAR10.url, folder, CIFAR10.filename, CIFAR10.tgz_md5)
    except FAILURES as error:
        state = "is not in" if not archive.exists() else f"has a damaged {CIFAR10.filename} (wrong checksum) in"
        raise UsageError(
            f"CIFAR-10 {state} '{home}' and could not be downloaded from {CIFAR10.url} "
            f"({getattr(error, 'reason', error)}). Put {CIFAR10.filename} in '{home}', "
            "or give --data folder:PATH or --data synthetic."
        ) from error
    (folder / CIFAR10.filename).replace(archive)
    return archive
