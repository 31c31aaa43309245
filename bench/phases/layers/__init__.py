"""The search for the modules that a narrow precision must keep in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.results.records import Numeric
from bench.spec.metric import Metric
from bench.spec.phase import Advice, Phase
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from bench.planning.question import Question
    from bench.spec.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """What the search has found of the whole model."""

    gradient_error: float | None = None
    """Error of the gradients against fp32's, on the same weights and batches, with no module
    kept."""


METRICS = (
    Metric(
        name="gradient_error",
        phase="layers",
        place=11,
        label="gradient error",
        unit="share",
        about=(
            "Error of the gradients against fp32's, on the same weights and batches, with no "
            "module kept."
        ),
        columns=("gradient_error",),
        scale="difference",
        replicate="once",
        margin=0.05,
        fewest=1,
    ),
)


def trials(question: Question) -> list[Trial]:
    """Return a trial for each narrow precision; it trains in fp32 before the search if asked to."""
    common = replace(question.trial(), epochs=question.request.epochs or 0)
    return [replace(common, arms=(arm,)) for arm in common.arms if arm.precision != BASELINE]


def advice(folder: Path, request: Mapping[str, Any]) -> list[Advice]:
    """Return what a run with this phase advises."""
    from bench.phases.layers import next_step

    return next_step.advice(folder, request)


PHASE = Phase(
    name="layers",
    order=80,
    summary="the search for the modules that a narrow precision must keep in fp32",
    row=Layers,
    details={Numeric: "layers_figures.csv"},
    metrics=METRICS,
    trials=trials,
    uses_epochs=True,
    has_own_baseline=True,
    trains_on_data=True,
    recipe_batch=True,
    advice=advice,
    # Where nothing is needed; else a pass or two for each module come on top.
    estimate=lambda work: 1.0 + (10 + work.epochs * work.steps_per_epoch) * work.step_s,
)
