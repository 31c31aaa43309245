"""From a request to an ordered list of trials: suites by devices by batch sizes by phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from bench.planning.abilities import EMULATED, best_mixed, is_emulated, require_supported, unsupported_reason
from bench.planning.batch_sizes import Largest, at_any_size, fitting_at
from bench.planning.estimate import estimate_s, silence_s, step_s
from bench.planning.footprint import Footprints, fit_batches, unfit_reason
from bench.planning.question import Question
from bench.results.records import Device, Environment
from bench.spec.data_source import PreparedData
from bench.spec.phases import ABLATIONS, PHASES, SEARCHES
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.protocol import Protocol
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import AblationStep, find, for_one_device, techniques
from bench.spec.trial import Cell, SuiteRef, Trial

ONCE = Protocol(replicates=1, most_replicates=1, time_budget_s=1.0, fewest_rounds=3)
"""An emulated precision that nobody named is measured in one short process: it is slower by far."""
EMULATED_STEP_S, EMULATED_TRAIN_S = 1.0, 10.0
"""It is left out where a step of it should take longer, because a comparison runs about 20 of them; and it is not
trained where a training should."""
QUICK_STEP_FLOPS = {"cpu": 1e11, "cuda": 2e12}
"""``--quick`` halves a batch while its step has more FLOPs, by kind of device: about a second in fp32 on two cores of a
CPU, and half a second on a T4."""
ASKED_FIRST = {"speed": 0, "memory": 1, "train": 2}
"""The order in which a run that has to end in a given time measures phases; the others follow."""
Groups = list[tuple[AblationStep, ...]]
"""The arms of each of some trials."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials in the order they run, with their estimated seconds (None where nothing is known)."""

    trials: tuple[Trial, ...]
    seconds: tuple[float | None, ...]

    def only(self, keep: Callable[[Trial], bool]) -> Plan:
        """Return the trials that are to be kept."""
        kept = [(trial, seconds) for trial, seconds in zip(self.trials, self.seconds, strict=True) if keep(trial)]
        return Plan(trials=tuple(trial for trial, _ in kept), seconds=tuple(seconds for _, seconds in kept))


def make_plan(
    request: Request,
    suites: dict[SuiteRef, Suite],
    data: dict[SuiteRef, PreparedData],
    environment: Environment,
    flops: dict[SuiteRef, float | None],
    *,
    largest: Largest | None = None,
    footprints: Footprints = MappingProxyType({}),
) -> Plan:
    """Order suites × placements × batch sizes × phases × precisions × replicates or seeds into trials.

    Within a cell phases come in the order of ``PHASES``: memory first, because it tells which precisions fit.

    Args:
        request: what was asked.
        suites: the suites, each with its parameters.
        data: their data.
        environment: the machine, with the devices to run on.
        flops: FLOPs of a training step per sample, for the estimate.
        largest: the largest batches that fit, once they are known; until then the plan holds the search for them.
        footprints: the memory of suites whose models can be built without it.

    Raises:
        UsageError: no device supports any of the precisions that were asked for.
    """
    require_supported(request, environment.devices)
    alone = [len(Placement(name=device.placement).members) == 1 for device in environment.devices]
    planned: list[tuple[Trial, float | None]] = []
    for ref, suite in suites.items():
        for device, is_alone in zip(environment.devices, alone, strict=True):
            here = request
            if is_alone and not all(alone):  # the reference of the devices that train together
                here = replace(request, techniques=for_one_device(request.techniques))
            footprint = footprints.get(ref)
            kept = suite if footprint is None else fit_batches(suite, ref, device, footprint)
            if request.quick:
                here, kept = _shorten(here, kept, device, flops.get(ref))
            once = _emulates_quickly(here, kept, device, flops.get(ref))
            if once:
                seeds = here.seeds or suite.seeds[:1]
                here = replace(here, precisions=(BASELINE, EMULATED), protocol=ONCE, seeds=seeds)
            for asked in _trials_on(here, ref, kept, data[ref], device, largest=largest):
                step = step_s(asked, device, flops.get(ref))
                unfit = unfit_reason(asked, device, footprint) if footprint is not None else ""
                trial = replace(asked, silence_s=silence_s(asked, request, step), unfit=unfit)
                seconds = estimate_s(trial, suite, data[ref], device, step)
                trains_slowly = once and trial.phase == "train" and trial.precisions == (EMULATED,)
                if not trains_slowly or (seconds or math.inf) <= EMULATED_TRAIN_S:
                    planned.append((trial, seconds))
    if request.within_s is not None:  # the cells take turns, process by process
        planned.sort(key=lambda entry: (ASKED_FIRST.get(entry[0].phase, len(ASKED_FIRST)), entry[0].replicate))
    return Plan(trials=tuple(trial for trial, _ in planned), seconds=tuple(seconds for _, seconds in planned))


def _shorten(request: Request, suite: Suite, device: Device, flops_per_sample: float | None) -> tuple[Request, Suite]:
    """Return what ``--quick`` measures where nothing else is named: at most two precisions, at one batch size.

    The size does not depend on the device's speed, so that quick runs can be resumed and compared: it is the recipe's,
    or the smallest that the suite has for a CPU, halved while a step has many FLOPs.
    """
    mixed = best_mixed(device)
    if not is_emulated(device, mixed) and not unsupported_reason(device, mixed):
        request = replace(request, precisions=request.precisions or (BASELINE, mixed))
    size = min((suite.batch_size, *(() if device.is_gpu else suite.cpu_batch_sizes)))
    pieces = len(Placement(name=device.placement).members) * techniques(request.techniques).grad_accumulation
    most = QUICK_STEP_FLOPS["cuda" if device.is_gpu else "cpu"]
    while size * (flops_per_sample or 0.0) > most and size >= 4 * pieces and size % (2 * pieces) == 0:
        size //= 2
    return request, replace(suite, batch_sizes=(size,), cpu_batch_sizes=(size,))


def _emulates_quickly(request: Request, suite: Suite, device: Device, flops_per_sample: float | None) -> bool:
    """Return whether to measure an emulated precision that nobody named: its step is short, or to be explained.

    Without it a CPU that emulates bfloat16 has nothing to compare with fp32.
    """
    if request.precisions or {*ABLATIONS} & {*request.phases} or not is_emulated(device, EMULATED):
        return False
    largest = max(request.batch_sizes or suite.cpu_batch_sizes or suite.batch_sizes or (suite.batch_size,))
    within_limit = (
        flops_per_sample is not None
        and device.bf16_gflops is not None
        and flops_per_sample * largest < EMULATED_STEP_S * 1e9 * device.bf16_gflops
    )
    return within_limit or any(PHASES[name].however_slow for name in request.phases)


def _trials_on(
    request: Request, ref: SuiteRef, suite: Suite, data: PreparedData, device: Device, *, largest: Largest | None
) -> list[Trial]:
    """Return a suite's trials on one device, in their order."""
    sizes = {phase: _batch_sizes(suite, request, device, phase) for phase in request.phases}
    start = (not device.is_gpu and min(suite.cpu_batch_sizes, default=0)) or suite.batch_size
    cell = Cell(
        suite=ref,
        placement=Placement(name=device.placement),
        batch_size=start,
        data=data.source,
        classes=data.classes,
        techniques=tuple(name for name in request.techniques if not find(name).implied),
    )
    names = _precisions(request, device)
    phases = [name for name in PHASES if name in request.phases and not _lacks(device, name)]
    question = partial(Question, request=request, suite=suite, device=device)
    trials: list[Trial] = []
    if request.largest_batch and largest is None:
        for name in SEARCHES:
            trials += _trials(question(phase=PHASES[name], cell=cell, precisions=names))
    fitting = fitting_at({name: (largest or {}).get((at_any_size(cell), name)) for name in names})
    for size in sorted({*(size for chosen in sizes.values() for size in chosen), *fitting}):
        at = replace(cell, batch_size=size)
        for name in phases:
            phase = PHASES[name]
            if size in sizes[name]:
                trials += _trials(question(phase=phase, cell=at, precisions=names))
            elif size in fitting and not phase.recipe_batch and (phase.arms != "baseline" or BASELINE in fitting[size]):
                trials += _trials(question(phase=phase, cell=at, precisions=fitting[size]))
    return trials


def _lacks(device: Device, name: str) -> bool:
    """Return whether a device cannot be asked for a phase."""
    lacks = PHASES[name].lacks
    return lacks is not None and lacks(device) is not None


def _batch_sizes(suite: Suite, request: Request, device: Device, phase: str) -> tuple[int, ...]:
    """Return the batch sizes of a phase: the request's, else the suite's sweep, or its recipe's for training."""
    if any(name == "batch_size" for name, _ in request.sweep):
        return (suite.batch_size,)
    recipe = PHASES[phase].recipe_batch
    if request.batch_sizes or (request.largest_batch and not recipe):
        return request.batch_sizes or ()
    if recipe:
        return (suite.batch_size,)
    sizes = () if device.is_gpu else suite.cpu_batch_sizes
    if PHASES[phase].one_batch:
        return (min(sizes, default=suite.batch_size),)
    return sizes or suite.batch_sizes or (suite.batch_size,)


def _precisions(request: Request, device: Device) -> tuple[str, ...]:
    """Return the precisions to compare, the baseline first: those named, else those that the device may gain by."""
    names = request.precisions or [
        name
        for name, precision in PRECISIONS.items()
        if precision.default
        and (device.is_gpu or precision.compute != "float16")  # most CPUs emulate it
        and not unsupported_reason(device, name)
        and not is_emulated(device, name)
    ]
    return tuple(sorted(dict.fromkeys(names), key=lambda name: name != BASELINE))


def _trials(question: Question) -> list[Trial]:
    """Return the trials of a phase in a cell; arms that the device does not support get a trial each."""
    phase, device, request = question.phase, question.device, question.request
    if phase.trials is not None:
        return phase.trials(question)
    common = question.trial()
    groups: list[tuple[AblationStep, ...]] = [(arm,) for arm in common.arms]
    alone: list[Trial] = []
    if phase.arms == "baseline":
        groups = [(AblationStep(precision=BASELINE),)]
    elif phase.arms == "together":
        groups, alone = together(common, device)
    if phase.is_enough is not None:
        return in_processes(common, groups) + alone
    if phase.key == "seed":
        common = replace(common, epochs=request.epochs or question.suite.epochs)
        common = replace(common, target_accuracy_pct=request.target_accuracy_pct)
        # Every other seed in reverse order, so that a linear drift of the machine favours no precision.
        return [
            replace(common, arms=group, seed=seed)
            for turn, seed in enumerate(question.seeds)
            for group in (groups[::-1] if turn % 2 else groups)
        ]
    if phase.key == "replicate" and device.is_gpu and not request.quick:
        # The memory phase: cuDNN may choose another workspace in each process.
        return [replace(common, arms=group, replicate=process) for group in groups for process in (0, 1)]
    return [replace(common, arms=group) for group in groups] + alone


def together(common: Trial, device: Device, refused: Sequence[AblationStep] = ()) -> tuple[Groups, list[Trial]]:
    """Return the arms of a trial that the device supports as one group, and a trial for each other arm."""
    unsupported = [*refused, *(arm for arm in common.arms if unsupported_reason(device, arm.precision, common.phase))]
    supported = tuple(arm for arm in common.arms if arm not in unsupported)
    return [supported] if supported else [], [replace(common, arms=(arm,)) for arm in unsupported]


def in_processes(common: Trial, groups: Groups) -> list[Trial]:
    """Return a trial for each group of arms in each of the protocol's processes."""
    processes = range(common.protocol.replicates)
    return [replace(common, arms=group, replicate=number) for number in processes for group in groups]
