"""An ablation: from fp32 to all techniques, each step on top of the one before, fed by a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.phases.memory import MemoryPeak
from bench.phases.memory import describe as describe_memory
from bench.phases.speed import Speed, describe
from bench.results.records import Block, Signed
from bench.spec.phase import Phase

if TYPE_CHECKING:
    from bench.planning.question import Question
    from bench.results.records import Status
    from bench.spec.trial import Request, Trial


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


def check(request: Request) -> None:
    """Refuse several mixed precisions.

    Raises:
        UsageError: the request names several.
    """
    from bench.phases.ladder.plan import named_mixed

    if request.precisions:
        named_mixed(request.precisions)


def trials(question: Question) -> list[Trial]:
    """Return the trials that time the steps: those that the device supports together, each other alone."""
    from bench.phases.ladder import plan

    return plan.trials(question)


def memory_trials(question: Question) -> list[Trial]:
    """Return a trial for the memory of each step that the device supports."""
    from bench.phases.ladder import plan

    return plan.memory_trials(question)


def resolve(trial: Trial, memory: Sequence[Trial], done: Mapping[str, Mapping[str, Status]]) -> Trial | None:
    """Return what a planned trial measures after the trials of its steps' memory, or None if nothing is left."""
    from bench.phases.ladder import plan

    return plan.resolve(trial, memory, done)


MEMORY = Phase(
    name="ladder_memory",
    order=110,
    summary="peak memory of each step of the ablation",
    module="bench.phases.ladder.memory",
    row=MemoryPeak,
    describe=describe_memory,
    option="--ladder",
    help="climb from fp32 over AMP, set-to-none, non-blocking and the prefetcher to what --techniques names, with a "
    "real loader, each on top of the one before that works; --precisions fp32 leaves AMP out",
    finds_unfit=True,
    is_ablation=True,
    one_batch=True,
    check=check,
    trials=memory_trials,
    resolve=resolve,
    estimate=lambda work: 4 * work.step_s,
)
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
    is_ablation=True,
    one_batch=True,
    trials=trials,
    resolve=resolve,
    trains_on_data=True,
    has_children=True,
    # In addition to the rounds, 15 continuous steps of each show whether it waits for the loader.
    estimate=lambda work: work.arms * (work.rounds_s + 15 * work.step_s),
)
PHASES = (MEMORY, PHASE)
