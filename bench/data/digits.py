"""The handwritten digits that come with the package: real images, and nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bench.data.cache import Dataset, Split

FILE = Path(__file__).with_name("digits.npz")
TEST = 597
"""The last images are tested on: a third."""
SCALE = 15
"""Pixels of 0 to 16 become 0 to 240."""


def load() -> Dataset:
    """Return 1,200 training and 597 test images of 8 × 8 pixels, grey as three equal channels, in ten classes.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI Machine Learning Repository, 1998),
    CC BY 4.0; see digits.LICENSE.txt.
    """
    with np.load(FILE) as arrays:
        images = torch.from_numpy(SCALE * arrays["images"])[:, None].repeat(1, 3, 1, 1)
        labels = torch.from_numpy(arrays["labels"].astype(np.int64))
    return Dataset(
        train=Split(images=images[:-TEST], labels=labels[:-TEST]),
        test=Split(images=images[-TEST:], labels=labels[-TEST:]),
        classes=tuple(map(str, range(10))),
    )
