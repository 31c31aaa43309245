"""From what was asked to an ordered list of trials, and an estimate of how long they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.precision_names import base, precision
from bench.records import Device, Environment
from bench.spec import BASELINE, PRECISIONS, Suite, UsageError
from bench.trial import PHASES, Cell, DataSource, Phase, Placement, Protocol, SuiteRef, Trial

EFFICIENCY = {"cpu": 0.8, "cuda": 0.4}
"""Share of a matrix product's fp32 rate that a training step is guessed to reach, by kind of device."""
TRIAL_OVERHEAD_S = 2.0
NUMERICS_STEPS = 80
"""About as many steps as a numerics trial takes, those in float64 and the looks at gradients counted in."""
ENERGY_S = 10.0
"""An energy trial's idle time and its steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line asked for; None is the default, which may depend on the suite or the device."""

    suites: tuple[SuiteRef, ...]
    gpus: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    epochs: int | None = None
    target_accuracy_pct: float | None = None
    clip_grad: float | None = None
    seeds: tuple[int, ...] = (0,)
    data: str | None = None
    data_dir: str = "data"
    phases: tuple[Phase, ...] = ("memory", "speed", "energy", "train")
    protocol: Protocol = Protocol()
    exclusive: bool = False
    on: str | None = None
    accelerators: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What is known of a suite's data before anything runs."""

    source: DataSource
    classes: int | None = None
    train_samples: int | None = None
    """None for synthetic data, which have as many batches as the suite says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials in the order they run, with their estimated seconds (None where nothing is known)."""

    trials: tuple[Trial, ...]
    seconds: tuple[float | None, ...]

    @property
    def total_s(self) -> float | None:
        """Estimated time of all trials, or None where that of any is unknown."""
        known = [second for second in self.seconds if second is not None]
        return sum(known) if len(known) == len(self.seconds) else None


def choose_source(suite: Suite, request: Request) -> DataSource:
    """Return where a suite's data come from: what was asked, where the suite can use it at all."""
    asked = request.data if suite.data.is_image else "synthetic"
    return DataSource.parse(asked or suite.data.source, request.data_dir, elsewhere=request.on is not None)


def choose_precisions(request: Request, device: Device) -> tuple[str, ...]:
    """Return the precisions to compare on a device, the baseline first; those it cannot do are rows that say so."""
    unique = tuple(dict.fromkeys(request.precisions or default_precisions(device)))
    return tuple(sorted(unique, key=lambda name: name != BASELINE))


def unsupported_reason(device: Device, name: str) -> str | None:
    """Say why a device cannot do a precision, whatever its options; None where it can."""
    return (device.unsupported or {}).get(base(name))


def default_precisions(device: Device) -> tuple[str, ...]:
    """Return the precisions that are compared unless the user names others: those the device may gain by."""
    wanted = ("fp32", "amp-bf16") if device.kind == "cpu" else ("fp32", "tf32", "amp-fp16", "amp-bf16")
    return tuple(name for name in wanted if name not in (device.unsupported or {}) and not slower(device, name))


def slower(device: Device, name: str) -> bool:
    """Say whether a CPU emulates a precision: its products take more than twice as long as fp32's.

    It cannot gain, and its steps may take minutes, so that it is measured only where ``--precisions`` names it.
    """
    if precision(name).compute != "bfloat16" or unsupported_reason(device, name):
        return False
    if not device.bf16_gflops or not device.fp32_gflops:
        return False
    return device.bf16_gflops < device.fp32_gflops / 2


def choose_batch_sizes(suite: Suite, request: Request, device: Device, phase: Phase) -> tuple[int, ...]:
    """Return the batch sizes of a phase: those asked for, else the suite's sweep, or its recipe's for training."""
    if request.batch_sizes:
        return request.batch_sizes
    if phase in ("train", "numerics"):
        return (suite.batch_size,)
    sweep = suite.cpu_batch_sizes if device.kind == "cpu" else ()
    return sweep or suite.batch_sizes or (suite.batch_size,)


def make_plan(
    request: Request,
    suites: dict[str, Suite],
    data: dict[str, PreparedData],
    environment: Environment,
    flops: dict[str, float | None],
) -> Plan:
    """Order suites × placements × batch sizes × phases × precisions × replicates or seeds into trials.

    Within a cell memory comes first, because it tells which precisions fit, and training last.

    Args:
        request: what was asked.
        suites: the suites by name.
        data: their data by suite name.
        environment: the machine, with the devices to run on.
        flops: FLOPs of a training step per sample by suite name, for the estimate.

    Raises:
        UsageError: no device can do any of the precisions that were asked for.
    """
    _require_supported(request, environment.devices)
    trials: list[Trial] = []
    for ref in request.suites:
        for device in environment.devices:
            trials += _place(request, ref, suites[ref.name], data[ref.name], device)
    devices = {device.placement: device for device in environment.devices}
    seconds = tuple(
        estimate_s(
            trial,
            suites[trial.cell.suite.name],
            data[trial.cell.suite.name],
            devices[trial.cell.placement.name],
            flops.get(trial.cell.suite.name),
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


def _place(request: Request, ref: SuiteRef, suite: Suite, data: PreparedData, device: Device) -> list[Trial]:
    sizes = {phase: choose_batch_sizes(suite, request, device, phase) for phase in request.phases}
    trials = []
    for size in sorted({size for chosen in sizes.values() for size in chosen}):
        placement = Placement(name=device.placement)
        cell = Cell(suite=ref, placement=placement, batch_size=size, data=data.source, classes=data.classes)
        for phase in PHASES:
            if phase in request.phases and size in sizes[phase] and (phase != "energy" or device.energy):
                trials += _trials(request, suite, cell, phase, device)
    return trials


def _trials(request: Request, suite: Suite, cell: Cell, phase: Phase, device: Device) -> list[Trial]:
    precisions = choose_precisions(request, device)
    seed = request.seeds[0]
    if phase in ("memory", "energy"):
        return [Trial(cell=cell, phase=phase, precisions=(name,), seed=seed) for name in precisions]
    if phase in ("floor", "speed"):
        protocol = request.protocol
        able = tuple(name for name in precisions if unsupported_reason(device, name) is None)
        unable = [name for name in precisions if name not in able and phase == "speed"]
        arms = able if phase == "speed" else (BASELINE,)
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


def estimate_s(
    trial: Trial, suite: Suite, data: PreparedData, device: Device, flops_per_sample: float | None
) -> float | None:
    """Guess how long a trial takes, from its FLOPs and the rate of a short fp32 matrix product here.

    Every precision is guessed to be as slow as fp32, but for one that is emulated.
    """
    if all(unsupported_reason(device, name) for name in trial.precisions):
        return 0.0
    if flops_per_sample is None or not device.fp32_gflops:
        return None
    rates = [(device.bf16_gflops or 0.0) if slower(device, name) else device.fp32_gflops for name in trial.precisions]
    step_s = flops_per_sample * trial.cell.batch_size / (EFFICIENCY[device.kind] * min(rates) * 1e9)
    work_s = {
        "memory": 4 * step_s,
        "energy": ENERGY_S + 4 * step_s,
        "numerics": NUMERICS_STEPS * step_s,
        "inference": 2 * (max(5 * step_s, 1.0) + trial.protocol.time_budget_s),
    }
    if trial.phase in work_s:
        return TRIAL_OVERHEAD_S + work_s[trial.phase]
    if trial.phase in ("floor", "speed"):
        arms = 2 if trial.phase == "floor" else len(trial.precisions)
        warm_up_s = arms * max(5 * step_s, 1.0)
        shortest_s = trial.protocol.fewest_quads * 2 * 1.7 * step_s * arms
        return TRIAL_OVERHEAD_S + warm_up_s + max(shortest_s, arms * trial.protocol.time_budget_s)
    steps = suite.data.steps_per_epoch if data.train_samples is None else data.train_samples // trial.cell.batch_size
    return TRIAL_OVERHEAD_S + trial.epochs * steps * step_s * 1.1
