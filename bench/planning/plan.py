"""From a request to an ordered list of trials: suites by devices by batch sizes by phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from bench.planning.abilities import (
    EMULATED,
    best_mixed,
    is_emulated,
    require_comparable,
    unsupported_reason,
)
from bench.planning.batch_sizes import Largest, at_any_size, pieces
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
from bench.spec.techniques import AblationStep, find, for_one_device
from bench.spec.trial import Cell, SuiteRef, Trial

# An emulated precision that nobody named is measured in one short process: it is slower by far.
ONCE = Protocol(replicates=1, most_replicates=1, time_budget_s=1.0, fewest_rounds=3)
# It is left out where a step of it should take longer, because a comparison runs about 20 of them;
# and it is not trained where a training should.
EMULATED_STEP_S, EMULATED_TRAIN_S = 1.0, 10.0
# ``--quick`` halves a batch while its step has more FLOPs, by kind of device: about a second in
# fp32 on two cores of a CPU, and half a second on a T4.
QUICK_STEP_FLOPS = {"cpu": 1e11, "cuda": 2e12}
# The order in which a run that has to end in a given time measures phases; the others follow.
ASKED_FIRST = {"speed": 0, "memory": 1, "train": 2}
# The arms of each of some trials.
Groups = list[tuple[AblationStep, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials in the order they run, with their estimated seconds (None where nothing is known)."""

    trials: tuple[Trial, ...]
    seconds: tuple[float | None, ...]

    def only(self, keep: Callable[[Trial], bool]) -> Plan:
        """Return the trials that are to be kept."""
        return _plan(
            [entry for entry in zip(self.trials, self.seconds, strict=True) if keep(entry[0])]
        )


def _plan(entries: Sequence[tuple[Trial, float | None]]) -> Plan:
    return Plan(
        trials=tuple(trial for trial, _ in entries),
        seconds=tuple(seconds for _, seconds in entries),
    )


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

    Within a cell phases come in the order of ``PHASES``: memory first, because it tells which
    precisions fit.

    Args:
        request: what was asked.
        suites: the suites, each with its parameters.
        data: their data.
        environment: the machine, with the devices to run on.
        flops: FLOPs of a training step per sample, for the estimate.
        largest: the largest batches that fit, once they are known; until then the plan holds the
            search for them.
        footprints: the memory of suites whose models can be built without it.

    Raises:
        UsageError: no device supports two of the precisions that were asked for, or the only one.
    """
    require_comparable(request.precisions or (BASELINE,), environment.devices)
    planned: list[tuple[Trial, float | None]] = []
    for ref, suite in suites.items():
        for device in environment.devices:
            here, kept, footprint = request, suite, footprints.get(ref)
            if footprint is not None:
                kept = fit_batches(suite, ref, device, footprint)
            if request.quick:
                kept = _shorten(here, kept, device, flops.get(ref))
            once = _emulates_quickly(here, kept, device, flops.get(ref))
            if once:
                seeds = here.seeds or suite.seeds[:1]
                here = replace(here, precisions=(BASELINE, EMULATED), protocol=ONCE, seeds=seeds)
            for asked in _trials_on(here, ref, kept, data[ref], device, largest=largest):
                step = step_s(asked, device, flops.get(ref))
                unfit = unfit_reason(asked, device, footprint) if footprint is not None else ""
                trial = replace(asked, silence_s=silence_s(asked, request, step), unfit=unfit)
                seconds = estimate_s(trial, suite, data[ref], device, step)
                is_slow_training = (
                    once and trial.phase == "train" and (seconds or math.inf) > EMULATED_TRAIN_S
                )
                if not is_slow_training or trial.precisions == (BASELINE,):
                    planned.append((trial, seconds))
    if request.within_s is not None:
        # The cells take turns, process by process.
        planned.sort(key=lambda entry: (ASKED_FIRST.get(entry[0].phase, 3), entry[0].replicate))
    return _plan(planned)


def _shorten(
    request: Request, suite: Suite, device: Device, flops_per_sample: float | None
) -> Suite:
    """Return the suite at the only batch size that ``--quick`` measures where none is named.

    The size does not depend on the device's speed, so that quick runs can be resumed and compared:
    it is the recipe's, or the smallest that the suite has for a CPU, halved while a step has many
    FLOPs.
    """
    size = min((suite.batch_size, *(() if device.is_gpu else suite.cpu_batch_sizes)))
    parts = pieces(Placement(name=device.placement), request.techniques)
    most = QUICK_STEP_FLOPS["cuda" if device.is_gpu else "cpu"]
    # Each part keeps two samples, which batch norm needs.
    while size * (flops_per_sample or 0.0) > most and size % (4 * parts) == 0:
        size //= 2
    return replace(suite, batch_sizes=(size,), cpu_batch_sizes=(size,))


def _emulates_quickly(
    request: Request, suite: Suite, device: Device, flops_per_sample: float | None
) -> bool:
    """Return whether to measure an emulated precision that nobody named: its step is short, or it takes few of them.

    Without it a CPU that emulates bfloat16 has nothing to compare with fp32.
    """
    if request.precisions or {*ABLATIONS} & {*request.phases} or not is_emulated(device, EMULATED):
        return False
    if not {"speed", "train"} & {*request.phases}:
        return True
    largest = max(_batch_sizes(suite, request, device, "speed"), default=suite.batch_size)
    step_flops = largest * (flops_per_sample or math.inf)
    return step_flops < EMULATED_STEP_S * 1e9 * (device.bf16_gflops or 0.0)


def _trials_on(
    request: Request,
    ref: SuiteRef,
    suite: Suite,
    data: PreparedData,
    device: Device,
    *,
    largest: Largest | None,
) -> list[Trial]:
    """Return a suite's trials on one device, in their order."""
    placement, asked = Placement(name=device.placement), request.techniques
    # One device, alone or as the reference of several, has no techniques of devices that train
    # together.
    possible = asked if len(placement.members) > 1 else for_one_device(asked)
    cell = Cell(
        suite=ref,
        placement=placement,
        batch_size=suite.batch_size
        if device.is_gpu
        else min(suite.cpu_batch_sizes, default=suite.batch_size),
        data=data.source,
        classes=data.classes,
        techniques=tuple(name for name in possible if not find(name).implied),
    )
    names = _precisions(request, device)

    def trials_of(phase: str, size: int, precisions: tuple[str, ...]) -> list[Trial]:
        question = Question(
            phase=PHASES[phase],
            request=request,
            suite=suite,
            cell=replace(cell, batch_size=size),
            device=device,
            precisions=precisions,
        )
        return _trials(question)

    trials: list[Trial] = []
    if request.largest_batch and largest is None:
        for search in SEARCHES:
            trials += trials_of(search, cell.batch_size, names)
    fitting: dict[str, int] = {}
    for name in names:
        size = (largest or {}).get((at_any_size(cell), name))
        if size is not None:
            fitting[name] = size
    phases = [
        name for name in PHASES if name in request.phases and PHASES[name].lacks(device) is None
    ]
    chosen = {phase: _batch_sizes(suite, request, device, phase) for phase in phases}
    for size in sorted({*fitting.values()}.union(*chosen.values())):
        for phase in phases:
            if size in chosen[phase]:
                trials += trials_of(phase, size, names)
            elif size in fitting.values() and not PHASES[phase].recipe_batch:
                at_size = tuple(name for name in fitting if fitting[name] >= size)
                trials += trials_of(phase, size, at_size)
    return trials


def _batch_sizes(suite: Suite, request: Request, device: Device, phase: str) -> tuple[int, ...]:
    """Return the batch sizes of a phase: the request's, else the suite's sweep, or its recipe's for training."""
    recipe = (suite.batch_size,)
    if any(name == "batch_size" for name, _ in request.sweep):
        return recipe
    if request.batch_sizes:
        return request.batch_sizes
    if PHASES[phase].recipe_batch:
        return recipe
    if request.largest_batch:
        return ()
    sizes = () if device.is_gpu else suite.cpu_batch_sizes
    if PHASES[phase].is_ablation:
        return (min(sizes or recipe),)
    return sizes or suite.batch_sizes or recipe


def _precisions(request: Request, device: Device) -> tuple[str, ...]:
    """Return the precisions to compare, the baseline first: those named, else those that the device may gain by."""
    if request.precisions:
        return tuple(sorted(request.precisions, key=lambda name: name != BASELINE))
    usual = [name for name, precision in PRECISIONS.items() if precision.default]
    names = []
    for name in (BASELINE, best_mixed(device)) if request.quick else usual:
        is_slow = is_emulated(device, name) or (
            not device.is_gpu and PRECISIONS[name].compute == "float16"
        )
        if not is_slow and not unsupported_reason(device, name):
            names.append(name)
    return tuple(names)


def _trials(question: Question) -> list[Trial]:
    """Return the trials of a phase in a cell; arms that the device does not support get a trial each."""
    phase, device, request = question.phase, question.device, question.request
    if phase.trials is not None:
        return phase.trials(question)
    common = question.trial()
    groups: Groups = [(arm,) for arm in common.arms]
    alone: list[Trial] = []
    if phase.arms == "baseline":
        groups = [arms for arms in groups if arms[0].precision == BASELINE]
    elif phase.arms == "together":
        groups, alone = together(common, device)
    if phase.is_enough is not None:
        return in_processes(common, groups, common.protocol.replicates) + alone
    if phase.key == "seed":
        return _in_seeds(question, groups)
    # The memory phase: on a GPU cuDNN may choose another workspace in each process.
    is_repeated = phase.key == "replicate" and device.is_gpu and not request.quick
    return in_processes(common, groups, 2 if is_repeated else 1) + alone


def _in_seeds(question: Question, groups: Groups) -> list[Trial]:
    """Return a trial for each group of arms with each seed."""
    request, trials = question.request, []
    common = replace(question.trial(), epochs=request.epochs or question.suite.epochs)
    for turn, seed in enumerate(question.seeds):
        # Every other seed in reverse order, so that a linear drift of the machine favours no
        # precision.
        for arms in groups[::-1] if turn % 2 else groups:
            trials.append(replace(common, arms=arms, seed=seed))
    return trials


def together(
    common: Trial, device: Device, refused: Sequence[AblationStep] = ()
) -> tuple[Groups, list[Trial]]:
    """Return the arms of a trial that the device supports as one group, and a trial for each other arm."""
    supported: list[AblationStep] = []
    alone = list(refused)
    for arm in common.arms:
        is_supported = unsupported_reason(device, arm.precision) is None
        (supported if is_supported else alone).append(arm)
    return [tuple(supported)] if supported else [], [replace(common, arms=(arm,)) for arm in alone]


def in_processes(common: Trial, groups: Groups, count: int) -> list[Trial]:
    """Return a trial for each group of arms in each of so many processes."""
    return [
        replace(common, arms=arms, replicate=process) for process in range(count) for arms in groups
    ]
