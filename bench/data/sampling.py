"""The samples of a batch: an epoch's order, a rank's shard, and how images are augmented.

All of it follows from the seed, so it is the same on every device and for every precision. Images
are mirrored, resized, cropped and normalised on their device, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

CPU = torch.device("cpu")
# What is drawn: each has a generator of its own, so that none depends on what else is drawn.
_ORDER, _AUGMENTATION, VALUES, _TOKENS = range(4)


def generator(device: torch.device, *words: int) -> torch.Generator:
    """Return a generator that is seeded by all of ``words``.

    numpy's SeedSequence mixes them, because torch's CPU generator uses only the lower 32 bits of a
    seed.
    """
    # SeedSequence takes no negative numbers, and a seed may be one.
    entropy = [word % 2**64 for word in words]
    (seed,) = np.random.SeedSequence(entropy).generate_state(1)
    return torch.Generator(device).manual_seed(int(seed))


def token_generator(seed: int, epoch: int) -> np.random.Generator:
    """Return numpy's generator of an epoch's sequences; epoch -1 is of those validated on."""
    # As in ``generator``, no word may be negative.
    words = (seed % 2**64, epoch + 1, _TOKENS)
    return np.random.default_rng(words)


def order(count: int, *, seed: int, epoch: int) -> Tensor:
    """Return the order in which an epoch takes its samples, (count,) int64, on the CPU."""
    drawn_by = generator(CPU, seed, epoch, _ORDER)
    return torch.randperm(count, generator=drawn_by)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One rank's part of every batch."""

    rank: int = 0
    ranks: int = 1

    def of(self, start: int, stop: int) -> slice:
        """Return this rank's samples of a batch; all ranks' together are the whole batch."""
        # Both ends are rounded down, so that each shard begins where the one before it ends.
        count = stop - start
        following = self.rank + 1
        first = count * self.rank // self.ranks
        last = count * following // self.ranks
        return slice(start + first, start + last)


WHOLE = Shard()


def augmentation(count: int, padding: int, *, seed: int, epoch: int) -> Tensor:
    """Draw how an epoch's images are augmented, on the CPU.

    An image's augmentation depends on its place in the epoch, and not on the batch size.

    Returns:
        (3, count) int64: whether each image is mirrored, and the first row and column that its crop
        keeps of the padded image, 0 … 2 × padding.
    """
    drawn_by = generator(CPU, seed, epoch, _AUGMENTATION)
    mirrored = torch.rand(count, generator=drawn_by) < 0.5
    # The frame of black pixels is on both sides, so a crop may be moved by twice its width.
    places = 2 * padding + 1
    corners = torch.randint(places, (2, count), generator=drawn_by)
    return torch.cat([mirrored[None], corners])


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Return the images with those chosen mirrored left to right.

    Both versions of every image are laid side by side and one is picked, which on a CPU is faster
    than ``torch.where``.

    Args:
        images: (B, C, H, W), any dtype.
        mirrored: (B,) bool, or 0 and 1.
    """
    count = len(images)
    both = torch.cat((images, images.flip(3)))
    own = torch.arange(count, device=images.device)
    # An image's mirrored version comes ``count`` after it.
    offsets = count * mirrored
    return both.index_select(0, own + offsets)


def crop(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Return each image, framed by black pixels, cut to its former size at a place of its own.

    Every possible crop is a view of the padded batch that starts at another element, and all have
    the same strides: they are rows of one overlapping tensor, out of which the wanted ones are
    selected in a single operation, which on a CPU is faster than picking them by several indices.

    Args:
        images: (B, C, H, W), any dtype.
        top: (B,) int64, the first row kept of the padded image, 0 … 2 × padding.
        left: (B,) int64, the first column.
        padding: width of the frame, in pixels.
    """
    padded = functional.pad(images, (padding,) * 4)
    whole, plane, line, _ = padded.stride()
    count = len(images)
    # The last crop that there may be: of the last image, moved down and right as far as it goes.
    last_image = (count - 1) * whole
    last_corner = 2 * padding * (line + 1)
    possible = last_image + last_corner + 1
    size = (possible, *images.shape[1:])
    crops = padded.as_strided(size, (1, plane, line, 1))
    first_elements = torch.arange(count, device=images.device) * whole
    corners = top * line + left
    return crops.index_select(0, first_elements + corners)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return images in ``size``, (height, width): as they are, or resized as float32, bilinear."""
    height, width = size
    _count, _channels, own_height, own_width = images.shape
    if size == (own_height, own_width):
        return images
    # Smaller images would alias without a filter.
    shrinks = height < own_height or width < own_width
    # uint8 would be interpolated in whole numbers.
    wide = images.float()
    return functional.interpolate(
        wide,
        size,
        mode="bilinear",
        antialias=shrinks,
    )


def normalizer(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: torch.device,
) -> Callable[[Tensor], Tensor]:
    """Return (pixel / 255 - mean) / std, as one multiplication and one addition a pixel.

    Args:
        mean: per channel, of images scaled to 0..1.
        std: likewise, the standard deviation.
        device: where images will be.

    Returns:
        A function that returns (B, C, H, W) float32 of images of 0..255, of any dtype.
    """
    # Rounded to float32 once, at the end: the figures are the same on every device.
    means = torch.tensor(mean, dtype=torch.float64)
    stds = torch.tensor(std, dtype=torch.float64)
    factor = 1 / (255 * stds)
    shift = -means / stds

    scales = factor.to(device, torch.float32)
    shifts = shift.to(device, torch.float32)
    # A channel's value goes along all of its rows and columns.
    scales = scales.view(-1, 1, 1)
    shifts = shifts.view(-1, 1, 1)

    def normalized(images: Tensor) -> Tensor:
        scaled = torch.mul(images, scales)
        return scaled.add_(shifts)  # in place: a batch of images takes much memory

    return normalized
