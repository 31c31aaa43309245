"""Sources of tokens: a Markov chain whose entropy rate is known, and the bytes of a text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from bench.spec.errors import UsageError

Tokens = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]

# Of the Markov chain.
SYMBOLS = 256
# Rank of the matrix of the transitions' logits, far below the width of any model, which can thus
# represent it.
FEATURES = 8
# Of the transitions: 0 would make all symbols equally probable.
SHARPNESS = 3.0
# Symbols after which a sequence's first one no longer matters.
FORGOTTEN = 64
# Size of a text's vocabulary.
BYTES = 256
# One byte of a text in so many is validated on: the last tenth, as in nanoGPT's Shakespeare.
VALIDATED = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A stationary Markov chain of order one over the symbols from 0 on."""

    transition: Shares
    """(S, S): the probability of each symbol, a column, after each symbol, a row; all above 0."""

    @cached_property
    def stationary(self) -> Shares:
        """The probability of each symbol, (S,), wherever a sequence began."""
        # After so many symbols all rows are alike.
        row: Shares = np.linalg.matrix_power(self.transition, FORGOTTEN)[0]
        return row

    @cached_property
    def entropy_nats(self) -> float:
        """The entropy rate in nats a symbol, the least mean loss that any prediction can have.

        Source: Cover and Thomas, Elements of Information Theory, theorem 4.2.4.
        """
        terms = self.transition * np.log(self.transition)
        return float(-self.stationary @ terms.sum(axis=1))

    def sample(self, count: int, length: int, rng: np.random.Generator) -> Tokens:
        """Return independent sequences, (count, length) int64, begun in the stationary state."""
        size = len(self.transition)
        # Row after row, each lifted by its number: one ascending array, in which one search finds
        # the next symbols.
        cumulative = np.cumsum(self.transition, axis=1)
        row_numbers = np.arange(size)
        row_numbers = row_numbers[:, None]
        lifted = (cumulative + row_numbers).ravel()
        # All numbers in one draw: the same sequences whatever becomes of the loop below.
        drawn = rng.random((length, count))
        symbols = np.empty((length, count), dtype=np.int64)
        # Without the last one, which is 1 but for rounding.
        bounds = np.cumsum(self.stationary)[:-1]
        symbols[0] = np.searchsorted(bounds, drawn[0], side="right")
        for place in range(1, length):
            before = symbols[place - 1]
            sought = drawn[place] + before
            found = np.searchsorted(lifted, sought, side="right")
            following = found - size * before
            # The sum may round up to the next row's beginning.
            symbols[place] = np.minimum(following, size - 1)
        return np.ascontiguousarray(symbols.T)

    held_out = sample


@cache
def chain() -> Chain:
    """Return the chain of the data called ``markov``.

    Its logits are products of two vectors of random features.
    """
    rng = np.random.default_rng(0)  # one chain for all seeds: its entropy is one figure
    drawn = rng.random((2, SYMBOLS, FEATURES))
    # From -1 to 1, of the features of the symbol before and of the one after.
    before, after = 2.0 * drawn - 1.0
    logits = SHARPNESS * before @ after.T
    weights = np.exp(logits)
    totals = weights.sum(axis=1, keepdims=True)
    return Chain(transition=weights / totals)


class Text:
    """The bytes of a file, mapped into memory: nine tenths to train on, the last to validate on."""

    entropy_nats = None

    def __init__(self, path: str, length: int) -> None:
        """Open the file, to take sequences of ``length`` tokens.

        Raises:
            UsageError: its parts do not both hold a sequence and the token after it.
            OSError: it cannot be read.
        """
        size = Path(path).stat().st_size
        least = VALIDATED * (length + 1)
        if size < least:
            raise UsageError(
                f"The text '{path}' has {size:,} bytes, the last tenth of which is validated on. "
                f"Sequences of {length} tokens need at least {least:,}: give a longer text, or a "
                "model of shorter sequences."
            )
        self._bytes: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        validated = size // VALIDATED
        self.training = self._bytes[:-validated]
        self.validation = self._bytes[-validated:]

    def sample(self, count: int, length: int, rng: np.random.Generator) -> Tokens:
        """Return sequences of the training part that begin anywhere, (count, length) int64."""
        windows = sliding_window_view(self.training, length)
        starts = rng.integers(0, len(windows), count)
        return windows[starts].astype(np.int64)

    def held_out(self, count: int, length: int, _rng: np.random.Generator) -> Tokens:
        """Return ``count`` sequences of the validation part, or as many as it holds, evenly spaced.

        They are always the same. Only the last token of each may be the first of the next, where it
        is not predicted.
        """
        windows = sliding_window_view(self.validation, length)
        apart = windows[:: length - 1]
        count = min(count, len(apart))
        places = np.arange(count)
        chosen = places * len(apart) // count
        return apart[chosen].astype(np.int64)

    def fingerprint(self) -> str:
        """Return 16 hex digits of all bytes."""
        return hashlib.blake2b(self._bytes.data, digest_size=8).hexdigest()
