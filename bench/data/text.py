"""A text of one's own: its bytes are the tokens, the first ones to train on, the last ones to validate on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.spec.errors import UsageError

BYTES = 256
"""Size of the vocabulary."""
VALIDATED = 10
"""One byte in so many is validated on: the last tenth, as in nanoGPT's Shakespeare."""

Tokens = npt.NDArray[np.int64]


class Text:
    """The bytes of a file, mapped into memory and split by their position."""

    def __init__(self, path: str, length: int) -> None:
        """Open the file.

        Args:
            path: the file.
            length: of the sequences that will be taken, in tokens.

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
        return hashlib.sha256(self._bytes.data).hexdigest()[:16]

    def _cut(self, part: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> Tokens:
        windows: Tokens = part[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        return windows
