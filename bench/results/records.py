"""Records: the rows of a run's CSVs, what it ran on, and the messages between its processes.

Each field of a record that reaches a CSV is a column there: its docstring is the column's
description in results/README.md, its type and its ``Column`` say which values are valid. Every
quantity has its unit in its name; unknown is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol

from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Which values a column of a CSV may have, beyond what the type of its field says."""

    sign: Literal["≥ 0", "> 0", ""] = "≥ 0"
    """Of numbers. Differences and losses may have any."""
    may_diverge: bool = False
    """Whether the number may be infinite, as a loss may."""
    stored: bool = True
    """Whether a CSV has it. What is not stored follows from stored rows (``Phase.derive``)."""


Name = str
Count = Annotated[int, Column(sign="> 0")]
Positive = Annotated[float, Column(sign="> 0")]
Signed = Annotated[float, Column(sign="")]
SignedBytes = Annotated[int, Column(sign="")]
Diverging = Annotated[float, Column(sign="", may_diverge=True)]
# What follows from stored rows is None in the record that a trial sends.
Derived = Annotated[float, Column(sign="", stored=False)] | None
DerivedCount = Annotated[int, Column(sign="", stored=False)] | None
Status = Literal[
    "ok", "unconverged", "oom", "unsupported", "nonfinite", "invalid", "timeout", "failed"
]
# The statuses whose figures count.
MEASURED: tuple[Status, ...] = ("ok", "unconverged")
# Outcomes of the memory phase after which the other phases of the cell leave a precision out.
UNFIT: tuple[Status, ...] = ("oom", "unsupported", "nonfinite", "timeout", "failed")
# The statuses that are not final: ``--resume`` tries such a trial again.
TRIED_AGAIN: tuple[Status, ...] = ("timeout", "failed")
DeviceKind = Literal["cuda", "cpu"]
# The kinds of figure of the numerics phase.
Kind = Literal["step", "gradient", "error", "activation", "module", "output_gradient"]
# The classes of work of a step: matrix products, convolutions and attention on matrix units (tensor
# cores) or not; what changes only the type or the order of numbers; the time in which nothing runs.
WorkClass = Literal[
    "matrix units",
    "other products",
    "normalisation and softmax",
    "elementwise",
    "casts and layout",
    "optimizer",
    "loss scaling",
    "communication",
    "copies",
    "idle",
    "unknown",
]
# Variables that say how long OpenMP's threads spin while they wait for each other.
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

# A row of a phase's CSV: what was asked, how the trial of one precision ended, the phase's own
# figures, and what ran.


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The first columns of every phase's CSV: a trial's question, where it ran, how it ended."""

    trial: Name
    """Readable name of the trial."""
    suite: Name
    """The recipe."""
    parameters: dict[str, Parameter] | None
    """The suite's parameters that were overridden, as a JSON object."""
    device: Name
    """The vendor's name of the device."""
    architecture: str
    """The device's generation."""
    placement: Name
    """Where it ran: `cpu`, or a GPU's CUDA index; several that train together with `+` between, and
    after `@` on how many nodes each (`0+1@2` is four GPUs)."""
    batch_size: Count
    """Samples in a step; fit: the largest that fits."""
    precision: Name
    """How numbers were held and multiplied, with its options after a colon; `fp32` is the baseline;
    of a script the name of the arm."""
    techniques: tuple[str, ...]
    """What else the arm was trained with, such as channels-last, joined by +; of an ablation in the
    order in which the steps add them."""
    ablation: bool | None
    """Yes of a step of an ablation: its batches come from host memory, and gradients are zeroed
    without set-to-none."""
    data: Name
    """Where training samples come from, as `--data` names it; memory and speed are measured on
    random batches of the same shape."""
    replicate: int | None
    """Which fresh process this was, from 0, where a phase is repeated in fresh processes."""
    seed: int | None
    """Seed of weights, data order and augmentation, where a phase is repeated with others."""
    status: Status
    """How the trial ended, see above."""
    detail: str
    """Why the status is not ok: what, the line of the suite's file, and the file within the run's
    folder that holds all that its process printed; of an arm measured alone: why the arms failed
    together; fit: the batch sizes tried; train: that a checkpoint could not be read and training
    began anew; memory: that the loss was NaN or infinite; numerics: the loss of the first and of
    the last step; all phases but fit and floor: which products ran in a narrower type than the
    precision's, or that autocast left much in fp32."""
    started: str
    """When the trial began, UTC, ISO 8601."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switches:
    """The precision switches, and the error of a matrix product under them.

    Measured after the arm's last step: the fp32 switches and matmul_error. Copied from the
    precision, and no proof that they had an effect: autocast and loss_scaling. What was computed in
    which type is in ``Operations``.
    """

    fp32_matmul: str | None = None
    """Precision of fp32 matrix products as read back: ieee, tf32 or another."""
    fp32_conv: str | None = None
    """The same of convolutions."""
    fp32_rnn: str | None = None
    """The same of recurrent layers."""
    cudnn_benchmark: bool | None = None
    """Whether cuDNN chooses the algorithms of convolutions by trying them
    (torch.backends.cudnn.benchmark), as read back; torch's own state is no, and so is that of
    `default`."""
    autocast: str | None = None
    """The type of the precision's autocast; empty without autocast."""
    loss_scaling: bool | None = None
    """Whether the loss is scaled."""
    matmul_error: Diverging | None = None
    """Relative error of an fp32 matrix product against float64; about 1e-6 or less is IEEE fp32,
    about 3e-4 TF32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """Operations of one training step, as seen by a dispatch pass outside the timing."""

    compute_dtypes: str = ""
    """Types that matrix products and convolutions computed in, forward and backward, during one
    step, each with its share of their FLOPs, such as `bfloat16:98% float32:2%`; `?` where a
    product's FLOPs are not known, and `flops_per_step` is then empty; of suites TF32 is written as
    float32."""
    flops_per_step: float | None = None
    """FLOPs of matrix products and convolutions in one training step, forward and backward, a
    multiply-add counted as two; of several devices, the sum."""
    attention: str = ""
    """Backends that scaled_dot_product_attention used in that step, each with its calls, such as
    `flash:4`; empty where there was none."""
    other_modules: str = ""
    """Modules that computed products in a narrower type than the precision's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """The linear layers of a model at precisions that convert them."""

    converted_layers: tuple[str, ...]
    """Linear layers that torchao replaced, to multiply in the precision's narrow type, joined by
    +."""
    kept_layers: dict[str, str]
    """Linear layers that were not, each with the reason, as a JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What an arm's process did, whatever the phase: the last columns of every phase's CSV."""

    wall_s: float | None = None
    """How long the trial took, start-up included."""
    compile_s: float | None = None
    """Time of the steps until none compiled, less that of as many ordinary ones, by torch.compile
    or by torchao's optimizers (inference: the forward pass alone, for batches and for single
    samples). Each arm begins with an empty cache; 0 where another arm of the process had compiled
    the same."""
    switches: Switches = Switches()
    operations: Operations | None = None
    conversion: Conversion | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult(Ran):
    """One arm of one trial, as its process sends it."""

    arm: str
    """Its name (``ArmSpec.name``)."""
    status: Status
    detail: str = ""
    """Why the status is not ok."""
    started: str = ""
    """When the trial began, UTC, ISO 8601."""
    row: Any = None
    """The phase's own figures, of the type that its ``PHASE.row`` names; None where there are
    none."""


def utc_now() -> str:
    """Return the time in UTC as rows have it, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# Rows of the other CSVs.


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A timed run of steps between two synchronisations."""

    trial: Name
    """The trial, as in its phase's CSV."""
    precision: Name
    """Whose steps these were."""
    round: int
    """Which ABBA round it belongs to."""
    position: int
    """Place in the round's order, from 0."""
    steps: Count
    """Steps timed."""
    time_ms: Positive
    """Wall time of all of them."""
    start_s: float
    """When its switch warm-up began, seconds since 1970, on the clock of telemetry.csv."""
    skipped_steps: int = 0
    """Optimizer steps that the GradScaler skipped, in the switch warm-up or timed."""
    discarded: str = ""
    """Of a script: why the step does not count, or empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochResult:
    """One epoch of training and the evaluation after it."""

    trial: Name
    """The trial, as in its phase's CSV."""
    precision: Name
    """The precision trained in."""
    seed: int
    """The training's seed."""
    epoch: Count
    """From 1."""
    train_loss: Diverging
    """Mean training loss."""
    test_loss: Diverging | None
    """Loss on the test set."""
    test_accuracy_pct: float | None
    """Accuracy on the test set; empty for regression."""
    train_s: float
    """Time of the epoch's training alone."""
    test_s: float | None
    """Time of the evaluation in the own precision."""
    elapsed_s: float
    """Training time since the first epoch began, evaluation apart."""
    data_wait_s: float
    """Host time spent waiting for batches."""
    samples: int
    """Samples trained on."""
    learning_rate: float
    """At the start of the epoch."""
    loss_scale: Diverging | None
    """The GradScaler's scale at the end of the epoch; empty without loss scaling."""
    skipped_steps: int
    """Optimizer steps that the GradScaler skipped."""
    samples_per_s: Positive | None = None
    """Training samples per second of the epoch."""
    start_s: float | None = None
    """When its training began, seconds since 1970, on the clock of telemetry.csv."""
    figures: dict[str, float | None] = field(default_factory=dict)
    """Figures of the suite's own `evaluate` on the test set, as a JSON object; null is one that is
    not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numeric:
    """One figure of the numerics phase: long form, for there are as many as a model has layers."""

    trial: Name
    """The trial, as in its phase's CSV."""
    precision: Name
    """The precision trained in."""
    kind: Kind
    """The kind of figure, see below."""
    step: int
    """From 0."""
    layer: str
    """Layer, or module; empty is the whole model."""
    name: str
    """Which figure of its kind, see below."""
    value: Diverging
    """The figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One reading of one GPU by the NVML sampler."""

    time_s: float
    """When it was read, seconds since 1970."""
    placement: str
    """The GPU's CUDA index."""
    uuid: str
    """The GPU's UUID."""
    utilization_pct: Signed | None = None
    """Share of the time that a kernel was running."""
    memory_used_bytes: int | None = None
    """Memory in use on the whole GPU."""
    power_w: float | None = None
    """Power drawn."""
    temperature_c: float | None = None
    """Temperature of the GPU."""
    sm_clock_mhz: int | None = None
    """Clock of the multiprocessors."""
    memory_clock_mhz: int | None = None
    """Clock of the memory."""
    throttle_reasons: str | None = None
    """Names of the reasons the clock was held down, joined by +."""


# What a run ran on.


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device that trials can be placed on."""

    placement: str
    """The name that ``--gpus`` takes."""
    kind: DeviceKind
    name: str
    """The vendor's name, such as NVIDIA H200 or AMD EPYC."""
    architecture: str
    """The generation that tables group by, such as Hopper, or the CPU's widest matrix
    instructions."""
    compute_capability: str | None = None
    """CUDA compute capability as major.minor."""
    memory_total_bytes: int | None = None
    uuid: str | None = None
    """The GPU's UUID, which is what NVML and CUDA have in common."""
    uuids: tuple[str, ...] = ()
    """Of GPUs that train together, each one's UUID; they have none as a whole."""
    power_limit_w: float | None = None
    """The GPU's limit that is enforced."""
    power_default_w: float | None = None
    """The limit that it has from the factory."""
    sm_clock_limit_mhz: int | None = None
    """The highest clock of a GPU's multiprocessors."""
    memory_clock_limit_mhz: int | None = None
    cores: int | None = None
    """Physical cores of a CPU; multiprocessors of a GPU."""
    threads: int | None = None
    """Threads that torch computes with on a CPU."""
    fp32_gflops: float | None = None
    """Rate of a short fp32 matrix product here, for estimating how long a plan takes."""
    bf16_gflops: float | None = None
    """The same of bfloat16, on a CPU: many have no instructions for it and emulate it."""
    native_bf16: bool | None = None
    """Whether it multiplies bfloat16 in hardware; None: unknown."""
    energy: str | None = None
    """Where a GPU's energy is read from: ``counter``, or ``power`` where the GPU reports only
    power; None: unknown."""
    unsupported: dict[str, str] | None = None
    """The precisions that this device or build cannot do, each with the reason."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, of whatever vendor."""
        return self.kind != "cpu"

    @staticmethod
    def joint(devices: Sequence[Device]) -> Device:
        """Return devices that train together as one, with the rates of the slowest.

        One alone is returned as it is. The placement of several is the caller's to tell, and
        whether the source of their energy is the same.
        """
        if len(devices) == 1:
            return devices[0]
        slowest = min(devices, key=lambda device: device.fp32_gflops or math.inf)
        names = dict.fromkeys(device.name for device in devices)
        name = " + ".join(names)
        if len(names) == 1 and slowest.is_gpu:
            name = f"{len(devices)} × {name}"
        architectures = dict.fromkeys(device.architecture for device in devices)
        memory = [device.memory_total_bytes for device in devices]
        unsupported: dict[str, str] = {}
        for device in devices:
            unsupported |= device.unsupported or {}
        for precision, facts in PRECISIONS.items():
            if facts.single_device:
                unsupported[precision] = facts.single_device
        return replace(
            slowest,
            name=name,
            architecture=" + ".join(architectures),
            memory_total_bytes=sum(size or 0 for size in memory) if all(memory) else None,
            uuid=None,
            uuids=tuple(device.uuid for device in devices if device.uuid),
            power_limit_w=None,
            power_default_w=None,
            unsupported=unsupported,
        )

    def uuid_of(self, rank: int, ranks: int) -> str | None:
        """Return the UUID of the GPU of one of ``ranks`` processes; None: unknown from here."""
        return self.uuids[rank] if len(self.uuids) == ranks > 1 else self.uuid

    @property
    def gpus(self) -> dict[str, str]:
        """The UUIDs of its GPUs that are known from here, each with the GPU's ``--gpus`` name."""
        if self.uuid is not None:
            return {self.uuid: self.placement}
        words = self.placement.split("+")
        return dict(zip(self.uuids, words, strict=True)) if len(self.uuids) == len(words) else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A device as ``list --gpus`` sees it, before anything runs."""

    device: Device
    memory_free_bytes: int | None = None
    problem: str = ""
    """Why nothing can run on it, or empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The machine and the software that the trials ran on."""

    host: str
    os: str
    python: str
    torch: str
    torchvision: str
    cuda: str | None
    """CUDA version that torch was built with."""
    cudnn: str | None
    driver: str | None
    devices: tuple[Device, ...]
    openmp: str | None = None
    """How long OpenMP's threads spin while they wait, as NAME=VALUE."""
    machines: tuple[Environment, ...] = ()
    """The environment of each node of a cluster, with its devices; the fields above describe all
    nodes together."""
    removed_variables: tuple[str, ...] = ()
    """Environment variables that override how fp32 is multiplied, unset for the run, as
    NAME=VALUE."""
    variables: tuple[str, ...] = ()
    """Other environment variables that may change figures, as NAME=VALUE."""
    left_out: tuple[str, ...] = ()
    """For each visible GPU that nobody named and that this torch build has no kernels for, a
    sentence."""


# What a process says of its work.


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A sign of life from a worker, for whoever watches the terminal."""

    text: str
    """The worker's present task, with the running figure if there is one."""
    done: float | None = None
    """Share of the trial that is done, 0 to 1."""
    silence_s: float = 0.0
    """How long it may stay silent after this, where that is longer than the trial's limit."""


class Detail(Protocol):
    """A row of the details of a trial, such as a ``Block``; ``Phase.details`` names its CSV."""

    @property
    def trial(self) -> str:
        """The id of the trial."""

    @property
    def precision(self) -> str:
        """The name of the arm, as in the CSV's column."""


# What a process of a trial sends before its ending: its progress, its details, and a result for
# each arm.
Message = Progress | TrialResult | Detail
# Sends one of them to the process that started the trial.
Send = Callable[[Message], None]
