"""A validation split: the same share of every class, and the same images each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SEED = 0


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
