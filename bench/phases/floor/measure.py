"""The baseline is timed against itself as the speed phase times precisions."""

from bench.phases.speed.measure import run

__all__ = ["run"]
