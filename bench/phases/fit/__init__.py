"""The search for the largest batch that fits."""

from __future__ import annotations

from bench.results.records import Fit, TrialResult
from bench.spec.phase import Phase


def describe(result: TrialResult) -> str:
    """Return an arm's line on the terminal."""
    return f"{result.precision} {result.detail.split(';')[0]} (bound by {result.row.fit_bound})"


PHASE = Phase(
    name="fit",
    order=10,
    summary="the search for the largest batch that fits",
    row=Fit,
    describe=describe,
    option="--batch-sizes",
    estimate=None,
)
