"""A folder of images, train/<class>/ and test/<class>/: what is in it, and whether it has changed.

The folders of the Intel Image Classification archive, seg_train/seg_train/<class>/ and seg_test/seg_test/<class>/,
are known too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from bench.data import cache
from bench.data.cache import Dataset, Split
from bench.data.decode import OtherSizeError, decode, size_of
from bench.spec.errors import UsageError

_SEED = 0
"""Of the validation split, the same in every process."""
_FORMAT = "2"
"""Raised when what is kept for the same files changes, so that older caches are not used."""
_LAYOUT = "It needs train/<class>/<images> and test/<class>/<images>"
_PLACES = {split: (split, f"seg_{split}/seg_{split}", f"seg_{split}") for split in ("train", "test")}
"""Where a split may be, in the order looked."""
_COPIES = 2
"""On the way there are the decoded pixels, and the file of tensors made of them."""
READ = 256
"""Images of each split whose bytes the fingerprint includes, evenly spaced; of the others the names and sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The images of one split, class by class, by name."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    fingerprint: str
    """Hash of every image's path, size and time of change."""

    def pick(self, indices: list[int]) -> Listing:
        """Return these images alone."""
        return replace(
            self,
            paths=tuple(self.paths[index] for index in indices),
            labels=tuple(self.labels[index] for index in indices),
        )


def load(path: str, directory: str, size: tuple[int, int], validation_share: float = 0.0) -> Dataset:
    """Return the folder's images, decoded now or kept in ``directory`` from an earlier time.

    Images that are all of one size, no larger than ``size``, are stored as they are, so that one cache
    serves every input size; any others are squashed to ``size``, (height, width). A ``validation_share`` of the
    training images is left out; where the folder has no test images, it is the test set.

    Raises:
        UsageError: the folder is not laid out as it must be, or an image cannot be read.
    """
    root = Path(path)
    splits = find(root, need_test=not validation_share)
    whole = list_split(root, splits["train"])
    stay, apart = stratified(whole.labels, validation_share)
    train, test = whole.pick(stay), whole.pick(apart)
    if "test" in splits:
        test = list_split(root, splits["test"])
        _require_same_classes(root, train.classes, test.classes)
    for listing in (train, test):
        _require_every_class(root, listing, validation_share)
    place = _digest(str(root.resolve()))
    content = _digest(_FORMAT, whole.fingerprint, test.fingerprint)
    home = Path(directory) / "cache"
    part = f"without-{validation_share:g}-" if validation_share else ""
    native, squashed = (home / f"{place}-{content}-{part}{form}.pt" for form in ("native", f"{size[0]}x{size[1]}"))
    for file in (native, squashed):
        kept = cache.read(file)
        if kept is not None and _fits(kept.train.images.shape[2:], size):
            return kept
    with cache.staging(home) as scratch:
        dataset, is_native = _decode(root, train, test, size, scratch)
        dataset = cache.write(native if is_native else squashed, dataset)
    _forget_others(home, place, content)
    return dataset


def training_images(path: str, validation_share: float = 0.0) -> Listing:
    """List the images of a folder that are trained on: all but ``validation_share`` of its training images.

    Raises:
        UsageError: the folder is not laid out as it must be.
    """
    root = Path(path)
    whole = list_split(root, find(root, need_test=False)["train"])
    return whole.pick(stratified(whole.labels, validation_share)[0])


def stratified(labels: Sequence[int], share: float) -> tuple[list[int], list[int]]:
    """Split samples class by class, at random but the same way in every process.

    Args:
        labels: the classes of the samples.
        share: the part of each class that is set apart, rounded to whole samples.

    Returns:
        Indices of the samples that stay and of those set apart, both ascending.
    """
    classes = np.asarray(labels)
    apart = np.zeros(len(classes), dtype=bool)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        shuffled = np.random.default_rng([_SEED, int(label)]).permutation(members)
        apart[shuffled[: round(share * len(members))]] = True
    return np.flatnonzero(~apart).tolist(), np.flatnonzero(apart).tolist()


def list_split(root: Path, folder: Path) -> Listing:
    """List the images of a split's ``folder``, whose sub-folders are the classes; hidden names are not looked at.

    Raises:
        UsageError: there are no classes, or one has no images.
    """
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


def _decode(root: Path, train: Listing, test: Listing, size: tuple[int, int], scratch: Path) -> tuple[Dataset, bool]:
    """Decode both splits: at their own size if that is one for all and fits, else squashed; and say which.

    The pixels are in files in ``scratch``.
    """
    count = len(train.paths) + len(test.paths)

    def at(stored: tuple[int, int], *, squash: bool) -> Dataset:
        size_bytes = _COPIES * count * 3 * stored[0] * stored[1]
        cache.require_room(scratch.parent, size_bytes, f"The {count} images of '{root}', decoded,")

        def split(listing: Listing, name: str) -> Split:
            images = decode(listing.paths, stored, squash=squash, file=scratch / name)
            return Split(images=images, labels=torch.tensor(listing.labels))

        return Dataset(train=split(train, "train"), test=split(test, "test"), classes=train.classes)

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


def find(root: Path, *, need_test: bool) -> dict[str, Path]:
    """Return the folder of each split; test images may be missing where others are set apart for testing.

    Raises:
        UsageError: there is no such folder, or it is not laid out as it must be.
    """
    if not root.is_dir():
        raise UsageError(f"The data folder '{root}' does not exist. {_LAYOUT}.")
    found = {
        split: next((root / place for place in places if (root / place).is_dir()), None)
        for split, places in _PLACES.items()
    }
    splits = {split: folder for split, folder in found.items() if folder is not None}
    missing = [f"{split}/" for split in ("train", "test") if split not in splits]
    if "train" not in splits or (need_test and missing):
        there = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(root))
        listed = ", ".join(there[:8]) + ", …" * (len(there) > 8) if there else "nothing"
        raise UsageError(f"The data folder '{root}' has no {' and no '.join(missing)}. {_LAYOUT}; it has: {listed}.")
    return splits


def _require_every_class(root: Path, listing: Listing, validation_share: float) -> None:
    few = sorted(set(range(len(listing.classes))) - set(listing.labels))
    if few:
        raise UsageError(
            f"In the data folder '{root}', the class '{listing.classes[few[0]]}' has too few images to set a share of "
            f"{validation_share:g} apart. Add some, or set another validation_share."
        )


def _require_same_classes(root: Path, train: tuple[str, ...], test: tuple[str, ...]) -> None:
    for here, there, names in (("train", "test", set(train) - set(test)), ("test", "train", set(test) - set(train))):
        if names:
            listed = ", ".join(sorted(names)[:8]) + ", …" * (len(names) > 8)
            raise UsageError(
                f"In the data folder '{root}', {here}/ has classes that {there}/ lacks: {listed}. "
                "Both must have the same classes."
            )


def fingerprint(path: str) -> str:
    """Return 16 hex digits of a folder's images: their classes, names and sizes, and the bytes of some.

    The time of change does not count, for a copy has another one. An image that was replaced by another one of the
    same size, and is not among those read, is not seen.

    Raises:
        UsageError: the folder is not laid out as it must be.
        OSError: an image cannot be read.
    """
    root, found = Path(path), hashlib.sha256()
    for split, place in sorted(find(root, need_test=False).items()):
        listing = list_split(root, place)
        files = [Path(name) for name in listing.paths]
        for file in files:
            name = f"{split}\0{file.relative_to(place).as_posix()}\0{file.stat().st_size}\0"
            found.update(name.encode(errors="surrogateescape"))
        for file in files[:: max(1, len(files) // READ)]:
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:16]
