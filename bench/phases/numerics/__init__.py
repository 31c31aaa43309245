"""What the first steps of a training do to numbers: losses, gradients, activations, types, errors."""

from __future__ import annotations

from bench.results.records import Numeric
from bench.spec.phase import Phase

PHASE = Phase(
    name="numerics",
    order=70,
    summary="the first steps of training: losses, gradients, activations, types, errors against float64",
    details={Numeric: "numerics_figures.csv"},
    key="seed",
    refuses={
        "compile": "numerics looks between the layers, which compile fuses",
        "cuda-graphs": "numerics looks at every step's layers, which a captured graph does not show",
    },
    arithmetic=True,
    trains_on_data=True,
    recipe_batch=True,
    estimate=lambda work: 80 * work.step_s,  # 60 steps, those in float64, and counting gradients
)
