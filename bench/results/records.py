"""The raw answer: what a trial found, in plain data.

Every field of a record that reaches a CSV has its unit in its name; unknown is None. What each field
means to a reader of the CSVs is told in results/README.md, column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

# What each phase finds of one precision, in plain data: the parts of a row of trials.csv.


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
class Operations:
    """What ran in one training step, as a dispatch pass outside the timing saw it."""

    compute_dtypes: str = ""
    """Types that matrix products and convolutions computed in, each with its share of their FLOPs: bfloat16:98%."""
    flops_per_step: float | None = None
    """Of matrix products and convolutions, forward and backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPeak:
    """The most memory that training held, alone in its process."""

    first_peak_bytes: int | None = None
    """During the first step, when libraries try their workspaces: allocated on a GPU, resident on a CPU."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_active_bytes: int | None = None
    driver_used_bytes: int | None = None
    """What the driver says this process holds; where it does not tell that by process, what is used less what was used
    before the context."""
    allocator_retries: int | None = None
    """During the steady steps."""
    peak_resident_bytes: int | None = None
    """On a CPU: peak resident set of the process above what it was before the model was built."""
    model_bytes: int | None = None
    """Parameters and buffers."""
    tracked_peak_bytes: int | None = None
    """The most that tensors held at once during a step, summed over the kinds below, which are of that moment."""
    parameter_bytes: int | None = None
    """Parameters, the fp32 master copy of 16-bit ones included, and buffers, at the tracked peak."""
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    activation_bytes: int | None = None
    """What forward keeps for backward, the 16-bit copies of weights that autocast caches included."""
    temporary_bytes: int | None = None
    """Everything else: the batches, and what a pass or the optimizer makes and drops."""

    @property
    def headline_bytes(self) -> int | None:
        """The figure that tables show: steady peak allocated on a GPU, steady peak resident on a CPU."""
        return self.peak_resident_bytes if self.peak_allocated_bytes is None else self.peak_allocated_bytes

    all_devices_bytes: int | None = None
    """Several devices: the sum of their peaks; the other figures are then the largest device's."""

    @classmethod
    def of_all(cls, peaks: Sequence[MemoryPeak]) -> MemoryPeak:
        """Return the peak of devices, or of nodes, that train together; the sum is unknown where one's peak is."""

        def known(name: str) -> list[int]:
            return [value for peak in peaks if (value := getattr(peak, name)) is not None]

        largest = {field.name: max(known(field.name), default=None) for field in fields(cls)}
        own = [peak.headline_bytes if peak.all_devices_bytes is None else peak.all_devices_bytes for peak in peaks]
        largest["all_devices_bytes"] = sum(size or 0 for size in own) if None not in own else None
        return cls(**largest)


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
    step_p50_ms: float | None = None
    """Median of single steps after the timing: between CUDA events on a GPU, readings of the clock on a CPU."""
    step_p95_ms: float | None = None
    host_ratio: float | None = None
    """Host time to queue one step over its time on the GPU: near 1 or above is launch-bound. None with a GradScaler."""
    invalid_quads: int = 0
    """Quads that do not count because the machine disturbed them."""
    burst_quads: int = 0
    """Quads far from the others (counted, never left out)."""
    long_block_pct: float | None = None
    """How far the speedup from blocks of four times the length lies from this one, in per cent."""
    communication_pct: float | None = None
    """Several devices: share of a step by which it is longer than one without a word to the others."""
    foreign_load_pct: float | None = None
    """On a CPU: share of the machine's cores that other programs took while timing."""
    peak_tflops: float | None = None
    """This device's own rate of large matrix products at this precision, measured in the same process."""
    tflops: float | None = None
    """The step's FLOPs over its time."""
    pct_of_peak: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """What a pass of continuous steps drew."""

    energy_source: str = ""
    """``counter`` (the GPU's energy counter) or ``power`` (the integral of sampled power)."""
    energy_j_per_step: float | None = None
    """Gross: all that the board drew, over the steps."""
    energy_net_j_per_step: float | None = None
    """Less what it draws idle, measured before."""
    idle_power_w: float | None = None
    mean_power_w: float | None = None
    energy_window_s: float | None = None
    energy_steps: int | None = None
    """Steps in the window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A batch that fits, and what keeps the next larger one tried from fitting."""

    fit_bound: str = ""
    """``memory``: it ran out; ``predicted memory``: a CPU's would not have sufficed; ``time``: its step was predicted
    to take too long; ``error``: it failed otherwise."""
    fit_peak_bytes: int | None = None
    """GPU: the most that the allocator held. CPU: peak resident set above what it was before the model."""
    fit_free_bytes: int | None = None
    """What was free before the model was built, on the device or, for a CPU, of the machine or container."""
    fit_step_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Climb:
    """A rung of the ladder beside its speed."""

    rung: int
    """Its number, from 0 for fp32."""
    loader_ms: float
    """Time that the loader takes for a batch when nothing else runs."""
    wait_pct: float
    """Share of the timed steps in which the host waited for a batch from the loader; copies apart."""
    steps_per_epoch: int
    """Whole batches in an epoch of the samples that are trained on."""
    loader_limited: bool
    """Whether the host waits for batches not made yet for much of a continuous run: then it is what is measured."""


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
    test_loss_fp32: float | None = None
    test_accuracy_fp32_pct: float | None = None
    """The same weights evaluated in fp32."""
    target_accuracy_pct: float | None = None
    """What ``--target-accuracy`` asked for."""
    time_to_accuracy_s: float | None = None
    """Training time, evaluation apart, until the end of the first epoch that reached the target."""
    checkpoint_bytes: int | None = None
    """Size of the weights that the model computes with, without an fp32 master copy."""
    checkpoint_16bit_bytes: int | None = None
    """The same with floating-point weights stored in 16 bits."""
    train_energy_j: float | None = None
    """What the board drew in all epochs' training."""
    data_place: str = ""
    """Where the samples were: ``device``; ``host`` memory; ``file``, mapped from the disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """The forward pass in eval mode, beside fp32's in the same process."""

    latency_p50_ms: float
    """Median time of one sample's answer, waited for."""
    latency_p95_ms: float
    inference_samples_per_s: float
    """At the cell's batch size."""
    inference_speedup: float | None
    """fp32's time over this precision's; None for fp32 itself."""
    inference_speedup_low: float | None
    inference_speedup_high: float | None
    inference_quads: int
    top1_agreement_pct: float | None
    """Samples of random inputs whose largest output is the same as fp32's; None for regression."""
    output_error: float
    """Largest difference from an output of fp32 over fp32's largest output."""


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
    def is_gpu(self) -> bool:
        """Whether it is a GPU, of whatever vendor."""
        return self.kind != "cpu"

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
