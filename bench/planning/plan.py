"""From what was asked to an ordered list of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.planning.defaults import (
    PreparedData,
    choose_batch_sizes,
    choose_precisions,
    slower,
    unsupported_reason,
)
from bench.planning.estimate import estimate_s
from bench.planning.max_batch import Largest, at_any_size, fitting_at
from bench.results.records import MEASURED, Device, Environment, Status
from bench.spec.ablation import build_ablation, choose_mixed, parse_step, rebase
from bench.spec.errors import UsageError
from bench.spec.phases import LADDER, PHASES
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import find, for_one_device
from bench.spec.trial import Cell, Placement, SuiteRef, Trial, members


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
        suites: the suites.
        data: their data.
        environment: the machine, with the devices to run on.
        flops: FLOPs of a training step per sample, for the estimate.
        largest: the largest batches that fit, once they are known; until then the plan holds the search for them.

    Raises:
        UsageError: no device can do any of the precisions that were asked for.
    """
    _require_supported(request, environment.devices)
    trials: list[Trial] = []
    for ref in request.suites:
        for device in environment.devices:
            trials += _place(
                _asked_of(request, device, environment), ref, suites[ref], data[ref], device, largest=largest
            )
    devices = {device.placement: device for device in environment.devices}
    seconds = tuple(
        estimate_s(
            trial,
            suites[trial.cell.suite],
            data[trial.cell.suite],
            devices[trial.cell.placement.name],
            flops.get(trial.cell.suite),
        )
        for trial in trials
    )
    return Plan(trials=tuple(trials), seconds=seconds)


def _require_supported(request: Request, devices: tuple[Device, ...]) -> None:
    asked = request.precisions or (BASELINE,)
    if any(unsupported_reason(device, name) is None for device in devices for name in asked):
        return
    device = devices[0]
    reasons = "; ".join(f"{name}: {unsupported_reason(device, name)}" for name in asked)
    rest = ", ".join(name for name in PRECISIONS if name not in (device.unsupported or {}))
    raise UsageError(f"{device.name} cannot do {reasons}. It can do: {rest}.")


def _asked_of(request: Request, device: Device, environment: Environment) -> Request:
    """Leave out, on one device, what is about several, where several are measured as well: it is their reference."""
    several = any(len(members(other.placement)) > 1 for other in environment.devices)
    if not several or len(members(device.placement)) > 1:
        return request
    return replace(request, techniques=for_one_device(request.techniques))


def _place(
    request: Request, ref: SuiteRef, suite: Suite, data: PreparedData, device: Device, *, largest: Largest | None
) -> list[Trial]:
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
    names, seed = choose_precisions(request, device), request.seeds[0]
    if request.largest_batch and largest is None:
        trials = [Trial(cell=cell, phase="fit", precisions=(name,), seed=seed) for name in names]
    else:
        trials = []
    fitting = fitting_at({name: (largest or {}).get((at_any_size(cell), name)) for name in names})
    for size in sorted({*(size for chosen in sizes.values() for size in chosen), *fitting}):
        at = replace(cell, batch_size=size)
        for phase in PHASES:
            if phase not in request.phases or (phase == "energy" and not device.energy):
                continue
            if size in sizes[phase]:
                trials += _trials(request, suite, at, phase, device)
            elif size in fitting and not PHASES[phase].recipe_batch and (phase != "floor" or BASELINE in fitting[size]):
                trials += _trials(replace(request, precisions=fitting[size]), suite, at, phase, device)
    return trials


def _climb(request: Request, cell: Cell, phase: str, device: Device) -> list[Trial]:
    """Return the trials of the ladder: memory rung by rung, or all rungs together; and a row for each that cannot."""
    mixed = choose_mixed(request.precisions, device.unsupported or {})
    if not request.precisions and slower(device, mixed):
        mixed = BASELINE  # one that is only emulated is left out, as among precisions
    ladder = build_ablation(mixed, device.kind, cell.techniques, unable=unsupported_reason(device, mixed))
    first = Trial(
        cell=replace(cell, techniques=()),  # those are rungs here
        phase=phase,
        precisions=tuple(rung.name for rung in ladder.steps),
        seed=request.seeds[0],
        protocol=request.protocol,
    )
    if phase == "ladder_memory":
        return [replace(first, precisions=(name,)) for name in first.precisions]
    together = [replace(first, replicate=replicate) for replicate in range(request.protocol.replicates)]
    return [*together, *(replace(first, precisions=(rung.name,)) for rung, _ in ladder.missing)]


def _trials(request: Request, suite: Suite, cell: Cell, phase: str, device: Device) -> list[Trial]:
    if phase in LADDER:
        return _climb(request, cell, phase, device)
    precisions = choose_precisions(request, device)
    seed, kind = request.seeds[0], PHASES[phase]
    if kind.key is None:
        return [Trial(cell=cell, phase=phase, precisions=(name,), seed=seed) for name in precisions]
    if kind.key == "replicate":
        protocol = request.protocol
        able = tuple(name for name in precisions if unsupported_reason(device, name) is None)
        unable = [name for name in precisions if name not in able and kind.arms == "together"]
        arms = able if kind.arms == "together" else (BASELINE,)
        first = Trial(cell=cell, phase=phase, precisions=arms or precisions, seed=seed, protocol=protocol)
        timed = [replace(first, replicate=replicate) for replicate in range(protocol.replicates)] if arms else []
        return [*timed, *(replace(first, precisions=(name,)) for name in unable)]  # a row each that says why not
    common = Trial(
        cell=cell,
        phase=phase,
        precisions=precisions,
        epochs=request.epochs or suite.epochs,
        target_accuracy_pct=request.target_accuracy_pct,
        clip_grad=request.clip_grad,
    )
    # There and back again from seed to seed, so that a linear drift of the machine favours no precision.
    return [
        replace(common, precisions=(name,), seed=seed)
        for turn, seed in enumerate(request.seeds)
        for name in (precisions[::-1] if turn % 2 else precisions)
    ]


# What a ladder's trial asks for once the memory of its rungs is known: the rungs that work, each on those below.


def standing(trial: Trial, trials: Sequence[Trial], done: Mapping[str, Mapping[str, Status]]) -> Trial | None:
    """Return a trial of the ladder without the rungs that do not work, each on the last below it that does.

    What does not work is what the ladder's memory phase found so in the same cell. A rung that was not tried is as
    it was planned, and so is a rung that no device of its kind can do, whose row says why.

    Args:
        trial: a trial of a phase of the ladder.
        trials: the plan.
        done: finished trials by their config, with the status of each rung.

    Returns:
        The trial; None where none of its rungs is left.
    """
    asked = [one for one in trials if one.phase == "ladder_memory" and one.cell == trial.cell]
    found: dict[str, Status | None] = {}

    def works(name: str) -> bool:
        return found[name] is None or found[name] in MEASURED

    stand: dict[str, str] = {}
    planned = [parse_step(one.precisions[0]) for one in asked]
    for one, rung in zip(asked, rebase(planned, lambda rung: works(rung.name)), strict=True):
        stand[one.precisions[0]] = rung.name
        found[rung.name] = done.get(replace(one, precisions=(rung.name,)).config, {}).get(rung.name)
    names = [stand.get(name, name) for name in trial.precisions]
    if trial.phase == "ladder":
        names = [name for name in names if name not in found or works(name)]
    return replace(trial, precisions=tuple(names)) if names else None
