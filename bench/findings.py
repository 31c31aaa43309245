"""What each phase finds of one precision, in plain data: the parts of a row of trials.csv.

Every field has its unit in its name; unknown is None. What each means to a reader of the CSVs is told in
results/README.md, column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


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
