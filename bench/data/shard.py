"""One process's part of the batches, where several train together."""

from __future__ import annotations

from dataclasses import dataclass

from bench.spec.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Which of how many equal parts of every training batch."""

    rank: int = 0
    ranks: int = 1

    def require_even(self, batch_size: int) -> None:
        """Refuse a batch that has no equal parts.

        Raises:
            UsageError: it has none.
        """
        if batch_size % self.ranks:
            raise UsageError(
                f"A batch of {batch_size} cannot be divided among {self.ranks} devices. "
                f"Give --batch-sizes that are multiples of {self.ranks}."
            )

    def of(self, start: int, batch_size: int) -> slice:
        """Return where this part of the batch is that begins at ``start``."""
        part = batch_size // self.ranks
        return slice(start + self.rank * part, start + (self.rank + 1) * part)

    def within(self, start: int, stop: int) -> slice:
        """Return where this part is of samples that need not divide evenly: all parts together are all of them."""
        first, last = (start + (stop - start) * rank // self.ranks for rank in (self.rank, self.rank + 1))
        return slice(first, last)


WHOLE = Share()
