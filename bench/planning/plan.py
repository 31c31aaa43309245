"""From a request to an ordered list of trials with estimated times, and from a planned trial to the one that runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from bench.planning.batch_sizes import Largest, at_any_size, fitting_at
from bench.planning.question import Question
from bench.results.records import MEASURED, UNFIT, Device, Environment, Status
from bench.spec.errors import UsageError
from bench.spec.phase import Work
from bench.spec.phases import ABLATIONS, PHASES, SEARCHES
from bench.spec.precisions import BASELINE, PRECISIONS, find_precision, parse_precision
from bench.spec.suite import Suite
from bench.spec.techniques import AblationStep, find, for_one_device, refusal, techniques
from bench.spec.trial import (
    JOINT_S,
    SEARCHING_S,
    SILENCE_S,
    Cell,
    Placement,
    PreparedData,
    Protocol,
    Request,
    SuiteRef,
    Trial,
)

GIB = 2**30
CPU_EFFICIENCY, EMULATED_EFFICIENCY, GPU_EFFICIENCY = 0.6, 0.8, 0.4
"""Share of a matrix product's rate that a training step is assumed to reach: on a CPU, there in an emulated precision,
and on a GPU."""
STEP_OVERHEAD_S = 0.005
"""Time of a step without its products, on a CPU."""
CPU_START_S, GPU_START_S = 0.5, 3.0
"""Time of a trial's process until its first step: a GPU's context and libraries are loaded in each."""
REPORT_S = 4.0
"""Time to read a run's rows and to draw its report."""
SILENT_STEPS = 24
"""Steps of an arm between two messages: two of the longest blocks, with their switch warm-up."""
DISTRIBUTED_OVERHEAD_S = 5.0
"""Processes that train together are not forked: each imports torch itself."""


EMULATED = "amp-bf16"
ONCE = Protocol(replicates=1, most_replicates=1, time_budget_s=1.0, fewest_rounds=3)
"""An emulated precision that nobody named is measured in one short process: it is slower by far."""
EMULATED_STEP_S, EMULATED_TRAIN_S = 1.0, 10.0
"""It is left out where a step of it should take longer, because a comparison runs about 20 of them; and it is not
trained where a training should."""
TENSOR_CORES = (7, 0)
"""The first compute capability with tensor cores."""
QUICK_STEP_FLOPS = {"cpu": 1e11, "cuda": 2e12}
"""``--quick`` halves a batch while its step has more FLOPs, by kind of device: about a second in fp32 on two cores of a
CPU, and half a second on a T4."""


MOST_STATE, MOST_STEP = 0.95, 0.8
"""Shares of a device's memory: a model whose state takes more cannot be trained, and a step that should take more gets
a smaller batch."""


ASKED_FIRST = {"speed": 0, "memory": 1, "train": 2}
"""The order in which a run that has to end in a given time measures phases; the others follow."""


class Footprint(NamedTuple):
    """The memory of a model in fp32, counted on tensors without values."""

    model_bytes: int
    state_bytes: int
    """Of weights, buffers, gradients and the optimizer's states, whatever the batch."""
    sample_bytes: float | None
    """Of what a step makes for each sample, at its peak; None is unknown."""


Groups = list[tuple[AblationStep, ...]]
"""The arms of each of some trials."""
Footprints = Mapping[SuiteRef, Footprint | None]


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
    _require_supported(request, environment.devices)
    alone = [len(Placement(name=device.placement).members) == 1 for device in environment.devices]
    planned: list[tuple[Trial, float | None]] = []
    for ref, suite in suites.items():
        for device, is_alone in zip(environment.devices, alone, strict=True):
            here = request
            if is_alone and not all(alone):  # the reference of the devices that train together
                here = replace(request, techniques=for_one_device(request.techniques))
            footprint = footprints.get(ref)
            kept = suite if footprint is None else _fit_batches(suite, ref, device, footprint)
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


def _fit_batches(suite: Suite, ref: SuiteRef, device: Device, footprint: Footprint) -> Suite:
    """Return a suite with its batch sizes halved until a step in fp32 should fit a device; --set names others."""
    named = ref.batch_size or dict(ref.parameters).get("batch_size")
    size = suite.batch_size if device.is_gpu else min((suite.batch_size, *suite.cpu_batch_sizes))
    if named or device.memory_total_bytes is None:
        return suite
    free = MOST_STEP * device.memory_total_bytes / len(Placement(name=device.placement).members)
    while size > 1 and footprint.state_bytes + size * (footprint.sample_bytes or 0.0) > free:
        size //= 2
    return replace(suite, batch_size=size, batch_sizes=(size,), cpu_batch_sizes=(size,))


def unfit_reason(trial: Trial, device: Device, footprint: Footprint) -> str:
    """Return why a device's memory cannot hold any of a trial's arms, whatever the batch; empty where it may.

    16-bit weights halve the least that an arm takes.
    """
    if device.memory_total_bytes is None:
        return ""
    precisions = [parse_precision(arm.precision) for arm in trial.arms]
    halvings = max(each.weights is not None for each in precisions)
    training = PHASES[trial.phase].trains
    least = (footprint.state_bytes if training else footprint.model_bytes) / 2**halvings
    total = device.memory_total_bytes / len(trial.cell.placement.members)
    if least <= MOST_STATE * total:
        return ""
    what = "weights, gradients and optimizer states" if training else "weights"
    return f"its {what} take {least / GIB:.1f} GiB, and the device has {total / GIB:.1f} GiB; nothing was allocated"


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


def _require_supported(request: Request, devices: tuple[Device, ...]) -> None:
    names = request.precisions or (BASELINE,)
    if any(unsupported_reason(device, name) is None for device in devices for name in names):
        return
    raise UsageError(_cannot_do(devices[0], names))


def without_a_pair(request: Request, devices: tuple[Device, ...]) -> list[str]:
    """Return a sentence for each device on which no two of the named precisions can be compared."""
    names = tuple(dict(request.script.arms)) if request.script else request.precisions or ()
    sentences = []
    for device in devices:
        refused = tuple(name for name in names if unsupported_reason(device, name))
        if refused and len(names) > 1 and len(names) - len(refused) < 2:
            sentences.append(_cannot_do(device, refused))
    return sentences


def _cannot_do(device: Device, names: tuple[str, ...]) -> str:
    reasons = "; ".join(f"{name}: {unsupported_reason(device, name)}" for name in names)
    rest = ", ".join(name for name in PRECISIONS if not unsupported_reason(device, name))
    return f"{device.name} cannot do {reasons}. It can do: {rest}."


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


def unsupported_reason(device: Device, name: str, phase: str | None = None) -> str | None:
    """Return why a device does not support a precision in a phase; None if it does.

    An emulated precision has no figures in phases that are about what steps cost.
    """
    if (precision := find_precision(name)) is None:  # a free word: an arm of a training script
        return None
    if reason := (device.unsupported or {}).get(precision.ability):
        return reason
    if precision.emulated and phase is not None and not PHASES[phase].arithmetic:
        whole = ", ".join(name for name, each in PHASES.items() if each.arithmetic)
        return f"it is emulated: what it does to numbers is measured ({whole}), and what that costs means nothing"
    return None


def best_mixed(device: Device) -> str:
    """Return the mixed precision that a device should gain most by: bf16, which needs no loss scaling, else fp16."""
    return "amp-fp16" if unsupported_reason(device, "amp-bf16") else "amp-bf16"


def lacks_tensor_cores(device: Device) -> bool:
    """Return whether a GPU is known to have no tensor cores: there a 16-bit type saves memory, and little time."""
    capability = device.compute_capability
    return capability is not None and tuple(int(part) for part in capability.split(".")) < TENSOR_CORES


def is_emulated(device: Device, name: str) -> bool:
    """Return whether a CPU emulates a precision: its products take more than twice as long as fp32's.

    Such a precision cannot gain, and its steps may take minutes: it is measured once where they are short, and else
    where ``--precisions`` names it.
    """
    if parse_precision(name).compute != "bfloat16" or unsupported_reason(device, name):
        return False
    if not device.bf16_gflops or not device.fp32_gflops:
        return False
    return device.bf16_gflops < device.fp32_gflops / 2


def refusal_reason(trial: Trial, device: Device) -> str | None:
    """Return why a device can measure none of a trial's arms; None if it can measure some."""
    cell = trial.cell
    reasons = [
        refusal((*cell.techniques, *arm.techniques), device.kind, trial.phase, len(cell.placement.members))
        or unsupported_reason(device, arm.precision, trial.phase)
        for arm in trial.arms
    ]
    return reasons[0] if all(reasons) else None


def estimate_s(trial: Trial, suite: Suite, data: PreparedData, device: Device, step: float | None) -> float | None:
    """Return a trial's estimated seconds, from those of a step (``step_s``). None is unknown."""
    if trial.unfit or refusal_reason(trial, device):
        return 0.0
    estimate = PHASES[trial.phase].estimate
    if estimate is None or step is None:
        return None
    samples = data.train_samples
    work = Work(
        step_s=step,
        arms=len(trial.arms),
        steps_per_epoch=suite.data.steps_per_epoch if samples is None else samples // trial.cell.batch_size,
        epochs=trial.epochs,
        first=trial.replicate == 0,
        budget_s=trial.protocol.process_s,
        fewest_rounds=trial.protocol.fewest_rounds,
    )
    several = len(trial.cell.placement.members) > 1
    start_s = GPU_START_S if device.is_gpu else CPU_START_S
    return start_s + (DISTRIBUTED_OVERHEAD_S if several else 0.0) + estimate(work)


MemoryTrials = Mapping[tuple[bool, Cell], Sequence[Trial]]
"""The trials that find out which arms fit: by whether they are of an ablation, and by cell."""


def memory_trials(plan: Plan) -> MemoryTrials:
    """Return the trials of a plan that find out which arms fit."""
    trials: dict[tuple[bool, Cell], list[Trial]] = {}
    for trial in plan.trials:
        if PHASES[trial.phase].finds_unfit:
            trials.setdefault((trial.ablation, trial.cell), []).append(trial)
    return trials


def step_s(trial: Trial, device: Device, flops_per_sample: float | None) -> float | None:
    """Return the estimated seconds of a training step of the trial's arms; None is unknown.

    They follow from the step's FLOPs and the rate of a short matrix product here: every precision is assumed to be as
    slow as fp32, except bfloat16 that is emulated, whose rate was measured. Nothing tells how long other emulated types
    take, nor a CPU's float16.
    """
    precisions = [parse_precision(arm.precision) for arm in trial.arms]
    untimed = any(each.emulated or (not device.is_gpu and each.compute == "float16") for each in precisions)
    if flops_per_sample is None or not device.fp32_gflops or untimed:
        return None
    emulated = any(is_emulated(device, each.name) for each in precisions)
    gflops = (device.bf16_gflops or 0.0) if emulated else device.fp32_gflops
    efficiency = GPU_EFFICIENCY if device.is_gpu else EMULATED_EFFICIENCY if emulated else CPU_EFFICIENCY
    overhead_s = 0.0 if device.is_gpu else STEP_OVERHEAD_S
    return overhead_s + flops_per_sample * trial.cell.batch_size / (efficiency * gflops * 1e9)


def silence_s(trial: Trial, request: Request, step: float | None) -> float:
    """Return how long a trial's process may say nothing before it is taken to hang, in seconds.

    Ten times the longest silence that is expected, which is a round of its arms where steps are long; and not less than
    ``SILENCE_S``, or than the limits of the search for the largest batch and of devices that train together.
    """
    if PHASES[trial.phase].searches:
        return SEARCHING_S
    if request.trial_timeout_s is not None:
        return request.trial_timeout_s
    several = len(trial.cell.placement.members) > 1
    round_s = SILENT_STEPS * len(trial.arms) * (step or 0.0)
    return max(10 * round_s, JOINT_S if several else SILENCE_S)


def resolve(trial: Trial, fits: MemoryTrials, done: Mapping[str, Mapping[str, Status]]) -> Trial | None:
    """Return what a planned trial measures after the memory phase of its cell, or None if nothing is left.

    An arm that did not run there is left out, and later steps of an ablation add to the last one that did. Of two
    processes that read an arm's memory, one that ran is enough. An arm without a result yet stays as planned.

    Args:
        trial: a trial of the plan.
        fits: the plan's trials that find out which arms fit.
        done: the status of each arm of the trials that have ended, by their ids.
    """
    readings: dict[AblationStep, list[Trial]] = defaultdict(list)
    for fit in fits.get((trial.ablation, trial.cell), ()):
        readings[fit.arms[0]].append(fit)
    rebased: dict[AblationStep, AblationStep] = {}
    failed: list[AblationStep] = []
    for planned, memory in readings.items():
        arm = planned.without(failed)
        rebased[planned] = arm
        ended = [done.get(replace(fit, arms=(arm,)).id, {}).get(arm.name) for fit in memory]
        if _is_unfit(arm, {status for status in ended if status}):
            failed.append(arm)
    arms = [rebased.get(arm, arm) for arm in trial.arms]
    if not PHASES[trial.phase].finds_unfit:
        arms = [arm for arm in arms if arm not in failed]
    return replace(trial, arms=tuple(arms)) if arms else None


def _is_unfit(arm: AblationStep, statuses: set[Status]) -> bool:
    """Return whether an arm did not run, given how its memory trials ended."""
    unfit = statuses & {*UNFIT}
    precision = find_precision(arm.precision)
    if precision is not None and precision.emulated:
        unfit -= {"unsupported"}  # memory of an emulated type means nothing
    return bool(unfit) and not statuses & {*MEASURED}
