"""Make sure, before anything is measured, that the samples are there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bench.data.cache import Dataset, Split
from bench.data.folder import stratified
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.trial import DataSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What a source turned out to hold."""

    data: Data
    """As asked, with the number of classes that the source really has."""
    train_samples: int | None
    """Images to train on; None for synthetic data."""
    fingerprint: str | None = None
    """Of a folder's images (bench/data/folder.py); None for data that are the same everywhere."""


def prepare(data: Data, source: DataSource) -> Prepared:
    """Download or decode what ``source`` names, once, and keep it in the source's directory.

    Raises:
        UsageError: the samples cannot be had, why, and what can be done.
    """
    if is_synthetic(data, source):
        return Prepared(data=data, train_samples=None)
    dataset = load(data, source)
    return Prepared(
        data=filled_in(data, dataset),
        train_samples=len(dataset.train.labels),
        fingerprint=_fingerprint(source),
    )


def _fingerprint(source: DataSource) -> str | None:
    if source.path is None:
        return None
    from bench.data import folder

    return folder.fingerprint(source.path)


def is_synthetic(data: Data, source: DataSource) -> bool:
    """Return whether samples are made up: because that was asked, or because no image could be one."""
    return source.kind == "synthetic" or not data.is_image


def filled_in(data: Data, dataset: Dataset) -> Data:
    """Return ``data`` with the number of classes that the dataset has."""
    return replace(data, classes=len(dataset.classes))


def load(data: Data, source: DataSource) -> Dataset:
    """Return the images of ``source``, from the cache where they are there.

    Raises:
        UsageError: as ``prepare``.
    """
    _require_colour(data, source)
    # Imported here because synthetic data need neither torchvision nor Pillow, which take a second to import.
    if source.kind == "cifar10":
        from bench.data import cifar10

        return _without_validation(cifar10.load(source.directory), data.validation_share)
    from bench.data import folder

    if source.path is None:
        raise UsageError("A data folder needs a path. Give --data folder:PATH of a folder with train/ and test/.")
    _, height, width = data.input_shape
    return folder.load(source.path, source.directory, (height, width), data.validation_share)


def _without_validation(dataset: Dataset, share: float) -> Dataset:
    """Return the dataset with a share of its training images left out; the test set is there already."""
    if not share:
        return dataset
    stay = torch.tensor(stratified(dataset.train.labels.tolist(), share)[0])
    train = Split(images=dataset.train.images[stay], labels=dataset.train.labels[stay])
    return replace(dataset, train=train)


def _require_colour(data: Data, source: DataSource) -> None:
    channels = data.input_shape[0]
    if channels != 3:
        raise UsageError(
            f"The model takes images of {channels} channel{'s' * (channels != 1)} and {source} has images of 3 (RGB). "
            "Set the suite's Data.input_shape to (3, height, width), or give --data synthetic."
        )
    for field in ("mean", "std"):
        values = getattr(data, field)
        if len(values) != 3 or (field == "std" and min(values) <= 0):
            kind = "3 numbers above 0" if field == "std" else "3 numbers"
            raise UsageError(f"Data.{field} must be {kind}, one a channel, not {values!r}.")
