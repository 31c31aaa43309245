"""All steps of the ablation timed in one process, fed by a loader."""

from __future__ import annotations

from dataclasses import dataclass

from bench.phases.speed import Speed, describe
from bench.results.records import Block, Signed
from bench.spec.phase import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationSpeed(Speed):
    """Speed of an ablation step, and how it waits for its loader."""

    ablation_step: int
    """How many working ablation steps are below it, 0 for fp32."""
    loader_ms: float
    """Time the loader takes for a batch when nothing else runs, after what was ready has been used up."""
    wait_pct: Signed
    """Share of the timed steps in which the host waited for the loader to make a batch and to be handed it,
    copies to the device apart; on a CPU the prefetcher's thread is waited for, which also normalises."""
    steps_per_epoch: int
    """Whole batches in an epoch of the samples that are trained on, without the suite's `validation_share`;
    of random samples what the suite says."""
    loader_limited: bool
    """Yes where the host waits for batches not made yet for 10 % of a continuous run or more: 15 steps of
    this step alone before the timing, each waited for, of which the last ten count, less what it takes to be handed
    a batch that is ready."""


PHASE = Phase(
    name="ladder",
    order=120,
    summary="all steps of the ablation timed in one process, fed by a loader",
    row=AblationSpeed,
    details={Block: "blocks.csv"},
    describe=describe,
    key="replicate",
    until_clear=True,
    arms="together",
    option="--ladder",
    trains_on_data=True,
    has_children=True,
    # In addition to the rounds, 15 continuous steps of each show whether it waits for the loader.
    estimate=lambda work: work.arms * (work.rounds_s + 15 * work.step_s),
)
