"""Which samples a batch holds: an epoch's random order, a rank's shard of each batch, and each image's augmentation.

All of it follows from the seed, so it is the same on every device and for every precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.spec.errors import UsageError

_ORDER, _AUGMENTATION, _VALUES, _TOKENS = range(4)


def _generator(device: torch.device, *words: int) -> torch.Generator:
    """Return a generator that is seeded by all of ``words``.

    numpy's SeedSequence mixes them, because torch's CPU generator uses only the lower 32 bits of a seed.
    """
    seed = np.random.SeedSequence([word % 2**64 for word in words]).generate_state(1)[0]
    return torch.Generator(device).manual_seed(int(seed))


def value_generator(seed: int, device: torch.device) -> torch.Generator:
    """Return the generator of synthetic samples, on ``device``."""
    return _generator(device, seed, _VALUES)


def token_generator(seed: int, epoch: int | None) -> np.random.Generator:
    """Return numpy's generator of an epoch's sequences; None is of those that are validated on."""
    return np.random.default_rng([seed % 2**64, 0 if epoch is None else epoch % 2**64 + 1, _TOKENS])


def order(count: int, *, seed: int, epoch: int) -> Tensor:
    """Return the order in which an epoch takes its samples, (count,) int64, on the CPU."""
    return torch.randperm(count, generator=_generator(torch.device("cpu"), seed, epoch, _ORDER))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One rank's part of every batch."""

    rank: int = 0
    ranks: int = 1

    def require_even(self, batch_size: int) -> None:
        """Raise UsageError if a batch cannot be divided equally."""
        if batch_size % self.ranks:
            raise UsageError(
                f"A batch of {batch_size} cannot be divided among {self.ranks} devices. "
                f"Give --batch-sizes that are multiples of {self.ranks}."
            )

    def of(self, start: int, stop: int) -> slice:
        """Return this rank's samples of a batch; the shards of all ranks together are the whole batch."""
        first, last = (start + (stop - start) * rank // self.ranks for rank in (self.rank, self.rank + 1))
        return slice(first, last)


WHOLE = Shard()


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """The mirroring and the crop of each image."""

    mirrored: Tensor
    """(N,) bool."""
    top: Tensor
    """(N,) int64: the first row that a crop keeps of the padded image, 0 … 2 × padding."""
    left: Tensor
    """(N,) int64: the first column."""

    @staticmethod
    def draw(count: int, padding: int, *, seed: int, epoch: int) -> Augmentation:
        """Draw an epoch's, on the CPU; an image's depends on its place in the epoch, not on the batch size."""
        generator = _generator(torch.device("cpu"), seed, epoch, _AUGMENTATION)
        mirrored = torch.rand(count, generator=generator) < 0.5
        top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
        return Augmentation(mirrored=mirrored, top=top, left=left)

    def to(self, device: torch.device) -> Augmentation:
        """Return the same on ``device``."""
        return Augmentation(mirrored=self.mirrored.to(device), top=self.top.to(device), left=self.left.to(device))

    def of(self, batch: slice) -> Augmentation:
        """Return a batch's part."""
        return Augmentation(mirrored=self.mirrored[batch], top=self.top[batch], left=self.left[batch])
