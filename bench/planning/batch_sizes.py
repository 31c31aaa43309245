"""Batch sizes that precisions share: what they are multiples of, and the largest that fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from bench.results.records import Device
from bench.spec.placement import Placement
from bench.spec.precisions import parse_precision
from bench.spec.suite import Suite
from bench.spec.techniques import techniques
from bench.spec.trial import Cell

# The largest batches known: by cell, whatever its batch size, and precision.
Largest = Mapping[tuple[Cell, str], int]


def at_any_size(cell: Cell) -> Cell:
    """Return the cell whatever its batch size, as a key."""
    return replace(cell, batch_size=1)


def usual_sizes(suite: Suite, device: Device) -> tuple[int, ...]:
    """Return the batch sizes that a suite has for a CPU; none on a GPU."""
    if device.is_gpu:
        return ()
    return suite.cpu_batch_sizes


def pieces(placement: Placement, names: tuple[str, ...]) -> int:
    """Return the number of equal pieces of a batch: its devices times its accumulated parts."""
    return len(placement.members) * techniques(names).grad_accumulation


def common_multiple(precisions: Iterable[str], rows: int) -> int:
    """Return what batch sizes are multiples of for all of some precisions to train at them.

    Args:
        precisions: their names.
        rows: how many rows each sample has in linear layers: a sequence's tokens, and 1 where that
            is unknown.
    """
    common = 1
    for name in precisions:
        multiple = parse_precision(name).multiple
        # A batch has ``rows`` times as many rows as samples, of which ``multiple`` is a divisor.
        of_samples = multiple // math.gcd(multiple, rows)
        common = math.lcm(common, of_samples)
    return common
