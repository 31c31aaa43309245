"""A folder of images, train/<class>/ and test/<class>/: what is in it, and whether it has changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from bench.data import cache
from bench.data.cache import Dataset, Split
from bench.data.decode import OtherSizeError, decode, size_of
from bench.spec import UsageError

_FORMAT = "1"
"""Raised when what is kept for the same files changes, so that older caches are not used."""
_LAYOUT = "It needs train/<class>/<images> and test/<class>/<images>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The images of one split, class by class, by name."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    fingerprint: str
    """Hash of every image's path, size and time of change."""


def load(path: str, directory: str, size: tuple[int, int]) -> Dataset:
    """Return the folder's images, decoded now or kept in ``directory`` from an earlier time.

    Images that are all of one size, no larger than ``size``, are stored as they are, so that one cache
    serves every input size; any others are squashed to ``size``, (height, width).

    Raises:
        UsageError: the folder is not laid out as it must be, or an image cannot be read.
    """
    root = Path(path)
    _require_layout(root)
    train, test = list_split(root, "train"), list_split(root, "test")
    _require_same_classes(root, train.classes, test.classes)
    place = _digest(str(root.resolve()))
    content = _digest(_FORMAT, train.fingerprint, test.fingerprint)
    home = Path(directory) / "cache"
    native, squashed = (home / f"{place}-{content}-{form}.pt" for form in ("native", f"{size[0]}x{size[1]}"))
    for file in (native, squashed):
        kept = cache.read(file)
        if kept is not None and _fits(kept.train.images.shape[2:], size):
            return kept
    dataset, is_native = _decode(root, train, test, size, home)
    dataset = cache.write(native if is_native else squashed, dataset)
    _forget_others(home, place, content)
    return dataset


def list_split(root: Path, split: str) -> Listing:
    """List the images of ``root/split``, whose sub-folders are the classes; hidden names are not looked at.

    Raises:
        UsageError: there are no classes, or one has no images.
    """
    folder = root / split
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise UsageError(f"'{folder}' has no class folders. {_LAYOUT} in '{root}'.")
    paths: list[str] = []
    labels: list[int] = []
    stamps = hashlib.sha256()
    for label, name in enumerate(classes):
        found = sorted(_images(folder / name))
        if not found:
            kinds = ", ".join(IMG_EXTENSIONS)
            raise UsageError(f"The class folder '{folder / name}' has no images ({kinds}). Add some, or remove it.")
        for path, size_bytes, changed_ns in found:
            stamps.update(f"{path}\0{size_bytes}\0{changed_ns}\0".encode(errors="surrogateescape"))
        paths += [path for path, _, _ in found]
        labels += [label] * len(found)
    return Listing(classes=tuple(classes), paths=tuple(paths), labels=tuple(labels), fingerprint=stamps.hexdigest())


def _images(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, size in bytes and time of change of every image below ``folder``."""
    for parent, below, _ in os.walk(folder, followlinks=True):
        below[:] = [name for name in below if not name.startswith(".")]
        with os.scandir(parent) as entries:
            for entry in entries:
                name = entry.name.lower()
                if name.endswith(IMG_EXTENSIONS) and not name.startswith(".") and entry.is_file():
                    status = entry.stat()
                    yield entry.path, status.st_size, status.st_mtime_ns


def _decode(root: Path, train: Listing, test: Listing, size: tuple[int, int], home: Path) -> tuple[Dataset, bool]:
    """Decode both splits: at their own size if that is one for all and fits, else squashed; and say which."""
    count = len(train.paths) + len(test.paths)

    def at(stored: tuple[int, int], *, squash: bool) -> Dataset:
        cache.require_room(home, count * 3 * stored[0] * stored[1], f"The {count} images of '{root}', decoded,")
        splits = (
            Split(images=decode(listing.paths, stored, squash=squash), labels=torch.tensor(listing.labels))
            for listing in (train, test)
        )
        return Dataset(train=next(splits), test=next(splits), classes=train.classes)

    first = size_of(train.paths[0])
    if _fits(first, size):
        with suppress(OtherSizeError):
            return at(first, squash=False), True
    return at(size, squash=True), False


def _fits(has: tuple[int, ...], most: tuple[int, int]) -> bool:
    return has[0] <= most[0] and has[1] <= most[1]


def _forget_others(home: Path, place: str, content: str) -> None:
    """Remove what was kept of this folder before it changed; nobody would ever look for it again."""
    for file in home.glob(f"{place}-*.pt"):
        if not file.name.startswith(f"{place}-{content}-"):
            file.unlink(missing_ok=True)


def _require_layout(root: Path) -> None:
    if not root.is_dir():
        raise UsageError(f"The data folder '{root}' does not exist. {_LAYOUT}.")
    missing = [f"{split}/" for split in ("train", "test") if not (root / split).is_dir()]
    if missing:
        there = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(root))
        listed = ", ".join(there[:8]) + ", …" * (len(there) > 8) if there else "nothing"
        raise UsageError(f"The data folder '{root}' has no {' and no '.join(missing)}. {_LAYOUT}; it has: {listed}.")


def _require_same_classes(root: Path, train: tuple[str, ...], test: tuple[str, ...]) -> None:
    for here, there, names in (("train", "test", set(train) - set(test)), ("test", "train", set(test) - set(train))):
        if names:
            listed = ", ".join(sorted(names)[:8]) + ", …" * (len(names) > 8)
            raise UsageError(
                f"In the data folder '{root}', {here}/ has classes that {there}/ lacks: {listed}. "
                "Both must have the same classes."
            )


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:16]
