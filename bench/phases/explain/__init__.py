"""Where a step's time and memory go, by class of work, operator and module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bench.phases.speed import conduct
from bench.results.records import Name, WorkClass
from bench.spec.phase import Phase

CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One figure of the explain phase, in long form."""

    trial: Name
    """The trial, as in explain.csv."""
    precision: Name
    """The precision whose step it is about."""
    kind: Name
    """step, class, operator: of the step's time, in ms where no other unit is named; peak, held:
    bytes of tensors at the peak of a step; unfolded, expanded: bytes that operators take inside, or
    that copies of expanded tensors take; repeated: how often a tensor is cast; widened: casts to
    fp32 between casts to a narrower type; nonfinite: the first module with a result that is no
    number; refused: a technique that this suite cannot have."""
    name: Name
    """Which figure of its kind: an operator, a class of work."""
    work: Literal["", WorkClass] = ""
    """Class of work of an operator."""
    module: str = ""
    """The innermost module that called an operator, in the forward pass."""
    detail: str = ""
    """Sizes of an operator's operands, or of the tensors that it made."""
    dtype: str = ""
    """The narrowest floating-point type of an operator's inputs, as torch.profiler calls it."""
    value: float
    """The figure."""


PHASE = Phase(
    name="explain",
    order=90,
    summary="where a step's time and memory go, by class of work, operator and module",
    details={Explained: "explain_figures.csv"},
    grouping="together",
    conduct=conduct,
    joint=True,
    trains_on_data=True,
    # Warm-up, plain and profiled steps, of which each has two where they are long, and some that
    # are observed.
    estimate=lambda work: work.arms * max(6.0, 14 * work.step_s),
)
