"""The raw answer: what a trial found, in plain data.

Every field of a record that reaches a CSV has its unit in its name; unknown is None. What each field
means to a reader of the CSVs is told in results/README.md, column by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "unconverged", "oom", "unsupported", "nonfinite", "invalid", "timeout", "failed"]
DeviceKind = Literal["cuda", "cpu"]


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
    power_limit_w: float | None = None
    cores: int | None = None
    """Physical cores of a CPU; multiprocessors of a GPU."""
    threads: int | None = None
    """Threads that torch computes with on a CPU."""
    fp32_gflops: float | None = None
    """Rate of a short fp32 matrix product here, for estimating how long a plan takes."""
    unsupported: dict[str, str] | None = None
    """The precisions that this device or build cannot do, each with the reason."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPeak:
    """The most memory that training held, alone in its process."""

    first_peak_bytes: int | None = None
    """During the first step, when libraries try their workspaces: allocated on a GPU, resident on a CPU."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_active_bytes: int | None = None
    driver_used_bytes: int | None = None
    """What the driver says is used, less what was used before the context."""
    allocator_retries: int | None = None
    peak_resident_bytes: int | None = None
    """On a CPU: peak resident set of the process above what it was before the model was built."""
    model_bytes: int | None = None
    """Parameters and buffers."""

    @property
    def headline_bytes(self) -> int | None:
        """The figure that tables show: steady peak allocated on a GPU, steady peak resident on a CPU."""
        return self.peak_resident_bytes if self.peak_allocated_bytes is None else self.peak_allocated_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What one process's quads say of one arm."""

    steady: bool
    """Whether warm-up ended because step times had settled."""
    warmup_steps: int
    settle_steps: int
    """Steps run untimed at the head of each block."""
    block_steps: int
    """Timed steps in a block."""
    switch_transient_pct: float | None = None
    """How far the first step after a switch of arms lies above the plateau."""
    clock_overhead_pct: float | None = None
    """An empty block's time as a share of this arm's block."""
    paired: bool = True
    """Whether baseline and arm were measured together in one process."""
    quads: int = 0
    step_ms: float | None = None
    """Median over blocks of the time per step."""
    samples_per_s: float | None = None
    speedup: float | None = None
    """Baseline time over this arm's time; empty for the baseline itself."""
    speedup_low: float | None = None
    """Lower end of the 95 % interval within this process."""
    speedup_high: float | None = None
    skipped_steps: int = 0


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A whole training run, in summary."""

    epochs: int
    time_per_epoch_s: float
    """Median over the epochs, of training alone."""
    total_s: float
    """All epochs, evaluation included."""
    train_samples_per_s: float
    train_loss: float
    test_loss: float | None
    test_accuracy_pct: float | None
    """After the last epoch."""
    data_wait_pct: float
    """Share of training time that the host waited for batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switches:
    """What the precision's switches were read back as, and what a matrix product shows of them."""

    fp32_matmul: str | None = None
    """ieee, tf32 or another setting of the matrix product's fp32 precision."""
    fp32_conv: str | None = None
    autocast: str | None = None
    """The type that autocast computes in, or empty."""
    loss_scaling: bool | None = None
    matmul_error: float | None = None
    """Relative error of an fp32 matrix product against float64: about 1e-6 is IEEE, about 3e-4 TF32."""


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
    switches: Switches = Switches()
    memory: MemoryPeak | None = None
    speed: Speed | None = None
    training: Training | None = None


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

    kind: Literal["usage", "oom", "error"]
    """Something that the user can mend, memory that did not suffice, or anything else."""
    text: str


Message = Progress | Block | EpochResult | TrialResult
