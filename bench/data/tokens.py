"""Sources of tokens: a Markov chain whose entropy rate is known exactly, and the bytes of a text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.spec.errors import UsageError

Tokens = npt.NDArray[np.int64]

SYMBOLS = 256
"""Of the Markov chain."""
FEATURES = 8
"""Rank of the matrix of the transitions' logits, far below the width of any model, which can thus represent it."""
SHARPNESS = 3.0
"""Of the transitions: 0 would make all symbols equally probable."""
BYTES = 256
"""Size of a text's vocabulary."""
VALIDATED = 10
"""One byte of a text in so many is validated on: the last tenth, as in nanoGPT's Shakespeare."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A stationary Markov chain of order one over the symbols 0, 1, 2, …, always the same and sampled by seed."""

    transition: npt.NDArray[np.float64]
    """(S, S): the probability of each symbol, a column, after each symbol, a row; all above 0."""

    @cached_property
    def stationary(self) -> npt.NDArray[np.float64]:
        """The probability of each symbol, (S,): the solution of p = p · transition whose sum is 1."""
        size = len(self.transition)
        equations = np.vstack([self.transition.T - np.eye(size), np.ones(size)])
        solution: npt.NDArray[np.float64] = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]
        return solution

    @cached_property
    def entropy_nats(self) -> float:
        """The entropy rate in nats a symbol, the least mean loss that any prediction can have.

        Source: Cover and Thomas, Elements of Information Theory, theorem 4.2.4.
        """
        return float(-self.stationary @ (self.transition * np.log(self.transition)).sum(axis=1))

    def sample(self, count: int, length: int, rng: np.random.Generator) -> Tokens:
        """Return ``count`` independent sequences, (count, length) int64, each begun in the stationary distribution."""
        size = len(self.transition)
        within = np.cumsum(self.transition, axis=1)
        # Row after row, each lifted by its number: one ascending array, in which one search finds the next symbols.
        lifted = (within / within[:, -1:] + np.arange(size)[:, None]).ravel()
        start = np.cumsum(self.stationary)
        drawn = rng.random((length, count))
        symbols = np.empty((length, count), dtype=np.int64)
        symbols[0] = np.searchsorted(start / start[-1], drawn[0], side="right")
        for place in range(1, length):
            before = symbols[place - 1]
            following = np.searchsorted(lifted, drawn[place] + before, side="right") - size * before
            symbols[place] = np.minimum(following, size - 1)  # the sum may round up to the next row's beginning
        return np.ascontiguousarray(symbols.T)


@cache
def chain() -> Chain:
    """Return the chain of the data called ``markov``.

    Its logits are products of two vectors of random features, drawn as raw bits, which numpy keeps the same in all its
    versions.
    """
    bits = np.random.PCG64(0).random_raw(2 * SYMBOLS * FEATURES)
    uniform = 2.0 * (bits >> np.uint64(11)) / 2.0**53 - 1.0
    before, after = uniform.reshape(2, SYMBOLS, FEATURES)
    weights = np.exp(SHARPNESS * before @ after.T)
    return Chain(transition=weights / weights.sum(axis=1, keepdims=True))


class Text:
    """The bytes of a file, mapped into memory: the first nine tenths to train on, the last to validate on."""

    def __init__(self, path: str, length: int) -> None:
        """Open the file, to take sequences of ``length`` tokens.

        Raises:
            UsageError: it cannot be read, or its parts do not both hold a sequence and the token after it.
        """
        self.length = length
        try:
            size = Path(path).stat().st_size
            least = VALIDATED * (length + 1)
            if size < least:
                raise UsageError(
                    f"The text '{path}' has {size:,} bytes, the last tenth of which is validated on. Sequences of "
                    f"{length} tokens need at least {least:,}: give a longer text, or a model of shorter sequences."
                )
            self._bytes: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        except OSError as error:
            raise UsageError(f"The text '{path}' cannot be read: {error.strerror or error}.") from error
        validated = size // VALIDATED
        self.training, self.validation = self._bytes[:-validated], self._bytes[-validated:]

    def windows(self, count: int, rng: np.random.Generator) -> Tokens:
        """Return sequences of the training part that begin anywhere in it, (count, length + 1) int64."""
        return self._cut(self.training, rng.integers(0, len(self.training) - self.length, count))

    def validation_windows(self, most: int) -> Tokens:
        """Return ``most`` sequences of the validation part, or as many as it holds, evenly spaced and none overlapping.

        Only the last token of each may be the first of the next, of which it is not predicted.
        """
        held = (len(self.validation) - 1) // self.length
        count = min(held, most)
        return self._cut(self.validation, self.length * (np.arange(count) * held // count))

    def fingerprint(self) -> str:
        """Return 16 hex digits of all bytes."""
        return hashlib.blake2b(self._bytes.data, digest_size=8).hexdigest()

    def _cut(self, part: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> Tokens:
        windows: Tokens = part[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        return windows
