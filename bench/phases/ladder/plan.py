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
    memory = [replace(speed, phase="memory", arms=(step,)) for step in steps]
    groups, alone = together(speed, question.device, unsupported)
    return [*memory, *in_processes(speed, groups, speed.protocol.replicates), *alone]


def _mixed(question: Question) -> str:
    """Return the mixed precision to add, fp32 for none: the one named, else the device's."""
    names, device = question.request.precisions, question.device
    if names:
        return named_mixed(names)
    best = best_mixed(device)
    return BASELINE if is_emulated(device, best) else best


def named_mixed(names: tuple[str, ...]) -> str:
    """Return the only mixed precision among those named; fp32 if there is none.

    Raises:
        UsageError: there are several.
    """
    mixed = [name for name in dict.fromkeys(names) if parse_precision(name).compute != "float32"]
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
    unsupported: list[ArmSpec] = []
    if mixed != BASELINE:
        place = steps if supported else unsupported
        place.append(ArmSpec(precision=mixed))
    for name in dict.fromkeys((*FIXED, *more)):
        step = replace(steps[-1], techniques=(*steps[-1].techniques, name))
        place = unsupported if refusal(step.techniques, kind, "speed") else steps
        place.append(step)
    return steps, unsupported
