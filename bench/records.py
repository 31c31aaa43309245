"""The raw answer: what a trial found, in plain data.

Every field of a record that reaches a CSV has its unit in its name; unknown is None. What each field
means to a reader of the CSVs is told in results/README.md, column by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bench.findings import Climb, Energy, Fit, Inference, MemoryPeak, Operations, Speed, Switches, Training

Status = Literal["ok", "unconverged", "oom", "unsupported", "nonfinite", "invalid", "timeout", "failed"]
MEASURED: tuple[Status, ...] = ("ok", "unconverged")
"""The statuses whose figures count."""
DeviceKind = Literal["cuda", "cpu"]
Kind = Literal["step", "gradient", "float16", "float16_scaled", "error", "activation"]
"""What a figure of the numerics phase is about."""
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables that say how long OpenMP's threads spin while they wait for each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device that trials can be placed on."""

    placement: str
    """What ``--gpus`` calls it."""
    kind: DeviceKind
    name: str
    """The vendor's name, such as NVIDIA H200 or AMD EPYC."""
    architecture: str
    """The generation that tables group by, such as Hopper, or the CPU's widest matrix instructions."""
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
    energy: str | None = None
    """Where a GPU's energy is read from: ``counter``, or ``power`` where only power is told; None: unknown."""
    unsupported: dict[str, str] | None = None
    """The precisions that this device or build cannot do, each with the reason."""

    @property
    def gpus(self) -> dict[str, str]:
        """The UUIDs of its GPUs that are known from here, each with what ``--gpus`` calls that one."""
        words = self.placement.split("+") if self.uuid is None else [self.placement]
        uuids = self.uuids if self.uuid is None else (self.uuid,)
        return dict(zip(uuids, words, strict=True)) if len(uuids) == len(words) else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A device as ``list --gpus`` sees it, before anything runs."""

    device: Device
    memory_free_bytes: int | None = None
    problem: str = ""
    """Why nothing can run on it, or empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node of a cluster that trials run on."""

    accelerator: str
    """What ``--accelerators`` calls what it has."""
    device: str
    """The vendor's name of that."""
    host: str
    driver: str | None
    torch: str
    cuda: str | None
    cudnn: str | None = None


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
    arch_list: tuple[str, ...]
    """GPU architectures that this torch build holds kernels for."""
    devices: tuple[Device, ...]
    openmp: str | None = None
    """How long OpenMP's threads spin while they wait, as NAME=VALUE."""
    nodes: tuple[Node, ...] = ()
    """The nodes of a cluster; the fields above then tell all of theirs."""
    removed_variables: tuple[str, ...] = ()
    """Environment variables that override TF32, unset for the run, as NAME=VALUE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A timed run of steps between two synchronisations."""

    trial: str
    precision: str
    quad: int
    position: int
    """Place in the quad's order, from 0."""
    steps: int
    time_ms: float
    """Wall time of all its steps."""
    start_s: float
    """When it began, on the clock of the telemetry (time.time)."""
    skipped_steps: int = 0
    """Optimizer steps that the GradScaler skipped because of infinite gradients."""
    invalid: str = ""
    """Why its quad does not count, or empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochResult:
    """One epoch of training and the evaluation after it."""

    trial: str
    precision: str
    seed: int
    epoch: int
    """From 1."""
    train_loss: float
    test_loss: float | None
    test_accuracy_pct: float | None
    train_s: float
    """Time of the epoch's training alone."""
    test_s: float | None
    elapsed_s: float
    """Training time since the first epoch began, evaluation apart."""
    data_wait_s: float
    """Host time spent waiting for batches."""
    samples: int
    learning_rate: float
    loss_scale: float | None
    skipped_steps: int
    samples_per_s: float | None = None
    test_loss_fp32: float | None = None
    test_accuracy_fp32_pct: float | None = None
    """Evaluated in fp32, whatever the precision trained in."""
    energy_j: float | None = None
    """What the board drew while the epoch trained."""
    train_accuracy_pct: float | None = None
    """On training images as they are, after the epoch, under the precision trained in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numeric:
    """One figure of the numerics phase: long form, for there are as many as a model has layers."""

    trial: str
    precision: str
    kind: Kind
    step: int
    """From 0."""
    layer: str
    """Layer or group of layers; empty is the whole model."""
    name: str
    """Which figure of its kind, or the bin of a histogram."""
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """One precision of one trial: a row of trials.csv."""

    precision: str
    status: Status
    detail: str = ""
    """Why the status is not ok."""
    started: str = ""
    """UTC, ISO 8601."""
    wall_s: float | None = None
    compile_s: float | None = None
    """What compiling took before the first ordinary step (floor, speed, train)."""
    switches: Switches = Switches()
    operations: Operations | None = None
    memory: MemoryPeak | None = None
    speed: Speed | None = None
    energy: Energy | None = None
    training: Training | None = None
    inference: Inference | None = None
    climb: Climb | None = None
    fit: Fit | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One reading of one GPU by the NVML sampler."""

    time_s: float
    """time.time of the reading."""
    placement: str
    uuid: str
    utilization_pct: float | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: str | None = None
    """Names of the active clock event reasons, joined by +."""
    foreign_processes: int | None = None
    """Processes on the GPU that are not this run's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A sign of life from a worker, for whoever watches the terminal."""

    text: str
    """What it is doing, with the running figure if there is one."""
    done: float | None = None
    """Share of the trial that is done, 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The last word of a process that did what it was asked to."""

    value: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The last word of a process that could not."""

    kind: Literal["usage", "unsupported", "oom", "error"]
    """What the user can mend, what this device or suite cannot do, memory that did not suffice, or anything else."""
    text: str


Message = Progress | Block | EpochResult | Numeric | TrialResult
