"""Peak memory of each step of the ablation, whose batches come through its input pipeline."""

from __future__ import annotations

from bench.phases.memory import MemoryPeak, describe
from bench.spec.phase import Phase

PHASE = Phase(
    name="ladder_memory",
    order=110,
    summary="peak memory of each step of the ablation",
    row=MemoryPeak,
    describe=describe,
    option="--ladder",
    estimate=lambda work: 4 * work.step_s,
)
