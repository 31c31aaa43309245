"""From words to techniques: whatever changes speed or memory at equal arithmetic, as in ``channels-last,compile``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.spec.errors import UsageError, nearest

TECHNIQUES: dict[str, str] = {
    "set-to-none": "gradients are dropped, not zeroed, before each step (on already, as in torch itself)",
    "non-blocking": "batches are copied from pinned memory, without waiting for the copy",
    "prefetcher": "the next batch is copied, cast and normalised beside the step: on a CUDA stream, or a thread",
    "channels-last": "images and convolutions' weights lie in memory channel by channel (NHWC)",
    "fused-optimizer": "the optimizer updates all parameters in one kernel",
    "compile": "torch.compile; what it takes to compile is told apart",
    "cuda-graphs": "the step is captured once, and replayed without launching its kernels one by one",
    "grad-accumulation": "gradients of N parts of the batch are added up before the optimizer's step",
    "checkpointing": "activations are computed again in backward instead of kept",
    "sync-bn": "batch norm's statistics are taken over all devices that train together",
    "bf16-allreduce": "gradients are sent to the other devices as bfloat16",
}
"""By name, each with its summary, in the order in which names are canonical."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Techniques:
    """Which techniques an arm uses."""

    set_to_none: bool = True
    """On, as in torch; only the ladder's first rungs zero gradients."""
    non_blocking: bool = False
    prefetcher: bool = False
    channels_last: bool = False
    fused_optimizer: bool = False
    compile: bool = False
    cuda_graphs: bool = False
    grad_accumulation: int = 1
    """Parts that each batch is cut into."""
    checkpointing: bool = False
    sync_bn: bool = False
    bf16_allreduce: bool = False

    @property
    def hidden(self) -> bool:
        """Whether a step's operations cannot be watched one by one."""
        return self.compile or self.cuda_graphs


PLAIN = Techniques()
"""What everybody does anyway."""
NEEDS_CUDA = {
    "non-blocking": "non-blocking copies go to a GPU from memory that is pinned for it; on a CPU nothing is copied",
    "cuda-graphs": "cuda-graphs needs a CUDA device",
}
TOGETHER = ("sync-bn", "bf16-allreduce")
"""Those that are about devices that train together."""
JOINED_PHASES = ("memory", "floor", "speed", "energy", "train")
"""What is measured on devices that train together."""
ALONE = ("compile", "cuda-graphs", "grad-accumulation", "checkpointing")
"""Those that DistributedDataParallel is not offered with."""
NOT_IN_PHASE = {
    ("compile", "numerics"): "numerics looks between the layers, which compile fuses",
    ("cuda-graphs", "numerics"): "numerics looks at every step's layers, which a captured graph does not show",
    ("cuda-graphs", "inference"): "cuda-graphs captures the training step, and inference has none",
}
IMPLIED = ("set-to-none",)
"""Those that change nothing but in the ladder, whose first rungs are without them."""
CLASH = ("cuda-graphs", "checkpointing")
DATA = ("non-blocking", "prefetcher")
"""Those that are about batches on their way to the device."""


def refusal(names: tuple[str, ...], kind: str, phase: str, devices: int = 1) -> str | None:
    """Say why a phase cannot be measured with some techniques, whatever the suite; None where nothing is against it.

    Args:
        names: canonical names.
        kind: the kind of device, cuda or cpu.
        phase: the phase of the trial.
        devices: how many train together.
    """
    if devices > 1 and phase not in JOINED_PHASES:
        return "it is not measured on devices that train together"
    if devices == 1 and (alone := [name for name in names if name in TOGETHER]):
        return f"{alone[0]} is for devices that train together, such as --gpus 0+1"
    if devices > 1 and (single := [name for word in names if (name := word.partition("=")[0]) in ALONE]):
        return f"{single[0]} is not offered on devices that train together"
    if kind == "cpu" and (lacking := [why for name, why in NEEDS_CUDA.items() if name in names]):
        return lacking[0]
    if set(CLASH) <= set(names):
        return "checkpointing saves and restores the random generator's state, which no captured graph can do"
    return next((why for (name, where), why in NOT_IN_PHASE.items() if name in names and where == phase), None)


def for_one_device(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return techniques without those that are about devices that train together."""
    return tuple(name for name in names if name not in TOGETHER)


def parse_techniques(text: str) -> tuple[str, ...]:
    """Return the canonical names in a list such as ``channels-last,grad-accumulation=4``, in one order.

    Raises:
        UsageError: a name is unknown, its number is none, or it has two.
    """
    found: dict[str, str] = {}
    for word in (part.strip() for part in text.split(",")):
        name, equals, value = word.partition("=")
        if name not in TECHNIQUES:
            known = ", ".join(TECHNIQUES)
            raise UsageError(f"There is no technique '{name}'.{nearest(name, TECHNIQUES)} Available: {known}.")
        if name == "grad-accumulation":
            if not (value.isascii() and value.isdigit() and int(value) > 1):
                raise UsageError(f"grad-accumulation must be a whole number above 1, as in {name}=4, not '{value}'.")
        elif equals:
            raise UsageError(f"{name} takes no value, so '={value}' means nothing.")
        chosen = f"{name}={int(value)}" if value else name
        if found.setdefault(name, chosen) != chosen:
            raise UsageError(f"{found[name]} and {chosen} say two things: give one of the two.")
    return tuple(found[name] for name in TECHNIQUES if name in found)


def techniques(names: tuple[str, ...], base: Techniques = PLAIN) -> Techniques:
    """Return the techniques that canonical names switch on, on top of ``base``."""
    changed: dict[str, bool | int] = {}
    for word in names:
        name, _, value = word.partition("=")
        changed[name.replace("-", "_")] = int(value) if value else True
    return replace(base, **changed)  # type: ignore[arg-type]  # names are fields'
