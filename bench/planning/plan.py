"""From a request to an ordered list of trials: suites by devices by batch sizes by phases."""

from __future__ import annotations

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
from bench.spec.phase import Phase
from bench.spec.phases import ABLATIONS, PHASES, SEARCHES
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.protocol import Protocol
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import ArmSpec, find, for_one_device
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
Groups = list[tuple[ArmSpec, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials in the order they run."""

    trials: tuple[Trial, ...]
    seconds: tuple[float | None, ...]
    """The estimate of each; None where nothing is known."""

    def only(self, keep: Callable[[Trial], bool]) -> Plan:
        """Return the trials that are to be kept."""
        entries = zip(self.trials, self.seconds, strict=True)
        return _plan([entry for entry in entries if keep(entry[0])])


def _plan(entries: Sequence[tuple[Trial, float | None]]) -> Plan:
    trials, seconds = [], []
    for trial, estimate in entries:
        trials.append(trial)
        seconds.append(estimate)
    return Plan(trials=tuple(trials), seconds=tuple(seconds))


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
    """Order suites × placements × batch sizes × phases × precisions × repetitions into trials.

    Repetitions are processes or seeds. Within a cell phases come in the order of ``PHASES``, in
    which memory comes early, because it tells which precisions fit.

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
    planned = []
    for ref, suite in suites.items():
        sample_flops, footprint = flops.get(ref), footprints.get(ref)
        for device in environment.devices:
            here, kept = request, fit_batches(suite, ref, device, footprint)
            if request.quick:
                kept = _shorten(request, kept, device, sample_flops)
            is_once = _emulates_quickly(request, kept, device, sample_flops)
            if is_once:
                seeds = request.seeds or suite.seeds[:1]
                here = replace(request, precisions=(BASELINE, EMULATED), protocol=ONCE, seeds=seeds)
            cell = _cell(here, ref, kept, data[ref], device)
            for asked in _trials_on(here, cell, kept, device, largest):
                step = step_s(asked, device, sample_flops)
                unfit = unfit_reason(asked, device, footprint)
                trial = replace(asked, silence_s=silence_s(asked, request, step), unfit=unfit)
                seconds = estimate_s(trial, suite, data[ref], device, step)
                if not is_once or _is_worth_emulating(trial, seconds):
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
    sizes = () if device.is_gpu else suite.cpu_batch_sizes
    size = min((suite.batch_size, *sizes))
    parts = pieces(Placement(name=device.placement), request.techniques)
    most = QUICK_STEP_FLOPS[device.kind]
    # Each part keeps two samples, which batch norm needs.
    while size * (flops_per_sample or 0.0) > most and size % (4 * parts) == 0:
        size //= 2
    return replace(suite, batch_sizes=(size,), cpu_batch_sizes=(size,))


def _emulates_quickly(
    request: Request, suite: Suite, device: Device, flops_per_sample: float | None
) -> bool:
    """Return whether to measure an emulated precision that nobody named.

    It is, if its step is short, or if it takes few of them. Without it a CPU that emulates bfloat16
    has nothing to compare with fp32.
    """
    phases = {*request.phases}
    if request.precisions or phases & {*ABLATIONS} or not is_emulated(device, EMULATED):
        return False
    if not phases & {"speed", "train"}:
        return True
    if flops_per_sample is None or device.bf16_gflops is None:
        return False
    largest = max(_batch_sizes(suite, request, device, PHASES["speed"]), default=suite.batch_size)
    return largest * flops_per_sample < EMULATED_STEP_S * 1e9 * device.bf16_gflops


def _is_worth_emulating(trial: Trial, seconds: float | None) -> bool:
    """Return whether a trial is no emulated training, or a short one."""
    if trial.phase != "train" or trial.arm_names == (BASELINE,):
        return True
    return seconds is not None and seconds <= EMULATED_TRAIN_S


def _cell(
    request: Request, ref: SuiteRef, suite: Suite, data: PreparedData, device: Device
) -> Cell:
    """Return a suite's cell on a device at the batch size that its searches start from."""
    placement, techniques = Placement(name=device.placement), request.techniques
    # One device, alone or as the reference of several, has no techniques of devices that train
    # together.
    if len(placement.members) == 1:
        techniques = for_one_device(techniques)
    sizes = () if device.is_gpu else suite.cpu_batch_sizes
    return Cell(
        suite=ref,
        placement=placement,
        batch_size=min(sizes, default=suite.batch_size),
        data=data.source,
        classes=data.classes,
        techniques=tuple(name for name in techniques if not find(name).implied),
    )


def _trials_on(
    request: Request, cell: Cell, suite: Suite, device: Device, largest: Largest | None
) -> list[Trial]:
    """Return a suite's trials on one device, in their order."""
    names = _precisions(request, device)
    trials = []

    def plan_phase(phase: Phase, size: int, precisions: tuple[str, ...]) -> None:
        question = Question(
            phase=phase,
            request=request,
            suite=suite,
            cell=replace(cell, batch_size=size),
            device=device,
            precisions=precisions,
        )
        trials.extend(_trials(question))

    if request.largest_batch and largest is None:
        for search in SEARCHES:
            plan_phase(PHASES[search], cell.batch_size, names)
    found = {name: (largest or {}).get((at_any_size(cell), name)) for name in names}
    fitting = {name: size for name, size in found.items() if size is not None}
    chosen = {}
    for name, phase in PHASES.items():
        if name in request.phases and phase.can_measure(device):
            chosen[name] = _batch_sizes(suite, request, device, phase)
    for size in sorted({*fitting.values()}.union(*chosen.values())):
        at_size = tuple(name for name in fitting if fitting[name] >= size)
        for name, sizes in chosen.items():
            phase = PHASES[name]
            if size in sizes:
                plan_phase(phase, size, names)
            elif size in fitting.values() and not phase.recipe_batch:
                plan_phase(phase, size, at_size)
    return trials


def _batch_sizes(suite: Suite, request: Request, device: Device, phase: Phase) -> tuple[int, ...]:
    """Return the batch sizes of a phase.

    They are the request's, else the suite's sweep; training keeps the recipe's.
    """
    recipe = (suite.batch_size,)
    if "batch_size" in dict(request.sweep):
        return recipe
    if request.batch_sizes:
        return request.batch_sizes
    if phase.recipe_batch:
        return recipe
    if request.largest_batch:
        return ()
    sizes = () if device.is_gpu else suite.cpu_batch_sizes
    if phase.is_ablation:
        return (min(sizes or recipe),)
    return sizes or suite.batch_sizes or recipe


def _precisions(request: Request, device: Device) -> tuple[str, ...]:
    """Return the precisions to compare, the baseline first.

    They are those named, else those that the device may gain by.
    """
    if request.precisions:
        return tuple(sorted(request.precisions, key=lambda name: name != BASELINE))
    if request.quick:
        usual = [BASELINE, best_mixed(device)]
    else:
        usual = [name for name, precision in PRECISIONS.items() if precision.default]
    names = []
    for name in usual:
        is_slow_float16 = not device.is_gpu and PRECISIONS[name].compute == "float16"
        is_slow = is_slow_float16 or is_emulated(device, name)
        if not is_slow and not unsupported_reason(device, name):
            names.append(name)
    return tuple(names)


def _trials(question: Question) -> list[Trial]:
    """Return the trials of a phase in a cell.

    Arms that the device does not support get a trial each.
    """
    phase, device, request = question.phase, question.device, question.request
    if phase.trials is not None:
        return phase.trials(question)
    common = question.trial()
    groups: Groups = [(arm,) for arm in common.arms]
    alone: list[Trial] = []
    if phase.grouping == "baseline":
        groups = [arms for arms in groups if arms[0].precision == BASELINE]
    elif phase.grouping == "together":
        groups, alone = together(common, device)
    if phase.key == "seed":
        return _in_seeds(question, groups)
    count = 1
    if phase.is_enough is not None:
        count = common.protocol.replicates
    elif phase.key == "replicate" and device.is_gpu and not request.quick:
        count = 2  # the memory phase: cuDNN may choose another workspace in each process
    return in_processes(common, groups, count) + alone


def _in_seeds(question: Question, groups: Groups) -> list[Trial]:
    """Return a trial for each group of arms with each seed."""
    epochs = question.request.epochs or question.suite.epochs
    common, trials = replace(question.trial(), epochs=epochs), []
    for seed in question.seeds:
        for arms in groups:
            trials.append(replace(common, arms=arms, seed=seed))
        # Every other seed is trained in reverse order, so that a linear drift of the machine
        # favours no precision.
        groups = groups[::-1]
    return trials


def together(
    common: Trial, device: Device, refused: Sequence[ArmSpec] = ()
) -> tuple[Groups, list[Trial]]:
    """Return the arms of a trial that the device supports as one group.

    Every other arm, and every refused one, gets a trial alone.
    """
    supported, alone = [], list(refused)
    for arm in common.arms:
        if unsupported_reason(device, arm.precision) is None:
            supported.append(arm)
        else:
            alone.append(arm)
    groups = [tuple(supported)] if supported else []
    return groups, [replace(common, arms=(arm,)) for arm in alone]


def in_processes(common: Trial, groups: Groups, count: int) -> list[Trial]:
    """Return a trial for each group of arms in each of so many processes."""
    trials = []
    for process in range(count):
        for arms in groups:
            trials.append(replace(common, arms=arms, replicate=process))
    return trials
