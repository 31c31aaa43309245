"""Decoded images in one file of uint8 tensors, which later processes map into memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.spec.errors import UsageError

GIB = 2**30
SPLITS = ("train", "test")


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
    """Check that the disk has room for decoded images, before minutes are spent on them.

    Args:
        directory: of the cache; need not exist yet.
        size_bytes: of the images and of all intermediate files.
        what: needs the room, for the message.

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
