"""Records: what a run writes to its CSVs, what it ran on, and the messages that carry results between processes.

Each field of a record that reaches a CSV is a column there: its docstring is the column's description in
results/README.md, its type and its ``Column`` say which values are valid. Every quantity has its unit in its name;
unknown is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from bench.spec.metrics import METRICS
from bench.spec.phases import PHASES
from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Which values a column of a CSV may have, beyond what the type of its field says."""

    sign: Literal["≥ 0", "> 0", ""] = "≥ 0"
    """Of numbers. Differences and losses may have any."""
    may_diverge: bool = False
    """Whether the number may be infinite, as a loss may."""
    words: tuple[str, ...] = ()
    """The only valid words, where the type does not say so; none if any is valid."""
    filled: bool = False
    """Whether the word is never empty."""


Name = Annotated[str, Column(filled=True)]
Count = Annotated[int, Column(sign="> 0")]
Positive = Annotated[float, Column(sign="> 0")]
Signed = Annotated[float, Column(sign="")]
SignedBytes = Annotated[int, Column(sign="")]
Diverging = Annotated[float, Column(sign="", may_diverge=True)]
Status = Literal["ok", "unconverged", "oom", "unsupported", "nonfinite", "invalid", "timeout", "failed"]
MEASURED: tuple[Status, ...] = ("ok", "unconverged")
"""The statuses whose figures count."""
UNFIT: tuple[Status, ...] = ("oom", "unsupported", "nonfinite", "timeout", "failed")
"""Outcomes of the memory phase after which the other phases of the cell leave a precision out."""
DeviceKind = Literal["cuda", "cpu"]
Kind = Literal["step", "gradient", "error", "activation", "module", "output_gradient", "type"]
"""The kinds of figure of the numerics phase; a type counts the numbers that the part in ``layer`` holds in it."""
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
"""The classes of work of a step: matrix products, convolutions and attention on matrix units (tensor cores) or not;
what changes only the type or the order of numbers; the time in which nothing runs."""
Finding = Literal[
    "step",
    "class",
    "operator",
    "best",
    "flops",
    "rate",
    "types",
    "channels-last",
    "padded",
]
"""The kinds of figure of the explain phase."""
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables that say how long OpenMP's threads spin while they wait for each other."""

# A row of trials.csv: what was asked, then how one precision did, in one part for each group of measurements.


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The question of a trial, and where it ran."""

    run: str
    """Name of the run's folder."""
    trial: Name
    """Readable name of the trial."""
    cell: Name
    """Readable name of its cell, which all phases of a suite, placement and batch size share."""
    config: str
    """Hash of everything that was asked; equal hashes are the same question."""
    suite: Name
    """The recipe."""
    parameters: str
    """The suite's parameters that were overridden, as name=value."""
    parameters_json: dict[str, Parameter]
    """The same as a JSON object."""
    techniques: tuple[str, ...]
    """The techniques that all arms were trained with, such as channels-last, joined by +."""
    placement: Name
    """Where it ran: `cpu`, or a GPU's CUDA index; several that train together with `+` between, and after `@` on how
    many nodes each (`0+1@2` is four GPUs)."""
    members: tuple[str, ...]
    """The placement of each device of it, joined by + (`0+1+0+1` of `0+1@2`)."""
    device: Name
    """The vendor's name of the device."""
    device_names: list[str]
    """The different names of its devices, as a JSON array."""
    device_kind: DeviceKind
    """The kind of device: a GPU is `cuda`."""
    architecture: str
    """The device's generation."""
    batch_size: Count
    """Samples in a step; fit: the largest that fits."""
    data: Name
    """Where training samples come from, as `--data` names it; memory and speed are measured on random batches of the
    same shape."""
    phase: Annotated[str, Column(words=tuple(PHASES))]
    """The phase, see above."""
    replicate: int | None
    """Which fresh process this was, from 0, where a phase is repeated in fresh processes."""
    seed: int
    """Seed of weights, data order and augmentation."""
    arm_precision: Name
    """The precision that was computed in, with its options: of the ladder that of the ablation step."""
    arm_techniques: tuple[str, ...]
    """Ladder: the techniques of the ablation step in the order in which they were added, joined by +."""
    reference: str
    """The arm that speedups and changes are over: the first of a training script's, else `fp32`."""
    trial_rows: Count
    """How many rows were written together when the trial ended, one for each arm. Where there are fewer, writing was
    cut off, and none of them counts."""
    attempt: Count
    """Which attempt at the trial this was, from 1; the last one counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switches:
    """The precision switches, and the error of a matrix product under them.

    Measured after the arm's last step: the fp32 switches and matmul_error. Copied from the precision, and no proof
    that they had an effect: autocast and loss_scaling. What was computed in which type is in ``Operations``.
    """

    fp32_matmul: str | None = None
    """Precision of fp32 matrix products as read back: ieee, tf32 or another."""
    fp32_conv: str | None = None
    """The same of convolutions."""
    fp32_rnn: str | None = None
    """The same of recurrent layers."""
    fp32_switches: str | None = None
    """All of torch's fp32 switches, on GPU and CPU, the general ones too: one word if they are alike, else each as
    name=value; `none` is one that nothing has set."""
    cudnn_benchmark: bool | None = None
    """Whether cuDNN chooses the algorithms of convolutions by trying them (torch.backends.cudnn.benchmark), as read
    back; torch's own state is no, and so is that of `default`."""
    autocast: str | None = None
    """The type of the precision's autocast; empty without autocast."""
    loss_scaling: bool | None = None
    """Whether the loss is scaled."""
    matmul_error: Diverging | None = None
    """Relative error of an fp32 matrix product against float64; about 1e-6 or less is IEEE fp32, about 3e-4
    TF32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """Operations of one training step, as seen by a dispatch pass outside the timing."""

    compute_dtypes: str = ""
    """Types that matrix products and convolutions computed in, forward and backward, during one step, each with its
    share of their FLOPs, such as `bfloat16:98% float32:2%`; `float8_e4m3fn in float32` where operands that were
    rounded to the one were multiplied in the other, which is emulation; `?` where a product's FLOPs are not known, and
    `flops_per_step` is then empty; of suites TF32 is written as float32."""
    flops_per_step: float | None = None
    """FLOPs of matrix products and convolutions in one training step, forward and backward, a multiply-add counted as
    two; of several devices, the sum."""
    attention: str = ""
    """Backends that scaled_dot_product_attention used in that step, each with its calls, such as `flash:4`; empty where
    there was none."""
    other_modules: str = ""
    """Modules that computed products in a narrower type than the precision's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """The linear layers of a model at precisions that convert them: how many were, and of which sizes."""

    converted_layers: tuple[str, ...]
    """Linear layers that torchao replaced, to multiply in the precision's narrow type, joined by +."""
    kept_layers: dict[str, str]
    """Linear layers that were not, each with the reason, as a JSON object."""
    small_layers: int | None
    """Of the converted layers, how many the library's own filter would leave out because layers of their size gain no
    speed; empty where it has no filter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPeak:
    """Peak memory of training alone in its process."""

    first_peak_bytes: SignedBytes | None = None
    """Peak during the first step, when libraries try their workspaces: allocated on a GPU, resident on a CPU."""
    peak_allocated_bytes: int | None = None
    """GPU: steady peak of bytes in tensors; the memory that reports show."""
    peak_reserved_bytes: int | None = None
    """GPU: steady peak of bytes that the allocator held."""
    peak_active_bytes: int | None = None
    """GPU: steady peak of bytes in blocks in use or not yet free to reuse."""
    driver_used_bytes: SignedBytes | None = None
    """GPU: bytes that the driver says this process holds, its context included; where it does not tell processes
    apart, bytes in use less those before the context."""
    gpu_used_bytes: int | None = None
    """GPU: bytes in use on the whole GPU then, by all processes, as nvidia-smi and gpustat show it."""
    allocator_retries: int | None = None
    """GPU: how often, in the steady steps, the allocator emptied its cache and tried again."""
    peak_resident_bytes: SignedBytes | None = None
    """CPU: peak resident set of the process above what it was before the model; the memory that reports show, with
    the libraries' code loaded beforehand."""
    model_bytes: int | None = None
    """Bytes of parameters and buffers."""
    tracked_peak_bytes: int | None = None
    """The most that tensors held at once during a steady step, counted tensor by tensor on any device; the five
    kinds below are of that moment and add up to it."""
    parameter_bytes: int | None = None
    """Parameters, the fp32 master copy of 16-bit ones included, and buffers."""
    gradient_bytes: int | None = None
    """Gradients of parameters."""
    optimizer_bytes: int | None = None
    """The optimizer's state."""
    activation_bytes: int | None = None
    """Tensors that the forward pass keeps for the backward pass, the 16-bit copies of weights that autocast caches
    included."""
    temporary_bytes: int | None = None
    """Everything else, the batches included."""
    weight_copy_bytes: int | None = None
    """Of these kinds, the 16-bit copies of fp32 parameters that autocast makes."""
    most_weight_copy_bytes: int | None = None
    """The most that such copies held at once, at any moment of the step."""
    fp32_activation_bytes: int | None = None
    """Of ``activation_bytes``, those in fp32."""

    @property
    def headline_bytes(self) -> int | None:
        """The figure that tables show: steady peak allocated on a GPU, steady peak resident on a CPU."""
        return self.peak_resident_bytes if self.peak_allocated_bytes is None else self.peak_allocated_bytes

    all_devices_bytes: int | None = None
    """Several devices: the sum of their peaks; the other figures of memory are the largest device's."""

    @classmethod
    def of_all(cls, peaks: Sequence[MemoryPeak]) -> MemoryPeak:
        """Return the peak of devices, or of nodes, that train together; the sum is unknown where one's peak is."""

        def known(name: str) -> list[int]:
            return [value for peak in peaks if (value := getattr(peak, name)) is not None]

        largest = {field.name: max(known(field.name), default=None) for field in fields(cls)}
        sums = [peak.headline_bytes if peak.all_devices_bytes is None else peak.all_devices_bytes for peak in peaks]
        largest["all_devices_bytes"] = sum(size or 0 for size in sums) if None not in sums else None
        return cls(**largest)


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Speed of one arm, from the ABBA rounds of one process."""

    steady: bool
    """Whether step times had settled when warm-up ended."""
    warmup_steps: int
    """Steps of warm-up."""
    switch_warmup_steps: int
    """Steps run untimed at the head of each block, after the switch of precisions."""
    block_steps: int
    """Steps timed in each block."""
    switch_transient_pct: Signed | None = None
    """How far the first step after a switch of precisions lies above the plateau."""
    clock_overhead_pct: Signed | None = None
    """Time of an empty block as a share of this precision's block."""
    paired: bool = True
    """Whether baseline and precision were measured together in one process."""
    rounds: int = 0
    """Groups of blocks, each with two blocks of every arm in an order that cancels drift (with two arms
    ABBA or BAAB)."""
    step_ms: Positive | None = None
    """Median over blocks of the time per step."""
    samples_per_s: Positive | None = None
    """Throughput of the step, on data already on the device."""
    tokens_per_s: Positive | None = None
    """The same in tokens, where samples are sequences of them."""
    speedup: Positive | None = None
    """The baseline's time over this precision's, within this process; empty for the baseline and where not paired."""
    speedup_low: Positive | None = None
    """Lower end of its 95 % interval within this process."""
    speedup_high: Positive | None = None
    """Upper end of that interval."""
    skipped_steps: int = 0
    """Optimizer steps that the GradScaler skipped, in the switch warm-up or timed."""
    step_p50_ms: float | None = None
    """Median of single steps after the timing: between CUDA events on a GPU, readings of the clock on a CPU; of
    several devices, here and in the next two rows, the largest of theirs."""
    step_p95_ms: float | None = None
    """95th percentile of the same."""
    host_ratio: float | None = None
    """GPU: host time to queue one step over its time on the GPU; near 1 or above, launching limits the speed; of
    the ladder on a batch already there; empty where a GradScaler waits for the GPU in each step."""
    disturbance: str = ""
    """What disturbed the device while timing, or empty: heat that held its clocks down or another program that computed
    for a twentieth of the time or more, a compilation, a GPU that was lost."""
    power_capped: bool | None = None
    """GPU: whether the driver named the power limit as a reason for the clocks while timing."""
    communication_pct: Signed | None = None
    """Several devices: share of a step by which it is longer than one without communication (`no_sync`), from ABBA
    rounds: sending gradients beyond what overlaps with backward, broadcasting batch norm's buffers, and waiting for
    the slowest device in each step."""
    foreign_load_pct: float | None = None
    """CPU: share of the machine's cores that other programs took while timing."""
    switches_per_s: float | None = None
    """How often a second the system took a core from the process while timing (`ru_nivcsw`)."""
    peak_tflops: float | None = None
    """This device's own rate of large matrix products at this precision, measured in the same process; of several,
    the sum of theirs."""
    tflops: float | None = None
    """`flops_per_step` over the time of a step."""
    pct_of_peak: float | None = None
    """The one as a share of the other."""

    @property
    def timed_s(self) -> float:
        """Return how long the arm's timed steps took, all rounds together."""
        return 2 * self.rounds * self.block_steps * (self.step_ms or 0.0) / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Energy of a pass of continuous steps."""

    energy_source: str = ""
    """Where energy was read: `counter`, the GPU's own energy counter, or `power`, the integral of sampled power."""
    energy_j_per_step: float | None = None
    """Energy that the board drew for a step, gross; of several devices, here and in the next three rows, the sum of
    their boards'."""
    energy_net_j_per_step: Signed | None = None
    """The same less what the board draws idle."""
    idle_power_w: float | None = None
    """Power before the first step, with nothing running."""
    mean_power_w: float | None = None
    """Power over the steps."""
    energy_window_s: float | None = None
    """Length of the window of steps."""
    energy_steps: int | None = None
    """Steps in it."""
    energy_start_s: float | None = None
    """When it began, seconds since 1970, on the clock of telemetry.csv."""
    alone_samples_per_s: Positive | None = None
    """Throughput of the precision alone in its process, in steps that go on after the window for as long again, no
    meter being read; empty where something disturbed them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The largest batch that fits, and why no larger one does."""

    fit_bound: str = ""
    """The limit at the next larger batch that was tried: `memory` (it ran out), `predicted memory` (a CPU's,
    which is not tried to the end), `time` (its step or the whole attempt was predicted to take too long) or
    `error`."""
    fit_peak_bytes: int | None = None
    """GPU: the most that the allocator held at this batch; CPU: peak resident set above what it was before the
    model."""
    fit_free_bytes: int | None = None
    """Free memory before the model was built, of the GPU or, for a CPU, of the machine or container."""
    fit_step_s: float | None = None
    """Time of a step at this batch, from three steps: rough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationResult:
    """Figures of an ablation step other than its speed."""

    ablation_step: int
    """Ladder: how many working ablation steps are below it, 0 for fp32."""
    loader_ms: float
    """Ladder: time the loader takes for a batch when nothing else runs, after what was ready has been used up."""
    wait_pct: Signed
    """Ladder: share of the timed steps in which the host waited for the loader to make a batch and to be handed it,
    copies to the device apart; on a CPU the prefetcher's thread is waited for, which also normalises."""
    steps_per_epoch: int
    """Ladder: whole batches in an epoch of the samples that are trained on, without the suite's `validation_share`;
    of random samples what the suite says."""
    loader_limited: bool
    """Ladder: yes where the host waits for batches not made yet for 10 % of a continuous run or more: 15 steps of
    this step alone before the timing, each waited for, of which the last ten count, less what it takes to be handed
    a batch that is ready."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Summary of a whole training run."""

    epochs: int
    """Epochs trained."""
    time_per_epoch_s: Positive
    """Median over epochs after the first, which warms up, of the training time, evaluation apart; of one epoch its
    own."""
    total_s: float
    """All epochs, the evaluation in the own precision included."""
    train_samples_per_s: Positive
    """Throughput of training, loading included."""
    train_loss: Diverging
    """Mean training loss of the last epoch."""
    test_loss: Diverging | None
    """Loss on the test set after the last epoch."""
    test_accuracy_pct: float | None
    """Accuracy on the test set after the last epoch; empty for regression."""
    data_wait_pct: float
    """Share of training time that the host waited for batches."""
    test_loss_fp32: Diverging | None = None
    """The same weights evaluated in fp32."""
    test_accuracy_fp32_pct: float | None = None
    """The same weights evaluated in fp32."""
    target_accuracy_pct: Signed | None = None
    """The accuracy that `--target-accuracy` named."""
    time_to_accuracy_s: float | None = None
    """Training time, evaluation apart, to the end of the first epoch that reached the target; empty where none
    did."""
    checkpoint_bytes: int | None = None
    """Size of the weights that the model computes with, without an fp32 master copy."""
    checkpoint_16bit_bytes: int | None = None
    """The same with floating-point weights stored in 16 bits."""
    train_energy_j: float | None = None
    """Energy that the board drew in all epochs' training; of several devices, the sum of their boards'."""
    data_storage: str = ""
    """Where the samples were while training: `device`; `host` memory, or `file`, mapped from the disk, both
    gathered one batch ahead."""
    quality: Signed | None = None
    """The suite's own figure of merit on the test set after the last epoch; empty where it has none."""
    quality_name: str = ""
    """Its name."""
    quality_unit: str = ""
    """Its unit."""
    quality_better: Literal["", "more", "less"] = ""
    """Whether more or less of it is better."""
    quality_margin: Positive | None = None
    """A difference within it does not matter, in its unit."""
    entropy_nats: float | None = None
    """Entropy rate of the source of the samples, in nats a token, where it is known: the least that a model's test
    loss is expected to be."""
    regression: bool | None = None
    """Whether targets are values, so that there is no accuracy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """The forward pass in eval mode, compared with fp32's in the same process."""

    latency_p50_ms: float
    """Inference: median time of the forward pass of one sample in eval mode, waited for."""
    latency_p95_ms: float
    """95th percentile of the same."""
    inference_samples_per_s: Positive
    """Throughput of the forward pass at the batch size, on data already on the device."""
    inference_speedup: Positive | None
    """fp32's time over this precision's, in ABBA rounds within this process; empty for fp32."""
    inference_speedup_low: float | None
    """Lower end of its 95 % interval within this process."""
    inference_speedup_high: float | None
    """Upper end of that interval."""
    inference_rounds: int
    """Rounds that were measured."""
    top1_agreement_pct: float | None
    """Share of random inputs, or of their tokens, for which the largest output is the same one as fp32's, with
    untrained weights unless the suite has others; empty for regression."""
    output_error: Diverging
    """Largest difference of an output from fp32's, over fp32's largest absolute output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """One precision of one trial: a row of trials.csv."""

    precision: Name
    """How numbers were held and multiplied, with its options after a colon; `fp32` is the baseline; of the ladder the
    name of the ablation step, a precision and techniques joined by +."""
    status: Status
    """How the trial ended, see above."""
    detail: str = ""
    """Why the status is not ok: what, the line of the suite's file, and the file within the run's folder that holds all
    that its process printed; of an arm measured alone: why the arms failed together; fit: the batch sizes tried;
    train: that a checkpoint could not be read and training began anew; memory: that the loss was NaN or infinite;
    numerics: the loss of the first and of the last step; all phases but fit and floor: that autocast did not reach the
    model, or which products ran in a narrower type than the precision's."""
    started: str = ""
    """When the trial began, UTC, ISO 8601."""
    wall_s: float | None = None
    """How long the trial took, start-up included."""
    compile_s: float | None = None
    """Time of the steps until none compiled, less that of as many ordinary ones, by torch.compile or by torchao's
    optimizers (floor, speed, energy, train, explain, ladder; inference: the forward pass alone, for batches and for
    single samples). Each arm begins with an empty cache; 0 where another arm of the process had compiled the same."""
    switches: Switches = Switches()
    operations: Operations | None = None
    conversion: Conversion | None = None
    memory: MemoryPeak | None = None
    speed: Speed | None = None
    energy: Energy | None = None
    training: Training | None = None
    inference: Inference | None = None
    ablation: AblationResult | None = None
    fit: Fit | None = None
    values: dict[str, float] = field(default_factory=dict)
    """Figures of metrics that are no other field, by the column that their entry in ``METRICS`` names."""

    def __post_init__(self) -> None:
        if unknown := set(self.values) - {column for metric in METRICS.values() for column in metric.columns}:
            raise ValueError(f"no metric has the column {', '.join(sorted(unknown))} (bench/spec/metrics.py)")


# Rows of the other CSVs.


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A timed run of steps between two synchronisations."""

    trial: Name
    """The trial in trials.csv."""
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
    attempt: Count | None = None
    """Which attempt at the trial wrote the row; it counts if that attempt does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochResult:
    """One epoch of training and the evaluation after it."""

    trial: Name
    """The trial in trials.csv."""
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
    test_loss_fp32: Diverging | None = None
    """The same weights evaluated in fp32."""
    test_accuracy_fp32_pct: float | None = None
    """The same weights evaluated in fp32."""
    energy_j: float | None = None
    """Energy that the board drew while the epoch trained; of several devices, the sum of their boards'."""
    train_accuracy_pct: float | None = None
    """Accuracy after the epoch, in the own precision, on as many training images as there are test images, 2,000 at
    most: always the same, not augmented; in no time of this row."""
    start_s: float | None = None
    """When its training began, seconds since 1970, on the clock of telemetry.csv."""
    figures: dict[str, float | None] = field(default_factory=dict)
    """Figures of the suite's own `evaluate` on the test set, as a JSON object; null is one that is not finite."""
    attempt: Count | None = None
    """Which attempt at the trial wrote the row; it counts if that attempt does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numeric:
    """One figure of the numerics phase: long form, for there are as many as a model has layers."""

    trial: Name
    """The trial in trials.csv."""
    precision: Name
    """The precision trained in."""
    kind: Kind
    """The kind of figure, see below."""
    step: int
    """From 0."""
    layer: str
    """Layer, or the model's child that holds the parameters; empty is the whole model."""
    name: str
    """Which figure of its kind, see below."""
    value: Diverging
    """The figure."""
    attempt: Count | None = None
    """Which attempt at the trial wrote the row; it counts if that attempt does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One figure of the explain phase, in long form."""

    trial: Name
    """The trial in trials.csv."""
    precision: Name
    """The precision whose step it is about."""
    kind: Finding
    """The kind of figure, see below."""
    name: Name
    """Which figure of its kind, see below."""
    round: int | None = None
    """The round in which it was measured, from 0, where rounds repeat it."""
    work: Literal["", WorkClass] = ""
    """Class of work of an operator."""
    detail: str = ""
    """Types and sizes of the operands of an operator in the step; of a product alone its first module."""
    count: float | None = None
    """Times in a step, of an operator; of a product in another layout or with padded sizes its share of the FLOPs."""
    value: float
    """The figure."""
    attempt: Count | None = None
    """Which attempt at the trial wrote the row; it counts if that attempt does."""


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
    foreign_processes: int | None = None
    """Processes on the GPU that are not this run's."""


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
    """The generation that tables group by, such as Hopper, or the CPU's widest matrix instructions."""
    compute_capability: str | None = None
    """CUDA compute capability as major.minor."""
    memory_total_bytes: int | None = None
    uuid: str | None = None
    """The GPU's UUID, which is what NVML and CUDA have in common."""
    names: tuple[str, ...] = ()
    """Of devices that train together, their different names."""
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
    """Whether it multiplies bfloat16 in hardware, by torch's word without emulation; None: unknown."""
    energy: str | None = None
    """Where a GPU's energy is read from: ``counter``, or ``power`` where the GPU reports only power; None: unknown."""
    unsupported: dict[str, str] | None = None
    """The precisions that this device or build cannot do, each with the reason."""
    lacking: tuple[str, ...] = ()
    """Those of them whose arithmetic the device itself lacks, whatever were installed."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, of whatever vendor."""
        return self.kind != "cpu"

    @staticmethod
    def joint(devices: Sequence[Device]) -> Device:
        """Return devices that train together as one; fields that only a single board has become None."""
        natives = {device.native_bf16 for device in devices}
        first, names = devices[0], tuple(dict.fromkeys(device.name for device in devices))
        memory = [device.memory_total_bytes for device in devices]
        reasons = {name: why for device in devices for name, why in (device.unsupported or {}).items()}
        return replace(
            first,
            placement="+".join(device.placement for device in devices),
            name=f"{len(devices)} × {names[0]}" if len(names) == 1 and first.is_gpu else " + ".join(names),
            names=names,
            architecture=" + ".join(dict.fromkeys(device.architecture for device in devices)),
            memory_total_bytes=sum(size or 0 for size in memory) if all(memory) else None,
            fp32_gflops=min((device.fp32_gflops for device in devices if device.fp32_gflops), default=None),
            bf16_gflops=min((device.bf16_gflops for device in devices if device.bf16_gflops), default=None),
            native_bf16=None if None in natives else all(natives),
            uuid=None,
            uuids=(),
            power_limit_w=None,
            power_default_w=None,
            energy=None,
            lacking=tuple(dict.fromkeys(name for device in devices for name in device.lacking)),
            unsupported={**reasons, **{name: p.single_device for name, p in PRECISIONS.items() if p.single_device}},
        )

    def uuid_of(self, rank: int, ranks: int) -> str | None:
        """Return the UUID of the GPU of one of ``ranks`` processes; None where it is unknown from here."""
        return self.uuids[rank] if len(self.uuids) == ranks > 1 else self.uuid

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
    """The type of its accelerator, as ``--accelerators`` takes it."""
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
    """Environment variables that override how fp32 is multiplied, unset for the run, as NAME=VALUE."""
    variables: tuple[str, ...] = ()
    """Other environment variables that may change figures, as NAME=VALUE."""
    left_out: tuple[str, ...] = ()
    """For each visible GPU that nobody named and that this torch build has no kernels for, a sentence."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The last word of a process that did what it was asked to."""

    value: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The last word of a process that could not."""

    kind: Literal["usage", "unsupported", "oom", "import", "error"]
    """Something that the user can mend, that this device or suite cannot do, a lack of memory, a library that no
    process can import, or anything else."""
    text: str
    secondary: bool = False
    """Whether the error reports the loss of another rank, whose own error may not have arrived yet."""


Message = Progress | Block | EpochResult | Numeric | Explained | TrialResult
