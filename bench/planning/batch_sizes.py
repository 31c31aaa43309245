"""Batch sizes that precisions share: what they are multiples of, and the largest that fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from bench.spec.precisions import parse_precision
from bench.spec.techniques import techniques
from bench.spec.trial import Cell

Largest = Mapping[tuple[Cell, str], int]
"""The largest batches known: by cell, whatever its batch size, and precision."""


def at_any_size(cell: Cell) -> Cell:
    """Return the cell whatever its batch size, as a key."""
    return replace(cell, batch_size=1)


def pieces(cell: Cell) -> int:
    """Return the number of equal pieces of a batch: its devices times its accumulated parts."""
    return len(cell.placement.members) * techniques(cell.techniques).grad_accumulation


def common_multiple(precisions: Iterable[str], rows: int) -> int:
    """Return what batch sizes are multiples of for all of some precisions to train at them.

    Args:
        precisions: their names.
        rows: how many rows each sample has in linear layers: a sequence's tokens, and 1 where that is unknown.
    """
    wanted = (parse_precision(name).trained_multiple for name in precisions)
    return math.lcm(*(multiple // math.gcd(multiple, rows) for multiple in wanted))


def fitting_at(largest: Mapping[str, int | None]) -> dict[int, tuple[str, ...]]:
    """Return every precision's largest batch size, each with the precisions that it fits.

    The smallest of them fits all.
    """
    sizes = sorted({size for size in largest.values() if size is not None})
    return {size: tuple(name for name, most in largest.items() if most is not None and most >= size) for size in sizes}
