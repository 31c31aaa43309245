"""The registry of techniques: what changes speed or memory at equal arithmetic.

``--techniques`` gives them to every precision. An ablation adds them to fp32 one by one, in the
order that usually makes a training loop faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.spec.errors import UsageError, unknown
from bench.spec.phases import PHASES
from bench.spec.precisions import BASELINE


@dataclass(frozen=True, kw_only=True, slots=True)
class Technique:
    """One technique, and where it cannot be used whatever the suite."""

    name: str
    """Its canonical name; with underscores, the field of ``Techniques`` that it sets."""
    summary: str
    needs_gpu: str = ""
    """Why it needs a GPU; empty where a CPU will do."""
    devices: Literal["any", "one", "several"] = "any"
    """On how many devices that train together it is offered."""
    clashes: Mapping[str, str] = field(default_factory=dict)
    """Techniques that it cannot be combined with, each with the reason."""
    values: tuple[str, ...] = ()
    """Words that may follow its name and ``=``."""
    implied: bool = False
    """Whether every run has it anyway, apart from an ablation's first steps."""
    input_pipeline: bool = False
    """Whether it is about batches on their way to the device."""


# By name, in the order in which names are canonical, and an ablation adds them.
TECHNIQUES: dict[str, Technique] = {
    technique.name: technique
    for technique in (
        Technique(
            name="set-to-none",
            summary=(
                "gradients are dropped, not zeroed, before each step (on already, as in torch "
                "itself)"
            ),
            implied=True,
        ),
        Technique(
            name="non-blocking",
            summary="batches are copied from pinned memory, without waiting for the copy",
            needs_gpu=(
                "non-blocking copies go to a GPU from memory that is pinned for it; on a CPU "
                "nothing is copied"
            ),
            input_pipeline=True,
        ),
        Technique(
            name="prefetcher",
            summary=(
                "the next batch is copied, cast and normalised during the step: on a CUDA stream, "
                "or a thread"
            ),
            input_pipeline=True,
        ),
        Technique(
            name="channels-last",
            summary="images and convolutions' weights lie in memory channel by channel (NHWC)",
        ),
        Technique(
            name="fused-optimizer",
            summary="the optimizer updates all parameters in one kernel",
        ),
        Technique(
            name="compile",
            summary="torch.compile; the time to compile is a figure of its own",
            devices="one",
            values=("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        ),
        Technique(
            name="cuda-graphs",
            summary=(
                "the step is captured once, and replayed without launching its kernels one by one"
            ),
            needs_gpu="cuda-graphs needs a CUDA device",
            devices="one",
            clashes={
                "checkpointing": (
                    "checkpointing saves and restores the random generator's state, which no "
                    "captured graph can do"
                ),
                "compile=reduce-overhead": "compile=reduce-overhead captures its own CUDA graphs",
                "compile=max-autotune": "compile=max-autotune captures its own CUDA graphs",
            },
        ),
        Technique(
            name="grad-accumulation",
            summary="gradients of N parts of the batch are added up before the optimizer's step",
            devices="one",
        ),
        Technique(
            name="checkpointing",
            summary="activations are computed again in backward instead of kept",
            devices="one",
        ),
        Technique(
            name="sync-bn",
            summary="batch norm's statistics are taken over all devices that train together",
            needs_gpu="sync-bn is torch's SyncBatchNorm, which needs GPUs",
            devices="several",
        ),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Techniques:
    """Which techniques an arm uses."""

    set_to_none: bool = True
    """On, as in torch; only the ablation's first steps zero gradients."""
    non_blocking: bool = False
    prefetcher: bool = False
    channels_last: bool = False
    fused_optimizer: bool = False
    compile: bool | str = False
    """Whether the model is compiled; a word is the mode of torch.compile."""
    cuda_graphs: bool = False
    grad_accumulation: int = 1
    """Parts that each batch is cut into."""
    checkpointing: bool = False
    sync_bn: bool = False

    @property
    def hidden(self) -> bool:
        """Whether a step's operations cannot be observed one by one."""
        return bool(self.compile) or self.cuda_graphs


# The defaults of torch.
PLAIN = Techniques()
# The ablation's first steps zero gradients and copy batches from pageable memory, blocking.
ZEROED = Techniques(set_to_none=False)


def find(name: str) -> Technique:
    """Return the technique that a canonical name such as ``grad-accumulation=4`` names."""
    return TECHNIQUES[name.partition("=")[0]]


def refusal(names: tuple[str, ...], kind: str, phase: str, devices: int = 1) -> str | None:
    """Return why a phase cannot be measured with techniques in any suite; None if it can.

    Args:
        names: canonical names.
        kind: the kind of device, cuda or cpu.
        phase: the phase of the trial.
        devices: how many train together.
    """
    if devices > 1 and not PHASES[phase].joint:
        return "it is not measured on devices that train together"
    for technique in map(find, names):
        if devices > 1 and technique.devices == "one":
            return f"{technique.name} is not offered on devices that train together"
        if kind == "cpu" and technique.needs_gpu:
            return technique.needs_gpu
        for other, reason in technique.clashes.items():
            if other in names:
                return reason
        if technique.name in PHASES[phase].refuses:
            return PHASES[phase].refuses[technique.name]
    return None


def for_one_device(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return techniques without those that are offered on several devices only."""
    return tuple(name for name in names if find(name).devices != "several")


def parse_techniques(text: str) -> tuple[str, ...]:
    """Return the canonical names in a list such as ``channels-last,compile``, in one order.

    Raises:
        UsageError: a name is unknown, its value is none that it can have, or it has two.
    """
    chosen: dict[str, str] = {}
    for word in text.split(","):
        name, equals, value = word.strip().partition("=")
        if name not in TECHNIQUES:
            raise unknown("technique", name, TECHNIQUES)
        values = TECHNIQUES[name].values
        if name == "grad-accumulation":
            if not re.fullmatch(r"[1-9]\d{0,8}", value) or value == "1":
                raise UsageError(
                    f"{name} takes the number of parts of a batch, above 1, as in {name}=4."
                )
        elif equals and value not in values:
            allowed = "without a value"
            if values:
                allowed = f"alone, or with one of {', '.join(values)}"
            raise UsageError(f"{name} is given {allowed}, not with '{value}'.")
        canonical = f"{name}={value}" if value else name
        if chosen.setdefault(name, canonical) != canonical:
            raise UsageError(f"{chosen[name]} and {canonical} say two things: give one of the two.")
    return tuple(chosen[name] for name in TECHNIQUES if name in chosen)


def techniques(names: tuple[str, ...], base: Techniques = PLAIN) -> Techniques:
    """Return the techniques that canonical names switch on, on top of ``base``."""
    changed = {}
    for word in names:
        name, _, value = word.partition("=")
        setting: bool | int | str = value or True
        if value.isdigit():
            setting = int(value)
        changed[name.replace("-", "_")] = setting
    return replace(base, **changed)  # type: ignore[arg-type]  # names are fields'


# The techniques that every ablation adds to mixed precision.
FIXED = ("set-to-none", "non-blocking", "prefetcher")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmSpec:
    """One arm of a trial: a precision, and in an ablation the techniques added to it so far."""

    precision: str
    techniques: tuple[str, ...] = ()
    """Canonical names, in the order in which they were added."""

    @property
    def name(self) -> str:
        """Its name in CSVs: amp-bf16+set-to-none+prefetcher."""
        return "+".join((self.precision, *self.techniques))

    @property
    def added(self) -> str:
        """Its addition to the step before, for a reader."""
        return f"+ {self.techniques[-1]}" if self.techniques else self.precision

    @property
    def rank(self) -> int:
        """Its position among all steps that an ablation may have, unsupported ones included."""
        if not self.techniques:
            return int(self.precision != BASELINE)
        return 2 + list(TECHNIQUES).index(find(self.techniques[-1]).name)

    @property
    def previous(self) -> ArmSpec | None:
        """The step that it adds to; None for fp32."""
        if self.techniques:
            return replace(self, techniques=self.techniques[:-1])
        return None if self.precision == BASELINE else ArmSpec(precision=BASELINE)

    def without(self, failed: Sequence[ArmSpec]) -> ArmSpec:
        """Return this step without what failed steps add.

        It is on fp32 where its precision failed and fp32 did not.
        """
        dropped = set()
        precisions = set()
        for step in failed:
            if step.techniques:
                dropped.add(step.techniques[-1])
            else:
                precisions.add(step.precision)
        precision = self.precision
        if self.techniques and precision in precisions and BASELINE not in precisions:
            precision = BASELINE
        kept = tuple(name for name in self.techniques if name not in dropped)
        return ArmSpec(precision=precision, techniques=kept)
