"""The data set of a source: decoded or downloaded once, and then read from the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bench.data import cifar10, folder
from bench.data.cache import Dataset, divided
from bench.data.tokens import BYTES, Text
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.suite import Data

DIGITS = Path(__file__).with_name("digits.npz")
# The last images of the digits are tested on: a third.
DIGITS_TESTED = 597
# Their pixels of 0 to 16 become 0 to 240: 16 × 16 would not fit a byte.
DIGITS_SCALE = 15


def prepare(data: Data, source: DataSource) -> PreparedData:
    """Download or decode what ``source`` names, once, and keep it in the source's directory.

    A text is only read, and what is generated needs nothing.

    Raises:
        UsageError: the samples cannot be had.
    """
    if source.generated or is_synthetic(data, source):
        return PreparedData(source=source, classes=data.classes)
    if source.kind == "text":
        text = Text(str(source.path), data.input_shape[0])
        return PreparedData(
            source=source,
            classes=BYTES,
            train_tokens=len(text.training),
            validation_tokens=len(text.validation),
            fingerprint=text.fingerprint(),
        )
    dataset = load(data, source)
    fingerprint = None
    if source.path:
        fingerprint = folder.fingerprint(source.path)
    return PreparedData(
        source=source,
        classes=len(dataset.classes),
        train_samples=len(dataset.train.labels),
        fingerprint=fingerprint,
        left_out=dataset.left_out,
    )


def is_synthetic(data: Data, source: DataSource) -> bool:
    """Return whether samples are random: as asked, or because the model does not take the data."""
    if source.kind in ("suite", "synthetic"):
        return source.kind == "synthetic"
    if source.of_tokens:
        return not data.tokens
    return not data.is_image


def load(data: Data, source: DataSource) -> Dataset:
    """Return the images of ``source``, from the cache where they are there.

    Raises:
        UsageError: as ``prepare``.
    """
    channels, height, width = data.input_shape
    if channels != 3:
        plural = "" if channels == 1 else "s"
        raise UsageError(
            f"The model takes images of {channels} channel{plural} and {source} has images of 3 "
            "(RGB). Set the suite's Data.input_shape to (3, height, width), or give --data "
            "synthetic."
        )
    if source.kind == "folder":
        size = (height, width)
        return folder.load(
            str(source.path),
            source.directory,
            size,
            data.validation_share,
        )
    if source.kind == "cifar10":
        return cifar10.load(source.directory)
    return load_digits()


def load_digits() -> Dataset:
    """Return the digits that come with the package, 8 × 8 pixels, in ten classes.

    Grey is three equal channels. 1,200 images are trained on and 597 tested on.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI Machine Learning
    Repository, 1998), CC BY 4.0; see digits.LICENSE.txt.
    """
    with np.load(DIGITS) as arrays:
        grey = torch.from_numpy(DIGITS_SCALE * arrays["images"])
        labels = torch.from_numpy(arrays["labels"].astype(np.int64))
    images = grey[:, None].repeat(1, 3, 1, 1)
    return divided(images, labels, DIGITS_TESTED, tuple("0123456789"))
