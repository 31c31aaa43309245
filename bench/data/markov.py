"""A source of tokens whose entropy rate is known exactly: a Markov chain, always the same, sampled by seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

SYMBOLS = 256
FEATURES = 8
"""Rank of the matrix of the transitions' logits, far below the width of any model, which can thus represent it."""
SHARPNESS = 3.0
"""Of the transitions: 0 would make all symbols equally probable."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A stationary Markov chain of order one over the symbols 0, 1, 2, …."""

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

    def sample(self, count: int, length: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
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
            found = np.searchsorted(lifted, drawn[place] + before, side="right") - size * before
            symbols[place] = np.minimum(found, size - 1)  # a sum of the two may round up to the next row's beginning
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
