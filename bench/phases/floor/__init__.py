"""The A/A noise: the baseline timed against itself, as the speed phase times precisions."""

from __future__ import annotations

from functools import partial

from bench.phases.speed import Speed, derive, describe, is_enough
from bench.results.records import Block
from bench.spec.phase import Phase

# Suffix of the baseline's name in blocks.csv for its second copy, which it is timed against.
AGAIN = " again"
PHASE = Phase(
    name="floor",
    order=30,
    summary="the baseline timed against itself: the A/A noise",
    row=Speed,
    details={Block: "blocks.csv"},
    derive=partial(derive, label=AGAIN),  # the second copy's blocks are compared with the first's
    describe=describe,
    key="replicate",
    is_enough=is_enough,
    grouping="baseline",
    joint=True,
    estimate=lambda work: 2 * work.rounds_s,
)
