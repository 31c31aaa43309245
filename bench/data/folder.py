"""A folder of images, train/<class>/ and test/<class>/: its listing, validation split, decoding and fingerprint.

The folders of the Intel Image Classification archive, seg_train/seg_train/<class>/ and seg_test/seg_test/<class>/,
are read too.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from bench.data import cache
from bench.data.cache import Dataset, Split
from bench.spec.errors import UsageError
from bench.spec.text import plain

_SEED = 0
"""Seed of the validation split, the same in every process."""
_FORMAT = "3"
"""Version of the cache; raised when the same files would be cached differently, to make older caches unused."""
_LAYOUT = "It needs train/<class>/<images> and test/<class>/<images>"
_SPLIT_FOLDERS = {split: (split, f"seg_{split}/seg_{split}", f"seg_{split}") for split in ("train", "test")}
"""Where a split may be; the first that exists is used."""
_COPIES = 2
"""Copies on disk while decoding: the raw pixels, and the file of tensors made from them."""
READ = 256
"""Fewest images of each split whose bytes the fingerprint includes, evenly spaced; it has all names and sizes."""
_CHUNK = 64
"""Images that a thread decodes at a time."""
_THREADS_PAY_PIXELS = 96 * 96
"""Decoding in threads pays from about this size; with smaller images most time is spent holding the GIL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The images of one split, class by class, by name."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    fingerprint: str
    """Hash of every image's path, size and modification time."""

    def pick(self, indices: list[int]) -> Listing:
        """Return a listing of these images only."""
        return replace(
            self,
            paths=tuple(self.paths[index] for index in indices),
            labels=tuple(self.labels[index] for index in indices),
        )


def load(path: str, directory: str, size: tuple[int, int], validation_share: float = 0.0) -> Dataset:
    """Return the folder's images, decoded now or read from the cache in ``directory``.

    Images that are all of one size, no larger than ``size``, are stored as they are, so that one cache serves every
    input size; any others are squashed to ``size``, (height, width).

    Raises:
        UsageError: as ``listings``; or no image of a class can be read. Other images that cannot be read are left out
            and named in ``left_out``.
    """
    train, test = listings(path, validation_share)
    location = _digest(str(Path(path).resolve()))
    content = _digest(_FORMAT, train.fingerprint, test.fingerprint)
    home = Path(directory) / "cache"
    part = f"without-{validation_share:g}-" if validation_share else ""
    native, squashed = (home / f"{location}-{content}-{part}{form}.pt" for form in ("native", f"{size[0]}x{size[1]}"))
    for file in (native, squashed):
        cached = cache.read(file)
        if cached is not None and _fits(cached.train.images.shape[2:], size):
            return cached
    common = _common_size([*train.paths, *test.paths])
    is_native = common is not None and _fits(common, size)
    stored = common if common is not None and is_native else size
    with cache.staging(home) as scratch:
        decoded = _decode_splits(path, train, test, stored, scratch)
        dataset = cache.write(native if is_native else squashed, decoded)
    for file in home.glob(f"{location}-*.pt"):
        if not file.name.startswith(f"{location}-{content}-"):
            file.unlink(missing_ok=True)  # of this folder's earlier content
    return dataset


def listings(path: str, validation_share: float = 0.0) -> tuple[Listing, Listing]:
    """List the images of a folder that are trained on, and those that are tested on.

    A ``validation_share`` of the training images is held out; where the folder has no test images, it is the test set.

    Raises:
        UsageError: the folder is not laid out as it must be.
    """
    root = Path(path)
    splits = find(root, need_test=not validation_share)
    whole = list_split(root, splits["train"])
    train, test = (whole.pick(indices) for indices in stratified(whole.labels, validation_share))
    if "test" in splits:
        test = list_split(root, splits["test"])
        _require_same_classes(root, train.classes, test.classes)
    for listing in (train, test):
        _require_every_class(root, listing, validation_share)
    return train, test


def stratified(labels: Sequence[int], validation_share: float) -> tuple[list[int], list[int]]:
    """Split samples class by class, at random but the same way in every process.

    Returns:
        Indices of the samples to train on, and of the held-out share of each class, rounded to whole samples; both
        ascending.
    """
    classes = np.asarray(labels)
    held_out = np.zeros(len(classes), dtype=bool)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        shuffled = np.random.default_rng([_SEED, int(label)]).permutation(members)
        held_out[shuffled[: round(validation_share * len(members))]] = True
    return np.flatnonzero(~held_out).tolist(), np.flatnonzero(held_out).tolist()


def list_split(root: Path, folder: Path) -> Listing:
    """List the images of a split's ``folder``, whose sub-folders are the classes; hidden names are ignored.

    Raises:
        UsageError: there are no classes, or one has no images.
    """
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise UsageError(f"'{folder}' has no class folders. {_LAYOUT} in '{root}'.")
    paths: list[str] = []
    labels: list[int] = []
    stamps = hashlib.blake2b(digest_size=32)
    for label, name in enumerate(classes):
        images = sorted(_images(folder / name))
        if not images:
            kinds = ", ".join(IMG_EXTENSIONS)
            raise UsageError(f"The class folder '{folder / name}' has no images ({kinds}). Add some, or remove it.")
        for path, size_bytes, changed_ns in images:
            stamps.update(f"{path}\0{size_bytes}\0{changed_ns}\0".encode(errors="surrogateescape"))
        paths += [path for path, _, _ in images]
        labels += [label] * len(images)
    return Listing(classes=tuple(classes), paths=tuple(paths), labels=tuple(labels), fingerprint=stamps.hexdigest())


def _images(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, size in bytes and modification time of every image below ``folder``.

    Links to nothing, and folders that cannot be read, are yielded too, without size and time: they are images that
    cannot be read. Links to folders are not followed.
    """
    unread: list[OSError] = []
    for parent, below, _ in os.walk(folder, onerror=unread.append):
        below[:] = [name for name in sorted(below) if not name.startswith(".")]
        with os.scandir(parent) as entries:
            for entry in entries:
                if not entry.name.lower().endswith(IMG_EXTENSIONS) or entry.name.startswith("."):
                    continue
                if entry.is_file():
                    status = entry.stat()
                    yield entry.path, status.st_size, status.st_mtime_ns
                elif entry.is_symlink() and not entry.is_dir():
                    yield entry.path, 0, 0
    for error in unread:
        yield os.fspath(error.filename), 0, 0


def _common_size(paths: Sequence[str]) -> tuple[int, int] | None:
    """Return the (height, width) of all images that can be read; None where they differ."""
    common = None
    for path in paths:
        size = size_of(path)
        if size is not None:
            common = common or size
            if size != common:
                return None
    return common


def _decode_splits(path: str, train: Listing, test: Listing, size: tuple[int, int], scratch: Path) -> Dataset:
    """Decode both splits into files in ``scratch``, images of another size squashed to ``size``."""
    count = len(train.paths) + len(test.paths)
    cache.require_room(
        scratch.parent, _COPIES * count * 3 * size[0] * size[1], f"The {count} images of '{path}', decoded,"
    )
    left_out: list[str] = []

    def split(listing: Listing, name: str) -> Split:
        images, lost = decode(listing.paths, size, file=scratch / name)
        left_out.extend(plain(listing.paths[at]) for at in lost)
        labels = [label for at, label in enumerate(listing.labels) if at not in lost]
        _require_readable(listing, labels, lost)
        return Split(images=images, labels=torch.tensor(labels))

    splits = {"train": split(train, "train"), "test": split(test, "test")}
    return Dataset(**splits, classes=train.classes, left_out=tuple(left_out))


def _fits(stored: tuple[int, ...], size: tuple[int, int]) -> bool:
    return stored[0] <= size[0] and stored[1] <= size[1]


def size_of(path: str) -> tuple[int, int] | None:
    """Return an image's (height, width); None where it cannot be read."""
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except Exception:  # each of Pillow's formats fails in its own way: OSError, SyntaxError, ValueError, …
        return None


def _require_readable(listing: Listing, labels: Sequence[int], lost: Mapping[int, str]) -> None:
    """Refuse a class of which no image can be read."""
    for label in sorted(set(listing.labels) - set(labels)):
        at = next(at for at in lost if listing.labels[at] == label)
        raise UsageError(
            f"No image of the class '{listing.classes[label]}' can be read, such as '{listing.paths[at]}' "
            f"({lost[at]}). Repair them, or remove the class."
        )


def decode(paths: Sequence[str], size: tuple[int, int], *, file: Path) -> tuple[Tensor, dict[int, str]]:
    """Decode images to RGB, in order, into a file, so that they need not fit into memory.

    Args:
        paths: the image files.
        size: (height, width) of the result; images of another size are resized, whatever their proportions.
        file: receives the pixels; must exist as long as the tensor is used.

    Returns:
        Tensor of (N, 3, height, width), uint8, mapped from the file, of the images that can be read; and why each other
        one cannot, by its place in ``paths``.
    """
    height, width = size
    images = np.memmap(file, np.uint8, "w+", shape=(len(paths), 3, height, width))
    lost: dict[int, str] = {}

    def fill(start: int) -> None:
        for index in range(start, min(start + _CHUNK, len(paths))):
            try:
                picture = rgb(paths[index])
            except Exception as error:  # each of Pillow's formats fails in its own way
                lost[index] = str(error)
                continue
            if picture.size != (width, height):
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
            images[index] = np.asarray(picture).transpose(2, 0, 1)

    first = size_of(paths[0]) or size
    pool = ThreadPoolExecutor(os.cpu_count() if math.prod(first) >= _THREADS_PAY_PIXELS else 1)
    try:
        for _ in pool.map(fill, range(0, len(paths), _CHUNK)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    kept = [index for index in range(len(paths)) if index not in lost]
    for place, index in enumerate(kept if lost else ()):
        images[place] = images[index]
    return torch.from_numpy(images[: len(kept)]), dict(sorted(lost.items()))


def rgb(path: str) -> Image.Image:
    """Open an image as RGB; 16-bit grey keeps its upper 8 bits, whereas Pillow would clip it at 255.

    Raises:
        Exception: it cannot be read, or has so many pixels that Pillow takes it for a decompression bomb.
    """
    with Image.open(path) as image:
        if not image.mode.startswith("I"):
            return image.convert("RGB")
        upper = np.asarray(image).astype(np.int64) >> 8
    return Image.fromarray(upper.clip(0, 255).astype(np.uint8)).convert("RGB")


def find(root: Path, *, need_test: bool) -> dict[str, Path]:
    """Return the folder of each split; test images may be missing where a validation share is held out.

    Raises:
        UsageError: there is no such folder, or it is not laid out as it must be.
    """
    if not root.is_dir():
        raise UsageError(f"The data folder '{root}' does not exist. {_LAYOUT}.")
    splits: dict[str, Path] = {}
    for split, names in _SPLIT_FOLDERS.items():
        for name in reversed(names):
            if (root / name).is_dir():
                splits[split] = root / name
    required = ("train", "test") if need_test else ("train",)
    for split in required:
        if split not in splits:
            raise UsageError(f"The data folder '{root}' has no {split}/. {_LAYOUT}.")
    return splits


def _require_every_class(root: Path, listing: Listing, validation_share: float) -> None:
    empty = sorted({*range(len(listing.classes))} - set(listing.labels))
    if empty:
        raise UsageError(
            f"In the data folder '{root}', the class '{listing.classes[empty[0]]}' has too few images to set a share "
            f"of {validation_share:g} apart. Add some, or set another validation_share."
        )


def _require_same_classes(root: Path, train: tuple[str, ...], test: tuple[str, ...]) -> None:
    different = sorted({*train} ^ {*test})
    if different:
        listed = ", ".join(different[:8]) + ", …" * (len(different) > 8)
        raise UsageError(
            f"In the data folder '{root}', train/ and test/ must have the same classes. Only one of them has: {listed}."
        )


def fingerprint(path: str) -> str:
    """Return 16 hex digits of a folder's images: their classes, names and sizes, and the bytes of some.

    Modification times are left out, because copying changes them. Replacing an image by another of the same size goes
    unnoticed unless the bytes of that image are read.

    Raises:
        UsageError: the folder is not laid out as it must be.
    """
    root, content = Path(path), hashlib.blake2b(digest_size=8)
    for split, folder in sorted(find(root, need_test=False).items()):
        files = [Path(name) for name in list_split(root, folder).paths]
        for file in files:
            size_bytes = file.stat().st_size if file.is_file() else 0
            name = f"{split}\0{file.relative_to(folder).as_posix()}\0{size_bytes}\0"
            content.update(name.encode(errors="surrogateescape"))
        for file in files[:: max(1, len(files) // READ)]:
            with suppress(OSError):  # what cannot be read is left out of the images, too
                content.update(hashlib.blake2b(file.read_bytes()).digest())
    return content.hexdigest()


def _digest(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode(errors="surrogateescape"), digest_size=8).hexdigest()
