"""Image files to one uint8 tensor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bench.spec.errors import UsageError

_CHUNK = 64
_THREADS_PAY_PIXELS = 96 * 96
"""Below about this size the interpreter, which threads share, takes longer than the decoder, which they do not."""


class OtherSizeError(Exception):
    """An image is not of the size of the others."""


def size_of(path: str) -> tuple[int, int]:
    """Return an image's (height, width).

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except Exception as error:
        raise _unreadable(path, error) from error


def decode(paths: Sequence[str], size: tuple[int, int], *, squash: bool, file: Path) -> Tensor:
    """Decode images to RGB, in order, into a file, so that they need not fit into memory.

    Args:
        paths: the files.
        size: (height, width) that they have, or are to have.
        squash: resize those of another size, whatever their proportions.
        file: takes the pixels; must stay as long as the tensor is used.

    Returns:
        Tensor of (N, 3, height, width), uint8, mapped from the file.

    Raises:
        UsageError: an image cannot be read, and which.
        OtherSizeError: one is not of this size, and is not to be squashed.
    """
    height, width = size
    images = np.memmap(file, np.uint8, "w+", shape=(len(paths), 3, height, width))

    def fill(start: int) -> None:
        for index in range(start, min(start + _CHUNK, len(paths))):
            images[index] = _pixels(paths[index], size, squash).transpose(2, 0, 1)

    starts = range(0, len(paths), _CHUNK)
    if not squash and height * width < _THREADS_PAY_PIXELS:
        for start in starts:
            fill(start)
    else:
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            for _ in pool.map(fill, starts):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
    return torch.from_numpy(images)


def _pixels(path: str, size: tuple[int, int], squash: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return one image as (height, width, 3) uint8."""
    try:
        image = rgb(path)
    except Exception as error:
        # Each of Pillow's formats has its own ways of failing on a bad file: OSError, SyntaxError, ValueError, …
        raise _unreadable(path, error) from error
    if image.size != (size[1], size[0]):
        if not squash:
            raise OtherSizeError(path)
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


def rgb(path: str) -> Image.Image:
    """Open an image as RGB; of 16 bits of grey the upper 8 are kept, where Pillow would cut off at 255."""
    with Image.open(path) as image:
        if not image.mode.startswith("I"):
            return image.convert("RGB")
        upper = np.asarray(image).astype(np.int64) >> 8
    return Image.fromarray(upper.clip(0, 255).astype(np.uint8)).convert("RGB")


def _unreadable(path: str, error: Exception) -> UsageError:
    return UsageError(f"The image '{path}' cannot be read ({error}). Repair or remove it.")
