"""From a planned trial to the one that runs, once the memory phase has shown which arms fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.planning.plan import Plan
from bench.results.records import MEASURED, UNFIT, Status
from bench.spec.phases import PHASES
from bench.spec.techniques import ArmSpec
from bench.spec.trial import Cell, Trial

# The trials that find out which arms fit: by whether they are of an ablation and by cell; there by
# their arm, which several processes may measure.
MemoryTrials = Mapping[tuple[bool, Cell], Mapping[ArmSpec, Sequence[Trial]]]


def memory_trials(plan: Plan) -> MemoryTrials:
    """Return the trials of a plan that find out which arms fit."""
    trials: dict[tuple[bool, Cell], dict[ArmSpec, list[Trial]]] = {}
    for trial in plan.trials:
        if PHASES[trial.phase].finds_unfit:
            of_cell = trials.setdefault((trial.ablation, trial.cell), {})
            of_cell.setdefault(trial.arms[0], []).append(trial)
    return trials


def resolve(
    trial: Trial,
    of_memory: MemoryTrials,
    done: Mapping[str, Mapping[str, Status]],
) -> Trial | None:
    """Return what a planned trial measures after the memory phase of its cell.

    None if nothing is left. An arm that did not run there is left out, and later steps of an
    ablation add to the last one that did: without channels-last, compile is measured on plain AMP.
    Of two processes that read an arm's memory, one that ran is enough. An arm without a result yet
    stays as planned.

    Args:
        trial: a trial of the plan.
        of_memory: the plan's memory trials, which find out which arms fit.
        done: the status of each arm of the trials that have ended, by their ids.
    """
    # What is measured in the place of each planned arm.
    measured = {}
    failed: list[ArmSpec] = []
    for planned, processes in of_memory.get((trial.ablation, trial.cell), {}).items():
        arm = planned.without(failed)
        measured[planned] = arm
        statuses = set()
        for process in processes:
            ended = done.get(replace(process, arms=(arm,)).id, {})
            statuses.add(ended.get(arm.name))
        # Of several processes one that ran shows that the arm fits.
        if statuses & {*UNFIT} and not statuses & {*MEASURED}:
            failed.append(arm)
    arms = []
    for planned in trial.arms:
        arm = measured.get(planned, planned)
        if PHASES[trial.phase].finds_unfit or arm not in failed:
            arms.append(arm)
    if arms:
        return replace(trial, arms=tuple(arms))
    return None
