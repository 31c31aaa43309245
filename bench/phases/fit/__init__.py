"""The search for the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.results.records import TrialResult
from bench.spec.phase import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The largest batch that fits, and why no larger one does."""

    fit_bound: str = ""
    """The limit at the next larger batch that was tried: `memory` (it ran out), `predicted memory`
    (a CPU's, which is not tried to the end), `time` (the attempt was predicted to take too long) or
    `error`."""
    fit_peak_bytes: int | None = None
    """GPU: the most that the allocator held at this batch; CPU: peak resident set above what it was
    before the model."""
    fit_free_bytes: int | None = None
    """Free memory before the model was built, of the GPU or, for a CPU, of the machine or
    container."""


def describe(result: TrialResult) -> str:
    """Return an arm's line on the terminal."""
    return f"{result.arm} {result.detail.split(';')[0]} (bound by {result.row.fit_bound})"


def conduct(trial: Any, session: Any) -> None:
    """Search the largest batch size that fits (``bench.phases.fit.largest``)."""
    from bench.phases.fit import largest

    largest.conduct(trial, session)


PHASE = Phase(
    name="fit",
    order=10,
    summary="the search for the largest batch that fits",
    row=Fit,
    describe=describe,
    option="--batch-sizes",
    searches=True,
    conduct=conduct,
    estimate=None,
)
