"""What the first steps of a training do to numbers: losses, gradients, activations, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.results.records import Derived, Numeric
from bench.spec.phase import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """Columns computed from the figures of the steps."""

    first_loss: Derived = None
    """Loss of the first step."""
    last_loss: Derived = None
    """Loss of the last step."""
    zero_gradients_pct: Derived = None
    """Share of the parameters' gradients that were zero."""


def derive(rows: Any, details: Any) -> Any:
    """Return rows with the losses, and the share of zero gradients, of their steps."""
    key = ["trial", "precision"]
    figures = details["numerics_figures.csv"].sort_values("step", kind="stable")
    is_loss = (figures["kind"] == "step") & (figures["name"] == "loss")
    losses = figures[is_loss].groupby(key)["value"]
    gradients = figures[figures["kind"] == "gradient"]
    # Values are counts of gradients, by bins of their size.
    is_zero = gradients["name"] == "zero"
    gradients = gradients.assign(zeros=gradients["value"].where(is_zero, 0.0))
    sums = gradients.groupby(key)[["value", "zeros"]].sum()
    zeros_pct = 100 * sums["zeros"] / sums["value"]
    named = rows.set_index(key).index
    return rows.assign(
        first_loss=losses.first().reindex(named).to_numpy(),
        last_loss=losses.last().reindex(named).to_numpy(),
        zero_gradients_pct=zeros_pct.reindex(named).to_numpy(),
    )


PHASE = Phase(
    name="numerics",
    order=70,
    summary="the first steps of training: losses, gradients, activations, errors against float64",
    row=Numerics,
    details={Numeric: "numerics_figures.csv"},
    derive=derive,
    key="seed",
    refuses={
        "compile": "numerics looks between the layers, which compile fuses",
        "cuda-graphs": "numerics looks at every step's layers, which a captured graph does not "
        "show",
    },
    trains_on_data=True,
    recipe_batch=True,
    estimate=lambda work: 80 * work.step_s,  # 60 steps, those in float64, and counting gradients
)
