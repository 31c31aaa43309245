"""The registry of phases: what a trial may do, and all that planning and storing need to know of it.

To add a phase: an entry here, its result in results/records.py, and a module of its name in phases/ with ``run``;
CONTRIBUTING.md has the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Quantities that the time of a trial is estimated from."""

    step_s: float
    """Estimated time of a training step in fp32."""
    arms: int
    steps_per_epoch: int
    epochs: int
    first: bool
    """Whether it is the first process of its cell, which finds what the others only check."""
    budget_s: float
    """Time budget of an arm."""
    fewest_rounds: int
    """ABBA rounds that are measured whatever the time budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One kind of measurement."""

    name: str
    """As in CSVs, trial ids and ``--phases``."""
    summary: str
    estimate: Callable[[Work], float] | None
    """Estimates a trial's seconds, without the start of its process; None where nothing is known beforehand."""
    file: str = "trials.csv"
    """The CSV in which reports look for the details of its results."""
    key: Literal["replicate", "seed"] | None = None
    """Counts repetitions, and so tells trials of the same precisions apart; None is measured once."""
    arms: Literal["each", "narrow", "together", "baseline"] = "each"
    """One trial for each precision, for each but the baseline, one for all that the device supports, or one of the
    baseline alone."""
    option: Literal["--phases", "--batch-sizes", "--ladder"] = "--phases"
    """The option that asks for it."""
    default: bool = False
    """Whether it runs where no option names phases."""
    joint: bool = False
    """Whether it is measured on several devices that train together."""
    trains_on_data: bool = False
    """Whether it needs the suite's training data rather than random batches."""
    recipe_batch: bool = False
    """Whether it keeps the suite's batch size where others are swept: at another it would be another training."""
    arithmetic: bool = False
    """Whether it tells what numbers become, and not only what that costs: the phases where emulation has a meaning."""
    checkpoints: bool = False
    """Whether a trial that was interrupted is resumed from a checkpoint."""
    has_children: bool = False
    """Whether its process starts others, such as a loader's workers."""
    module: str = ""
    """The module of phases/ that runs it; empty is the one of its own name."""


def _warm_up_s(work: Work) -> float:
    return max(0.5, min(15 * work.step_s, 4 * work.step_s + 0.75 * work.budget_s))


def _rounds_s(work: Work) -> float:
    """Estimate an arm's warm-up, watched switches and ABBA rounds; in a first process also its limits."""
    round_s = 2 * work.step_s * (1.7 if work.step_s < 1.0 else 1.0)  # long steps have no switch warm-up
    rounds_s = max(work.budget_s, min(work.fewest_rounds * round_s, max(5 * work.budget_s, 2 * round_s)))
    limits_s = 0.4 + 4 * work.step_s if work.first else 0.0
    switches_s = 0.5 * work.budget_s if 25 * work.step_s < work.budget_s else 0.0  # of longer steps none are watched
    return _warm_up_s(work) + switches_s + rounds_s + limits_s


PHASES: dict[str, Phase] = {
    phase.name: phase
    for phase in (
        Phase(
            name="fit",
            summary="the search for the largest batch that fits",
            option="--batch-sizes",
            module="memory",
            estimate=None,
        ),
        Phase(
            name="memory",
            summary="peak memory of a training step, and what it is made of",
            default=True,
            joint=True,
            estimate=lambda work: 10 * work.step_s,  # seven steps, in memory that is new to the process
        ),
        Phase(
            name="floor",
            summary="the baseline timed against itself: the A/A noise",
            key="replicate",
            arms="baseline",
            joint=True,
            module="speed",
            estimate=lambda work: 2 * _rounds_s(work),
        ),
        Phase(
            name="speed",
            summary="time of a training step, all precisions in one process",
            key="replicate",
            arms="together",
            default=True,
            joint=True,
            file="blocks.csv",
            estimate=lambda work: work.arms * _rounds_s(work),
        ),
        Phase(
            name="energy",
            summary="energy of a training step",
            default=True,
            joint=True,
            estimate=lambda work: 15.0 + 4 * work.step_s,  # idle power first, then two windows of steps
        ),
        Phase(
            name="train",
            summary="training with an evaluation after each epoch",
            key="seed",
            arithmetic=True,
            default=True,
            joint=True,
            trains_on_data=True,
            recipe_batch=True,
            checkpoints=True,
            file="epochs.csv",
            estimate=lambda work: (
                1.0 + work.epochs * work.steps_per_epoch * work.step_s
            ),  # samples are read, models tested
        ),
        Phase(
            name="numerics",
            summary="the first steps of training: losses, gradients, activations, types, errors against float64",
            key="seed",
            arithmetic=True,
            trains_on_data=True,
            recipe_batch=True,
            file="numerics.csv",
            estimate=lambda work: 80 * work.step_s,  # 60 steps, those in float64, and counting gradients
        ),
        Phase(
            name="layers",
            summary="the search for the modules that a narrow precision must keep in fp32",
            arms="narrow",
            arithmetic=True,
            trains_on_data=True,
            recipe_batch=True,
            file="numerics.csv",
            # Where nothing is needed; else a pass or two for each module come on top.
            estimate=lambda work: 1.0 + (10 + work.epochs * work.steps_per_epoch) * work.step_s,
        ),
        Phase(
            name="explain",
            summary="where a step's time goes, by class of work, and what its products take alone",
            arms="together",
            file="explain.csv",
            trains_on_data=True,
            # Plain and profiled steps in turn, products alone, and steps of twice the batch.
            estimate=lambda work: work.arms * (_warm_up_s(work) + max(2.0, 60 * work.step_s) + 5.0),
        ),
        Phase(
            name="inference",
            summary="the forward pass in eval mode: time, latency, agreement with fp32",
            key="seed",
            estimate=lambda work: 2 * (_warm_up_s(work) + work.budget_s),
        ),
        Phase(
            name="ladder_memory",
            summary="peak memory of each step of the ablation",
            option="--ladder",
            module="memory",
            estimate=lambda work: 4 * work.step_s,
        ),
        Phase(
            name="ladder",
            summary="all steps of the ablation timed in one process, fed by a loader",
            key="replicate",
            arms="together",
            option="--ladder",
            trains_on_data=True,
            has_children=True,
            file="blocks.csv",
            # In addition to the rounds, 15 continuous steps of each show whether it waits for the loader.
            estimate=lambda work: work.arms * (_rounds_s(work) + 15 * work.step_s),
        ),
    )
}
"""By name, in the order in which they run within a cell."""
SELECTABLE = tuple(name for name, phase in PHASES.items() if phase.option == "--phases")
"""The choices of ``--phases``."""
LADDER = tuple(name for name, phase in PHASES.items() if phase.option == "--ladder")
"""The phases of ``--ladder``."""
USUAL = tuple(name for name, phase in PHASES.items() if phase.default)
"""The phases that run where neither option says otherwise."""
EXPLAIN = ("memory", "speed", "explain")
"""The phases of the command ``explain``: the gain, what it costs in memory, and why."""
