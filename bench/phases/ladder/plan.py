"""The trials of an ablation: arms of memory and speed, each with one technique more."""

from __future__ import annotations

from dataclasses import replace

from bench.planning.abilities import best_mixed, is_emulated, unsupported_reason
from bench.planning.plan import in_processes, together
from bench.planning.question import Question
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.techniques import FIXED, ArmSpec, refusal
from bench.spec.trial import Trial


def trials(question: Question) -> list[Trial]:
    """Return the trials: memory of each supported step, their speed together, all others alone."""
    mixed = _mixed(question)
    supported = unsupported_reason(question.device, mixed) is None
    more = question.cell.techniques
    steps, unsupported = build_ablation(mixed, question.device.kind, more, supported=supported)
    cell = replace(question.cell, techniques=())  # they are steps
    speed = replace(question.trial(), phase="speed", ablation=True, cell=cell, arms=tuple(steps))
    # Memory comes first: what does not fit is then left out of the speed of all together.
    memory = [replace(speed, phase="memory", arms=(step,)) for step in steps]
    groups, alone = together(speed, question.device, unsupported)
    timed = in_processes(speed, groups, speed.protocol.replicates)
    return [*memory, *timed, *alone]


def _mixed(question: Question) -> str:
    """Return the mixed precision to add, fp32 for none: the one named, else the device's."""
    names = question.request.precisions
    device = question.device
    if names:
        return named_mixed(names)
    best = best_mixed(device)
    if is_emulated(device, best):  # which would be slower than fp32
        return BASELINE
    return best


def named_mixed(names: tuple[str, ...]) -> str:
    """Return the only mixed precision among those named; fp32 if there is none.

    Raises:
        UsageError: there are several.
    """
    mixed = []
    for name in dict.fromkeys(names):
        if parse_precision(name).compute != "float32":
            mixed.append(name)
    if len(mixed) > 1:
        raise UsageError(
            f"A ladder climbs to one mixed precision: name one of {', '.join(mixed)} in "
            "--precisions."
        )
    return mixed[0] if mixed else BASELINE


def build_ablation(
    mixed: str, kind: str, more: tuple[str, ...] = (), *, supported: bool = True
) -> tuple[list[ArmSpec], list[ArmSpec]]:
    """Return the ablation from fp32 over a mixed precision to all techniques.

    Args:
        mixed: the mixed precision; fp32 leaves that step out.
        kind: the kind of device.
        more: canonical names of techniques to add last.
        supported: whether the device supports the mixed precision; if not, techniques are added to
        fp32.

    Returns:
        The steps to measure, and those that the device does not support, which are left out of the
        steps after them.
    """
    steps = [ArmSpec(precision=BASELINE)]
    unsupported = []
    if mixed != BASELINE:
        step = ArmSpec(precision=mixed)
        if supported:
            steps.append(step)
        else:
            unsupported.append(step)
    for name in dict.fromkeys((*FIXED, *more)):
        below = steps[-1]
        step = replace(below, techniques=(*below.techniques, name))
        if refusal(step.techniques, kind, "speed"):
            unsupported.append(step)
        else:
            steps.append(step)
    return steps, unsupported
