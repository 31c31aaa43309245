"""A folder of images, train/<class>/ and test/<class>/: listed, split, decoded, fingerprinted.

The folders of the Intel Image Classification archive, seg_train/seg_train/<class>/ and
seg_test/seg_test/<class>/, are read too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

from bench.data import cache
from bench.data.cache import Dataset, Facts
from bench.spec.errors import UsageError
from bench.spec.text import plain

Labels = npt.NDArray[np.int64]
# Of each image whether it is chosen.
Chosen = npt.NDArray[np.bool_]
# The height and the width of images, in pixels.
Size = tuple[int, int]
# Seed of the validation split, the same in every process.
_SEED = 0
_LAYOUT = "It needs train/<class>/<images> and test/<class>/<images>"
# Fewest images of each split whose bytes the fingerprint includes, evenly spaced; it has all names
# and sizes.
READ = 256
# Images that are decoded together, in threads, before their pixels are written.
_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of one split, class by class, by name."""

    paths: npt.NDArray[np.str_]
    labels: Labels

    def pick(self, chosen: Chosen) -> Listing:
        """Return a listing of some images only."""
        return Listing(
            paths=self.paths[chosen],
            labels=self.labels[chosen],
        )


def load(
    path: str,
    directory: str,
    size: Size,
    validation_share: float = 0.0,
) -> Dataset:
    """Return the folder's images, decoded now or read from the cache in ``directory``.

    Images that are all of one size, no larger than ``size``, are stored as they are; any others are
    squashed to ``size``, (height, width).

    Raises:
        UsageError: as ``listings``; or no image of a split can be read. Other images that cannot be
            read are left out and named in ``left_out``.
        OSError: the directory cannot be written, or the disk is full.
    """
    classes, train, test = listings(path, validation_share)
    paths = [*train.paths, *test.paths]

    def pack(pixels: BinaryIO) -> Facts:
        stored = _stored_size(paths, size)
        unread = decode(paths, stored, pixels)
        for listing in (train, test):
            if np.isin(listing.paths, unread).all():
                count = len(listing.paths)
                first = listing.paths[0]
                raise UsageError(f"No image of the {count:,} like '{first}' can be read.")
        return {"size": stored, "unread": unread}

    # The file is named after all that its pixels depend on.
    content = hashlib.blake2b(digest_size=16)
    content.update(repr(size).encode())
    for name in paths:
        entry = f"{name}\0{_size_and_time(name)}\0"
        # A name of bytes that are no UTF-8 has surrogates in their place.
        content.update(entry.encode(errors="surrogateescape"))
    file = Path(directory, "cache", f"{content.hexdigest()}.pixels")
    images, facts = cache.packed(file, pack)
    unread = facts["unread"]
    # Their pixels were not written, so that what is left is in the order of the file.
    is_unread = np.isin(train.paths, unread)
    train = train.pick(~is_unread)
    is_unread = np.isin(test.paths, unread)
    test = test.pick(~is_unread)
    labels = torch.from_numpy(np.concatenate([train.labels, test.labels]))
    left_out = tuple(map(plain, unread))
    tested = len(test.labels)
    return cache.divided(
        images,
        labels,
        tested,
        classes,
        left_out,
    )


def listings(path: str, validation_share: float) -> tuple[tuple[str, ...], Listing, Listing]:
    """Return the classes of a folder, its images that are trained on, and those that are tested on.

    A ``validation_share`` of the training images is held out; where the folder has no test images,
    it is the test set.

    Raises:
        UsageError: the folder is not laid out as it must be.
    """
    folders = find(path)
    needed = ["train"]
    if not validation_share:
        needed.append("test")
    for split in needed:
        if split not in folders:
            raise UsageError(f"The data folder '{path}' has no {split}/. {_LAYOUT}.")
    names = set[str]()
    for folder in folders.values():
        own, _ = find_classes(folder)
        names.update(own)
    classes = tuple(sorted(names))
    train = list_split(folders["train"], classes)
    apart = held_out(train.labels, validation_share)
    test = train.pick(apart)
    if "test" in folders:
        test = list_split(folders["test"], classes)
    train = train.pick(~apart)
    for verb, listing in (("train", train), ("test", test)):
        counts = np.bincount(listing.labels, minlength=len(classes))
        if not counts.all():
            empty = classes[counts.argmin()]
            endings = ", ".join(IMG_EXTENSIONS)
            raise UsageError(
                f"In the data folder '{path}', the class '{empty}' has no image to {verb} on "
                f"({endings}). Add some, remove the class, or set another validation_share."
            )
    return classes, train, test


def find(path: str) -> dict[str, Path]:
    """Return the folder of each split that there is."""
    folders = {}
    for split in ("train", "test"):
        intel = Path(path, f"seg_{split}", f"seg_{split}")
        usual = Path(path, split)
        for folder in (intel, usual):
            if folder.is_dir():
                folders[split] = folder
    return folders


def list_split(folder: Path, classes: Sequence[str]) -> Listing:
    """List the images of the classes in a split's ``folder``, as torchvision's ImageFolder does."""
    numbers = {name: label for label, name in enumerate(classes)}
    paths = []
    labels = []
    for path, label in make_dataset(folder, numbers, IMG_EXTENSIONS, allow_empty=True):
        paths.append(path)
        labels.append(label)
    # The types are given for a folder without an image, whose arrays would be of floats.
    return Listing(
        paths=np.array(paths, dtype=str),
        labels=np.array(labels, dtype=int),
    )


def held_out(labels: Labels, validation_share: float) -> Chosen:
    """Choose a share of the samples of each class at random, but always the same ones.

    Returns:
        (N,) bool: whether a sample is held out.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        # A generator for each class: images added to another class change nothing here.
        rng = np.random.default_rng([_SEED, int(label)])
        shuffled = rng.permutation(members)
        count = round(validation_share * len(members))
        chosen[shuffled[:count]] = True
    return chosen


def _size_and_time(path: str) -> tuple[int, int]:
    """Return a file's size in bytes and its modification time; zeros of a link to nothing."""
    try:
        status = Path(path).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _stored_size(paths: Sequence[str], size: Size) -> Size:
    """Return the (height, width) that all readable images have, or ``size`` if it is smaller.

    Images of several sizes are stored in ``size``, too.
    """
    sizes = set[Size]()
    for path in paths:
        # Each of Pillow's formats fails in its own way.
        with suppress(Exception), Image.open(path) as image:
            height = image.height
            width = image.width
            most_high, most_wide = size
            is_larger = height > most_high or width > most_wide
            sizes.add((height, width))
            # No need to open all of a folder whose first images say it.
            if is_larger or len(sizes) > 1:
                return size
    if sizes:
        return sizes.pop()
    return size


def decode(paths: Sequence[str], size: Size, pixels: BinaryIO) -> list[str]:
    """Decode images to RGB and write their pixels, in order, so that they need not fit into memory.

    Args:
        paths: the image files.
        size: (height, width) of the result; images of another size are resized, whatever their
            proportions.
        pixels: receives (3, height, width) uint8 of each image that can be read.

    Returns:
        The paths of the others.
    """

    def decoded(path: str) -> bytes:
        try:
            picture = rgb(path)
        except Exception:  # each of Pillow's formats fails in its own way
            return b""
        height, width = size
        resized = picture.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(resized).transpose(2, 0, 1).tobytes()

    unread = []
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), _CHUNK):
            chunk = paths[start : start + _CHUNK]
            images = pool.map(decoded, chunk)
            for path, image in zip(chunk, images, strict=True):
                pixels.write(image)
                if not image:
                    unread.append(path)
    return unread


def rgb(path: str) -> Image.Image:
    """Open an image as RGB; 16-bit grey keeps its upper 8 bits: Pillow would clip it at 255.

    Raises:
        Exception: it cannot be read, or has so many pixels that Pillow takes it for a decompression
            bomb.
    """
    with Image.open(path) as image:
        # I;16 and its like: integers of more than 8 bits.
        if not image.mode.startswith("I"):
            return image.convert("RGB")
        upper = np.asarray(image) >> 8
    # Mode I has 32 bits, of which such images use 16.
    grey = upper.clip(0, 255).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def fingerprint(path: str) -> str:
    """Return 16 hex digits of a folder's images: their names and sizes, and the bytes of some.

    Modification times are left out, because copying changes them. Replacing an image by another of
    the same size goes unnoticed unless the bytes of that image are read.
    """
    content = hashlib.blake2b(digest_size=8)
    for split, folder in sorted(find(path).items()):
        # The classes' folders are part of the names.
        classes, _ = find_classes(folder)
        files = list_split(folder, classes).paths
        for file in files:
            size_bytes, _ = _size_and_time(file)
            name = os.path.relpath(file, folder)
            entry = f"{split}\0{name}\0{size_bytes}\0"
            content.update(entry.encode(errors="surrogateescape"))
        step = max(1, len(files) // READ)
        for file in files[::step]:
            with suppress(OSError):  # what cannot be read is left out of the images, too
                image = Path(file).read_bytes()
                content.update(hashlib.blake2b(image).digest())
    return content.hexdigest()
