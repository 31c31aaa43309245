"""The trials of an ablation: its steps, those that a device supports, and what is left where some do not work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.phases.ladder import PHASE
from bench.planning.plan import best_mixed, in_processes, is_emulated, together, unsupported_reason
from bench.planning.question import Question
from bench.results.records import MEASURED, Device, Status
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.techniques import FIXED, AblationStep, rebase, refusal
from bench.spec.trial import Trial


def trials(question: Question) -> list[Trial]:
    """Return the trials that time the steps: those that the device supports together, each other alone."""
    common, unsupported = _steps(question)
    groups, alone = together(common, question.device, unsupported)
    return in_processes(common, groups) + alone


def memory_trials(question: Question) -> list[Trial]:
    """Return a trial for the memory of each step that the device supports."""
    common, _ = _steps(question)
    return [replace(common, arms=(step,)) for step in common.arms]


def _steps(question: Question) -> tuple[Trial, list[AblationStep]]:
    """Return a trial of all steps, and the steps that the device does not support."""
    names, device = question.request.precisions, question.device
    mixed = named_mixed(names) if names else _best(device)
    supported = unsupported_reason(device, mixed, question.phase.name) is None
    steps, unsupported = build_ablation(mixed, device.kind, question.cell.techniques, supported=supported)
    cell = replace(question.cell, techniques=())  # they are steps
    return replace(question.trial(), cell=cell, arms=tuple(steps)), unsupported


def _best(device: Device) -> str:
    mixed = best_mixed(device)
    return BASELINE if is_emulated(device, mixed) else mixed


def named_mixed(names: tuple[str, ...]) -> str:
    """Return the only mixed precision among those named; fp32 if there is none.

    Raises:
        UsageError: there are several.
    """
    mixed = [name for name in dict.fromkeys(names) if parse_precision(name).compute != "float32"]
    if len(mixed) > 1:
        raise UsageError(f"A ladder climbs to one mixed precision: name one of {', '.join(mixed)} in --precisions.")
    return mixed[0] if mixed else BASELINE


def build_ablation(
    mixed: str, kind: str, more: tuple[str, ...] = (), *, supported: bool = True
) -> tuple[list[AblationStep], list[AblationStep]]:
    """Return the ablation from fp32 over a mixed precision to all techniques.

    Args:
        mixed: the mixed precision; fp32 leaves that step out.
        kind: the kind of device.
        more: canonical names of techniques to add last.
        supported: whether the device supports the mixed precision; if not, techniques are added to fp32.

    Returns:
        The steps to measure, and those that the device does not support, which are left out of the steps after them.
    """
    steps = [AblationStep(precision=BASELINE)]
    unsupported: list[AblationStep] = []
    if mixed != BASELINE:
        (steps if supported else unsupported).append(AblationStep(precision=mixed))
    for name in (*FIXED, *(name for name in more if name not in FIXED)):
        step = replace(steps[-1], techniques=(*steps[-1].techniques, name))
        (unsupported if refusal(step.techniques, kind, PHASE.name) else steps).append(step)
    return steps, unsupported


def resolve(trial: Trial, memory: Sequence[Trial], done: Mapping[str, Mapping[str, Status]]) -> Trial | None:
    """Return what a planned trial measures after the trials of its steps' memory, or None if nothing is left.

    A step that did not run there is left out, and later steps add to the last one that did.
    """
    statuses: dict[AblationStep, Status | None] = {}
    rebased: dict[AblationStep, AblationStep] = {}

    def works(step: AblationStep) -> bool:
        return statuses.get(step) is None or statuses[step] in MEASURED

    planned = [fit.arms[0] for fit in memory]
    for fit, step in zip(memory, rebase(planned, works), strict=True):
        rebased[fit.arms[0]] = step
        statuses[step] = done.get(replace(fit, arms=(step,)).id, {}).get(step.name)
    arms = [rebased.get(arm, arm) for arm in trial.arms]
    if trial.phase == PHASE.name:
        arms = [arm for arm in arms if works(arm)]
    return replace(trial, arms=tuple(arms)) if arms else None
