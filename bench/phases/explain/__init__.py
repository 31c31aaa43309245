"""Where a step's time goes, by class of work and by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.phases.speed import conduct
from bench.results.records import Name, WorkClass
from bench.spec.phase import Advice, Phase

Finding = Literal["step", "class", "operator", "types"]
"""The kinds of figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One figure of the explain phase, in long form."""

    trial: Name
    """The trial, as in explain.csv."""
    precision: Name
    """The precision whose step it is about."""
    kind: Name
    """The kind of figure, see below; others are those of earlier versions."""
    name: Name
    """Which figure of its kind, see below."""
    round: int | None = None
    """The round in which it was measured, from 0, where rounds repeat it."""
    work: Literal["", WorkClass] = ""
    """Class of work of an operator."""
    detail: str = ""
    """Sizes of the operands of an operator; some of the modules whose products are in a type."""
    value: float
    """The figure."""


def advice(folder: Path, request: Mapping[str, Any]) -> list[Advice]:
    """Return what a run with this phase advises."""
    from bench.phases.explain import next_step

    return next_step.advice(folder, request)


PHASE = Phase(
    name="explain",
    order=90,
    summary="where a step's time goes, by class of work and by operator",
    details={Explained: "explain_figures.csv"},
    arms="together",
    conduct=conduct,
    trains_on_data=True,
    advice=advice,
    # Plain and profiled steps in turn, and steps on batches as they are loaded.
    estimate=lambda work: work.arms * (work.warm_up_s + max(2.0, 60 * work.step_s)),
)
