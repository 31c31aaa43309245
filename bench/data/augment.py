"""What is done to whole batches of images on their device: mirror, resize, crop, normalise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Return the images with those chosen mirrored left to right.

    Both versions of every image are laid side by side and one is picked, which on a CPU takes a fifth of
    ``torch.where``'s time.

    Args:
        images: (B, C, H, W), any dtype.
        mirrored: (B,) bool.
    """
    count = len(images)
    picked = torch.arange(count, device=images.device) + count * mirrored
    return torch.cat((images, images.flip(3))).index_select(0, picked)


def crop(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Return each image, framed by ``padding`` black pixels, cut to its former size at a place of its own.

    Every possible crop is a view of the padded batch that starts at another element, and all have the same strides:
    they are rows of one overlapping tensor, out of which the wanted ones are selected in a single operation.

    Args:
        images: (B, C, H, W), any dtype.
        top: (B,) int64, the first row kept of the padded image, 0 … 2 × padding.
        left: (B,) int64, the first column.
        padding: width of the frame, in pixels.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    line = width + 2 * padding
    plane = (height + 2 * padding) * line
    whole = channels * plane
    last = (count - 1) * whole + 2 * padding * (line + 1)
    crops = padded.as_strided((last + 1, channels, height, width), (1, plane, line, 1))
    starts = torch.arange(count, device=images.device) * whole + top * line + left
    return crops.index_select(0, starts)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the images as float32 at ``size``, (height, width), bilinear; smaller ones with antialiasing."""
    shrinks = size[0] < images.shape[2] or size[1] < images.shape[3]
    return functional.interpolate(images.float(), size, mode="bilinear", antialias=shrinks)


class Normalizer:
    """(pixel / 255 - mean) / std, as one multiplication and one addition a pixel."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        """Take the mean and standard deviation per channel of images scaled to 0..1."""
        means, stds = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (mean, std))
        self._scale = (1 / (255 * stds)).to(device, torch.float32)
        self._shift = (-means / stds).to(device, torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Return (B, C, H, W) float32 of images of 0..255, of any dtype."""
        return torch.mul(images, self._scale).add_(self._shift)
