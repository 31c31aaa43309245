"""From a request to an ordered list of trials: suites by devices by batch sizes by phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.planning.abilities import (
    EMULATED,
    best_mixed,
    is_emulated,
    require_comparable,
    unsupported_reason,
)
from bench.planning.batch_sizes import Largest, at_any_size, pieces, usual_sizes
from bench.planning.estimate import with_estimates
from bench.planning.footprint import fit_batches, unfit_reason
from bench.planning.prepared_suite import PreparedSuite
from bench.planning.question import Question
from bench.results.records import Device, Environment
from bench.spec.phase import Phase
from bench.spec.phases import ABLATIONS, PHASES, SEARCHES
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.protocol import Protocol
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import ArmSpec, find, for_one_device
from bench.spec.trial import Cell, Trial

# An emulated precision that nobody named is measured in one short process: it is slower by far.
ONCE = Protocol(
    replicates=1,
    most_replicates=1,
    time_budget_s=1.0,
    fewest_rounds=3,
)
# It is left out where a step of it should take longer, because a comparison runs about 20 of them;
# and it is not trained where a training should.
EMULATED_STEP_S = 1.0
EMULATED_TRAIN_S = 10.0
# ``--quick`` halves a batch while its step has more FLOPs, by kind of device: about a second in
# fp32 on two cores of a CPU, and half a second on a T4.
QUICK_STEP_FLOPS = {"cpu": 1e11, "cuda": 2e12}
# The order in which a run that has to end in a given time measures phases; the others follow.
ASKED_FIRST = {
    "speed": 0,
    "memory": 1,
    "train": 2,
}
# A phase that is asked for at a batch size, with the precisions that it compares.
Asked = tuple[Phase, int, tuple[str, ...]]
# The arms of each of some trials.
Groups = list[tuple[ArmSpec, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials in the order they run."""

    trials: tuple[Trial, ...]

    def only(self, keep: Callable[[Trial], bool]) -> Plan:
        """Return the trials that are to be kept."""
        return Plan(trials=tuple(filter(keep, self.trials)))


def make_plan(
    request: Request,
    suites: Sequence[PreparedSuite],
    environment: Environment,
    largest: Largest | None = None,
) -> Plan:
    """Order suites × placements × batch sizes × phases × precisions × repetitions into trials.

    Repetitions are processes or seeds. Within a cell phases come in the order of ``PHASES``, in
    which memory comes early, because it tells which precisions fit.

    Args:
        request: what was asked.
        suites: the suites, each with its parameters.
        environment: the machine, with the devices to run on.
        largest: the largest batches that fit, once they are known; until then the plan holds the
            search for them.

    Raises:
        UsageError: no device supports two of the precisions that were asked for, or the only one.
    """
    require_comparable(request.precisions or (BASELINE,), environment.devices)
    trials = []
    for suite in suites:
        for device in environment.devices:
            trials += _plan_on_device(request, suite, device, largest)
    if request.within_s is not None:
        # The cells take turns, process by process.
        trials.sort(key=lambda trial: (ASKED_FIRST.get(trial.phase, 3), trial.replicate))
    return Plan(trials=tuple(trials))


def _plan_on_device(
    request: Request,
    prepared: PreparedSuite,
    device: Device,
    largest: Largest | None,
) -> list[Trial]:
    """Return a suite's trials on one device, in their order, each with its estimates."""
    flops_per_sample = prepared.flops_per_sample
    device_request = request
    device_suite = fit_batches(prepared.suite, prepared.ref, device, prepared.footprint)
    if request.quick:
        device_suite = _shorten(request, device_suite, device, flops_per_sample)
    is_once = _emulates_quickly(request, device_suite, device, flops_per_sample)
    if is_once:
        device_request = replace(
            request,
            precisions=(BASELINE, EMULATED),
            protocol=ONCE,
            seeds=request.seeds or prepared.suite.seeds[:1],
        )
    cell = _cell(device_request, prepared, device_suite, device)
    trials = []
    for planned in _trials_on(device_request, cell, device_suite, device, largest):
        unfit = unfit_reason(planned, device, prepared.footprint)
        trial = with_estimates(replace(planned, unfit=unfit), request, prepared, device)
        if not is_once or _is_worth_emulating(trial):
            trials.append(trial)
    return trials


def _shorten(
    request: Request,
    suite: Suite,
    device: Device,
    flops_per_sample: float | None,
) -> Suite:
    """Return the suite at the only batch size that ``--quick`` measures where none is named.

    The size does not depend on the device's speed, so that quick runs can be resumed and compared:
    it is the recipe's, or the smallest that the suite has for a CPU, halved while a step has many
    FLOPs.
    """
    size = min((suite.batch_size, *usual_sizes(suite, device)))
    parts = pieces(Placement(name=device.placement), request.techniques)
    sample_flops = flops_per_sample or 0.0
    most_flops = QUICK_STEP_FLOPS[device.kind]
    # Each part keeps two samples, which batch norm needs.
    while size * sample_flops > most_flops and size % (4 * parts) == 0:
        size //= 2
    return replace(suite, batch_sizes=(size,), cpu_batch_sizes=(size,))


def _emulates_quickly(
    request: Request,
    suite: Suite,
    device: Device,
    flops_per_sample: float | None,
) -> bool:
    """Return whether to measure an emulated precision that nobody named.

    It is, if its step is short, or if it takes few of them. Without it a CPU that emulates bfloat16
    has nothing to compare with fp32.
    """
    phases = {*request.phases}
    # An ablation of a CPU that emulates bfloat16 has steps of fp32 alone.
    if request.precisions or phases & {*ABLATIONS} or not is_emulated(device, EMULATED):
        return False
    if not phases & {"speed", "train"}:
        return True
    if flops_per_sample is None or device.bf16_gflops is None:
        return False
    sizes = _batch_sizes(suite, request, device, PHASES["speed"])
    largest_flops = max(sizes, default=suite.batch_size) * flops_per_sample
    return largest_flops < EMULATED_STEP_S * 1e9 * device.bf16_gflops


def _is_worth_emulating(trial: Trial) -> bool:
    """Return whether a trial is no emulated training, or a short one."""
    if trial.phase != "train" or trial.arm_names == (BASELINE,):
        return True
    return trial.estimate_s is not None and trial.estimate_s <= EMULATED_TRAIN_S


def _cell(
    request: Request,
    prepared: PreparedSuite,
    suite: Suite,
    device: Device,
) -> Cell:
    """Return a suite's cell on a device at the batch size that its searches start from."""
    placement = Placement(name=device.placement)
    techniques = request.techniques
    # One device, alone or as the reference of several, has no techniques of devices that train
    # together.
    if len(placement.members) == 1:
        techniques = for_one_device(techniques)
    return Cell(
        suite=prepared.ref,
        placement=placement,
        batch_size=min(usual_sizes(suite, device), default=suite.batch_size),
        data=prepared.data.source,
        classes=prepared.data.classes,
        techniques=tuple(name for name in techniques if not find(name).implied),
    )


def _trials_on(
    request: Request,
    cell: Cell,
    suite: Suite,
    device: Device,
    largest: Largest | None,
) -> list[Trial]:
    """Return a suite's trials on one device, in their order."""
    precisions = _precisions(request, device)
    asked = []
    if request.largest_batch and largest is None:
        asked += [(PHASES[search], cell.batch_size, precisions) for search in SEARCHES]
    fitting = {}
    for name in precisions:
        size = (largest or {}).get((at_any_size(cell), name))
        if size is not None:
            fitting[name] = size
    asked += _asked_by_size(request, suite, device, precisions, fitting)
    trials = []
    for phase, size, names in asked:
        question = Question(
            phase=phase,
            request=request,
            suite=suite,
            cell=replace(cell, batch_size=size),
            device=device,
            precisions=names,
        )
        trials += _trials(question)
    return trials


def _asked_by_size(
    request: Request,
    suite: Suite,
    device: Device,
    precisions: tuple[str, ...],
    fitting: dict[str, int],
) -> list[Asked]:
    """Return what phases measure, by rising batch sizes.

    They measure all precisions at their own sizes, and at the largest batch of each precision those
    that fit there.

    Args:
        request: what was asked.
        suite: the suite for the device.
        device: the device.
        precisions: all that are compared.
        fitting: the largest batch of each precision that has one.
    """
    sizes_of_phases = {}
    for name, phase in PHASES.items():
        if name in request.phases and phase.can_measure(device):
            sizes_of_phases[name] = _batch_sizes(suite, request, device, phase)
    largest_sizes = {*fitting.values()}
    asked = []
    for size in sorted(largest_sizes.union(*sizes_of_phases.values())):
        that_fit = tuple(name for name in fitting if fitting[name] >= size)
        for name, sizes in sizes_of_phases.items():
            phase = PHASES[name]
            if size in sizes:
                asked.append((phase, size, precisions))
            elif size in largest_sizes and not phase.recipe_batch:
                asked.append((phase, size, that_fit))
    return asked


def _batch_sizes(
    suite: Suite,
    request: Request,
    device: Device,
    phase: Phase,
) -> tuple[int, ...]:
    """Return the batch sizes of a phase.

    They are the request's, else the suite's sweep; training keeps the recipe's.
    """
    recipe = (suite.batch_size,)
    if "batch_size" in dict(request.sweep):  # each size is a suite of its own
        return recipe
    if request.batch_sizes:
        return request.batch_sizes
    if phase.recipe_batch:
        return recipe
    if request.largest_batch:  # the phase is measured at those alone
        return ()
    sizes = usual_sizes(suite, device)
    if phase.is_ablation:
        return (min(sizes or recipe),)
    return sizes or suite.batch_sizes or recipe


def _precisions(request: Request, device: Device) -> tuple[str, ...]:
    """Return the precisions to compare, the baseline first.

    They are those named, else those that the device may gain by.
    """
    if request.precisions:
        # The others keep their order: False sorts before True.
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
    phase = question.phase
    device = question.device
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
    elif device.is_gpu and not question.request.quick:
        count = phase.processes_on_gpu
    return in_processes(common, groups, count) + alone


def _in_seeds(question: Question, groups: Groups) -> list[Trial]:
    """Return a trial for each group of arms with each seed."""
    epochs = question.request.epochs or question.suite.epochs
    common = replace(question.trial(), epochs=epochs)
    trials = []
    for seed in question.seeds:
        for arms in groups:
            trials.append(replace(common, arms=arms, seed=seed))
        # Every other seed is trained in reverse order, so that a linear drift of the machine
        # favours no precision.
        groups = groups[::-1]
    return trials


def together(
    common: Trial,
    device: Device,
    refused: Sequence[ArmSpec] = (),
) -> tuple[Groups, list[Trial]]:
    """Return the arms of a trial that the device supports as one group.

    Every other arm, and every refused one, gets a trial alone.
    """
    supported = []
    alone = list(refused)
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
