"""Where a step's time goes, by class of work, and what its products take alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.results.records import Name, WorkClass
from bench.spec.phase import Phase

Finding = Literal[
    "step",
    "class",
    "operator",
    "best",
    "flops",
    "rate",
    "types",
    "channels-last",
    "padded",
]
"""The kinds of figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One figure of the explain phase, in long form."""

    trial: Name
    """The trial, as in explain.csv."""
    precision: Name
    """The precision whose step it is about."""
    kind: Finding
    """The kind of figure, see below."""
    name: Name
    """Which figure of its kind, see below."""
    round: int | None = None
    """The round in which it was measured, from 0, where rounds repeat it."""
    work: Literal["", WorkClass] = ""
    """Class of work of an operator."""
    detail: str = ""
    """Types and sizes of the operands of an operator in the step; of a product alone its first module."""
    count: float | None = None
    """Times in a step, of an operator; of a product in another layout or with padded sizes its share of the FLOPs."""
    value: float
    """The figure."""


PHASE = Phase(
    name="explain",
    order=90,
    summary="where a step's time goes, by class of work, and what its products take alone",
    details={Explained: "explain_figures.csv"},
    arms="together",
    trains_on_data=True,
    however_slow=True,
    # Plain and profiled steps in turn, products alone, and steps of twice the batch.
    estimate=lambda work: work.arms * (work.warm_up_s + max(2.0, 60 * work.step_s) + 5.0),
)
