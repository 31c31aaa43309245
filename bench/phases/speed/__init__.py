"""Time of a training step: all precisions of a cell in one process, in ABBA rounds."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from bench.results.records import (
    Block,
    Derived,
    DerivedCount,
    Diverging,
    Operations,
    Positive,
    TrialResult,
)
from bench.spec.metric import Metric
from bench.spec.phase import Phase
from bench.spec.precisions import unexpected_types_in_words

if TYPE_CHECKING:
    from bench.stats import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Speed of one arm, from the ABBA rounds of one process."""

    steady: bool
    """Whether step times had settled when warm-up ended."""
    warmup_steps: int
    """Steps of warm-up."""
    switch_warmup_steps: int
    """Steps run untimed at the head of each block, after the switch of precisions."""
    samples_per_step: Positive = 1.0
    """Samples in a step, of all devices; of a script a step is one."""
    tokens_per_sample: int | None = None
    """Length of a sample, where samples are sequences of tokens."""
    block_steps: DerivedCount = None
    """Steps timed in each block."""
    paired: bool = True
    """Whether baseline and precision were measured together in one process."""
    rounds: DerivedCount = None
    """Groups of blocks, each with two blocks of every arm in an order that cancels drift (with two
    arms ABBA or BAAB)."""
    step_ms: Derived = None
    """Median over blocks of the time per step."""
    samples_per_s: Derived = None
    """Throughput of the step, on data already on the device."""
    tokens_per_s: Derived = None
    """Tokens a second, where samples are sequences of them."""
    log_speedup: Derived = None
    """Logarithm of the baseline's time over this precision's, a trimmed mean over the rounds of
    this process; empty for the baseline and where not paired."""
    log_speedup_error: Derived = None
    """Its standard error over the rounds; empty of a single one."""
    skipped_steps: DerivedCount = None
    """Optimizer steps that the GradScaler skipped, in the switch warm-up or timed."""
    host_ratio: float | None = None
    """GPU: host time to queue one step over its time on the GPU, of several GPUs the largest; near
    1 or above, launching limits the speed. The first process of a cell alone measures it, since
    further ones would spend time and learn little; it is empty in theirs, where a GradScaler waits
    for the GPU in each step, and where steps are long."""
    disturbance: str = ""
    """What disturbed the device while timing, or empty: heat that held its clocks down or another
    program that computed for a twentieth of the time or more, a compilation, a GPU that was
    lost."""
    power_capped: bool | None = None
    """GPU: whether the driver named the power limit as a reason for the clocks while timing."""
    foreign_load_pct: float | None = None
    """CPU: share of the machine's cores that other programs took while timing."""
    switches_per_s: float | None = None
    """How often a second the system took a core from the process while timing (`ru_nivcsw`)."""
    tflops: Derived = None
    """`flops_per_step` over the time of a step."""
    script_wait_pct: float | None = None
    """Of a script: share of a step in which it waited for its DataLoader."""
    script_loss: Diverging | None = None
    """Of a script: mean loss of the measured steps, summed over accumulated parts."""

    @property
    def timed_s(self) -> float:
        """Return how long the arm's timed steps took, all rounds together."""
        return 2 * (self.rounds or 0) * (self.block_steps or 0) * (self.step_ms or 0.0) / 1e3

    def log_gain(self) -> Interval | None:
        """Return the log-speedup with its interval over the rounds; None of an arm without one."""
        from bench.stats import of_rounds  # with numpy, which planning does without

        if self.log_speedup is None:
            return None
        return of_rounds(self.log_speedup, self.log_speedup_error or 0.0, self.rounds or 1)


# Most characters of a detail on the terminal; its row has the rest.
LONGEST = 120


def derive(rows: Any, details: Any, label: str = "") -> Any:
    """Return rows with the figures of their blocks (``bench.phases.speed.figures``)."""
    from bench.phases.speed import figures  # with pandas, which planning does without

    return figures.derive(rows, details, label)


def describe(result: TrialResult) -> str:
    """Return an arm's line on the terminal; without a time, its status with the detail."""
    speed = result.row
    name = result.arm
    if speed.step_ms is None:
        return ": ".join(filter(None, (f"{name} {result.status}", result.detail)))
    line = f"{name} {speed.step_ms:.4g} ms"
    gain = speed.log_gain()
    if gain:
        line += with_interval(*gain.exp().ends)
    if result.status == "unconverged":
        line += " (unconverged)"
    seen = result.operations or Operations()
    types = unexpected_types_in_words(name, seen.compute_dtypes, seen.other_modules)
    if types:
        line += f", but {types}"
    # The detail of a suite's row begins with the same words.
    detail = result.detail.removeprefix(types).strip("; ")
    if detail:
        line += f" ({shorten(detail, LONGEST)})"
    return line


def with_interval(center: float | None, low: float | None, high: float | None) -> str:
    """Return a speedup with its interval, to be appended to a figure; empty where there is none."""
    if center is None or low is None or high is None:
        return ""
    return f", {center:.3f}× as fast [{low:.3f}, {high:.3f}]"


def is_enough(last: Any, measured: Any) -> bool:
    """Return whether a cell's processes are enough (``bench.phases.speed.processes``)."""
    from bench.phases.speed import processes  # with scipy

    return processes.is_enough(last, measured)


def conduct(trial: Any, session: Any) -> None:
    """Measure a trial's arms together, or apart (``bench.phases.speed.apart``)."""
    # bench.spec.trial, which it imports, imports bench.spec.phases, and that this module.
    from bench.phases.speed import apart

    apart.conduct(trial, session)


METRICS = (
    Metric(
        name="speed",
        phase="speed",
        place=0,
        label="step time",
        unit="ms",
        about="Time of a step: median over processes.",
        columns=("step_ms",),
        gain="log_speedup",
        has_noise=True,
        change="speedup",
        tabled=True,
    ),
    Metric(
        name="throughput",
        phase="speed",
        place=1,
        label="throughput",
        unit="samples/s",
        about="Throughput of the step: median over processes.",
        columns=("samples_per_s",),
        gain="log_speedup",
        better="more",
        has_noise=True,
        change="speedup",
        compared=False,
        tabled=True,
    ),
    Metric(
        name="script_wait",
        phase="speed",
        place=2,
        label="wait for data",
        unit="points",
        about=(
            "Share, in per cent, of a training script's step in which it waited for its DataLoader."
        ),
        columns=("script_wait_pct",),
        scale="difference",
        margin=5.0,
        compared=False,
        tabled=True,
    ),
    Metric(
        name="script_loss",
        phase="speed",
        place=3,
        label="loss",
        unit="",
        about=(
            "Mean loss of a training script's measured steps, summed over accumulated parts; no "
            "accuracy."
        ),
        columns=("script_loss",),
        scale="difference",
        compared=False,
        decimals=4,
    ),
)
PHASE = Phase(
    name="speed",
    order=40,
    summary="time of a training step, all precisions in one process",
    row=Speed,
    details={Block: "blocks.csv"},
    metrics=METRICS,
    summarised={
        "rounds": "sum",
        "foreign_load_pct": "max",
        "compute_dtypes": "first",
        "attention": "first",
        "tokens_per_s": "median",
        "flops_per_step": "median",
        "tflops": "median",
        "host_ratio": "first",
        "block_steps": "median",
        "compile_s": "median",
    },
    derive=derive,
    describe=describe,
    key="replicate",
    is_enough=is_enough,
    conduct=conduct,
    grouping="together",
    default=True,
    joint=True,
    estimate=lambda work: work.arms * work.rounds_s,
)
