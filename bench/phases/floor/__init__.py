"""The A/A noise: the baseline timed against itself, as the speed phase times precisions."""

from __future__ import annotations

from bench.phases.speed import Speed, describe
from bench.results.records import Block
from bench.spec.phase import Phase

PHASE = Phase(
    name="floor",
    order=30,
    is_core=True,
    summary="the baseline timed against itself: the A/A noise",
    row=Speed,
    details={Block: "blocks.csv"},
    describe=describe,
    key="replicate",
    until_clear=True,
    arms="baseline",
    joint=True,
    estimate=lambda work: 2 * work.rounds_s,
)
