"""From a request to an ordered list of trials, and from a planned trial to the one that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.planning.defaults import (
    PreparedData,
    choose_batch_sizes,
    choose_precisions,
    is_emulated,
    unsupported_reason,
)
from bench.planning.estimate import estimate_s
from bench.planning.max_batch import Largest, at_any_size, fitting_at
from bench.results.records import MEASURED, Device, Environment, Status
from bench.spec.ablation import Ablation, AblationStep, build_ablation, choose_mixed, rebase
from bench.spec.errors import UsageError
from bench.spec.phases import LADDER, PHASES
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import find, for_one_device
from bench.spec.trial import Cell, Placement, SuiteRef, Trial, members

UNFIT: tuple[Status, ...] = ("oom", "unsupported", "nonfinite", "timeout", "failed")
"""Outcomes of the memory phase after which the other phases of the cell leave a precision out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials in the order they run, with their estimated seconds (None where nothing is known)."""

    trials: tuple[Trial, ...]
    seconds: tuple[float | None, ...]

    def only(self, phase: str) -> Plan:
        """Return the trials of one phase."""
        kept = [pair for pair in zip(self.trials, self.seconds, strict=True) if pair[0].phase == phase]
        return Plan(trials=tuple(trial for trial, _ in kept), seconds=tuple(seconds for _, seconds in kept))


def make_plan(
    request: Request,
    suites: dict[SuiteRef, Suite],
    data: dict[SuiteRef, PreparedData],
    environment: Environment,
    flops: dict[SuiteRef, float | None],
    *,
    largest: Largest | None = None,
) -> Plan:
    """Order suites × placements × batch sizes × phases × precisions × replicates or seeds into trials.

    Within a cell memory comes first, because it tells which precisions fit, and training last.

    Args:
        request: what was asked.
        suites: the suites, each with its parameters.
        data: their data.
        environment: the machine, with the devices to run on.
        flops: FLOPs of a training step per sample, for the estimate.
        largest: the largest batches that fit, once they are known; until then the plan holds the search for them.

    Raises:
        UsageError: no device can do any of the precisions that were asked for.
    """
    _require_supported(request, environment.devices)
    several = any(len(members(device.placement)) > 1 for device in environment.devices)
    trials: list[Trial] = []
    seconds: list[float | None] = []
    for ref, suite in suites.items():
        for device in environment.devices:
            own = request
            if several and len(members(device.placement)) == 1:  # the reference of the devices that train together
                own = replace(request, techniques=for_one_device(request.techniques))
            planned = _trials_on(own, ref, suite, data[ref], device, largest=largest)
            trials += planned
            seconds += [estimate_s(trial, suite, data[ref], device, flops.get(ref)) for trial in planned]
    return Plan(trials=tuple(trials), seconds=tuple(seconds))


def _require_supported(request: Request, devices: tuple[Device, ...]) -> None:
    names = request.precisions or (BASELINE,)
    if any(unsupported_reason(device, name) is None for device in devices for name in names):
        return
    device = devices[0]
    reasons = "; ".join(f"{name}: {unsupported_reason(device, name)}" for name in names)
    rest = ", ".join(name for name in PRECISIONS if not unsupported_reason(device, name))
    raise UsageError(f"{device.name} cannot do {reasons}. It can do: {rest}.")


def _trials_on(
    request: Request, ref: SuiteRef, suite: Suite, data: PreparedData, device: Device, *, largest: Largest | None
) -> list[Trial]:
    """Return a suite's trials on one device, in their order."""
    sizes = {phase: choose_batch_sizes(suite, request, device, phase) for phase in request.phases}
    start = (device.kind == "cpu" and min(suite.cpu_batch_sizes, default=0)) or suite.batch_size
    cell = Cell(
        suite=ref,
        placement=Placement(name=device.placement),
        batch_size=start,
        data=data.source,
        classes=data.classes,
        techniques=tuple(name for name in request.techniques if not find(name).implied),
    )
    names = choose_precisions(request, device)
    phases = [name for name in PHASES if name in request.phases and (name != "energy" or device.energy)]
    trials: list[Trial] = []
    if suite.trainer != "plain":  # it has a loop of its own to train with; all else would be measured twice
        phases = [name for name in phases if name == "train"]
    elif request.largest_batch and largest is None:
        trials = _trials(request, suite, cell, "fit", device)
    fitting = fitting_at({name: (largest or {}).get((at_any_size(cell), name)) for name in names})
    for size in sorted({*(size for chosen in sizes.values() for size in chosen), *fitting}):
        at = replace(cell, batch_size=size)
        for name in phases:
            phase = PHASES[name]
            if size in sizes[name]:
                trials += _trials(request, suite, at, name, device)
            elif size in fitting and not phase.recipe_batch and (phase.arms != "baseline" or BASELINE in fitting[size]):
                trials += _trials(replace(request, precisions=fitting[size]), suite, at, name, device)
    return trials


def _trials(request: Request, suite: Suite, cell: Cell, name: str, device: Device) -> list[Trial]:
    """Return the trials of one phase in one cell; arms that the device does not support get a trial each."""
    phase = PHASES[name]
    if name in LADDER:
        ablation = _ablation(request, cell, device)
        cell = replace(cell, techniques=())  # they are steps
        arms, unsupported = ablation.steps, tuple(step for step, _ in ablation.missing)
    else:
        arms = tuple(AblationStep(precision=precision) for precision in choose_precisions(request, device))
        unsupported = tuple(arm for arm in arms if unsupported_reason(device, arm.precision))
    common = Trial(cell=cell, phase=name, arms=arms, seed=request.seeds[0])
    groups: list[tuple[AblationStep, ...]] = [(arm,) for arm in arms]
    rows: list[Trial] = []
    if phase.arms == "baseline":
        groups = [(AblationStep(precision=BASELINE),)]
    if phase.arms == "together":
        supported = tuple(arm for arm in arms if arm not in unsupported)
        groups = [supported] if supported else []
        common = replace(common, protocol=request.protocol)
        rows = [replace(common, arms=(arm,)) for arm in unsupported]
    if phase.key == "replicate":
        common = replace(common, protocol=request.protocol)
        repeated = range(request.protocol.replicates)
        return [replace(common, arms=group, replicate=number) for number in repeated for group in groups] + rows
    if phase.key == "seed":
        common = replace(
            common,
            epochs=request.epochs or suite.epochs,
            target_accuracy_pct=request.target_accuracy_pct,
            clip_grad=request.clip_grad,
        )
        # Every other seed in reverse order, so that a linear drift of the machine favours no precision.
        return [
            replace(common, arms=group, seed=seed)
            for turn, seed in enumerate(request.seeds)
            for group in (groups[::-1] if turn % 2 else groups)
        ] + rows
    return [replace(common, arms=group) for group in groups] + rows


def _ablation(request: Request, cell: Cell, device: Device) -> Ablation:
    mixed = choose_mixed(request.precisions, device.unsupported or {})
    if not request.precisions and is_emulated(device, mixed):
        mixed = BASELINE
    return build_ablation(mixed, device.kind, cell.techniques, unable=unsupported_reason(device, mixed))


def resolve(trial: Trial, trials: Sequence[Trial], done: Mapping[str, Mapping[str, Status]]) -> Trial | None:
    """Return what a planned trial measures after the memory phase of its cell, or None if nothing is left.

    A precision that did not run there is left out. An ablation step that did not is left out too, and later steps add
    to the last one that did. An arm without a result yet stays as planned.

    Args:
        trial: a trial of the plan.
        trials: the plan.
        done: finished trials by their config, with the status of each arm.
    """
    ladder = trial.phase in LADDER
    memory = [
        one for one in trials if one.phase == ("ladder_memory" if ladder else "memory") and one.cell == trial.cell
    ]
    if not ladder:
        statuses = {name: status for one in memory for name, status in done.get(one.config, {}).items()}
        arms = [arm for arm in trial.arms if trial.phase == "memory" or statuses.get(arm.name) not in UNFIT]
    else:
        found: dict[AblationStep, Status | None] = {}
        rebased: dict[AblationStep, AblationStep] = {}

        def works(step: AblationStep) -> bool:
            return found.get(step) is None or found[step] in MEASURED

        planned = [one.arms[0] for one in memory]
        for one, step in zip(memory, rebase(planned, works), strict=True):
            rebased[one.arms[0]] = step
            found[step] = done.get(replace(one, arms=(step,)).config, {}).get(step.name)
        arms = [rebased.get(arm, arm) for arm in trial.arms]
        if trial.phase == "ladder":
            arms = [arm for arm in arms if works(arm)]
    return replace(trial, arms=tuple(arms)) if arms else None
