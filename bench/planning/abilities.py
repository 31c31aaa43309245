"""What a device can measure, and the sentence that says why not."""

from __future__ import annotations

from bench.results.records import Device
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.precisions import BASELINE, PRECISIONS, find_precision, parse_precision
from bench.spec.request import Request
from bench.spec.techniques import refusal
from bench.spec.trial import Trial

EMULATED = "amp-bf16"
TENSOR_CORES = (7, 0)
"""The first compute capability with tensor cores."""


def require_supported(request: Request, devices: tuple[Device, ...]) -> None:
    """Refuse a request none of whose precisions any device supports.

    Raises:
        UsageError: it is one.
    """
    names = request.precisions or (BASELINE,)
    if any(unsupported_reason(device, name) is None for device in devices for name in names):
        return
    raise UsageError(_cannot_do(devices[0], names))


def without_a_pair(request: Request, devices: tuple[Device, ...]) -> list[str]:
    """Return a sentence for each device on which no two of the named precisions can be compared."""
    names = tuple(dict(request.script.arms)) if request.script else request.precisions or ()
    sentences = []
    for device in devices:
        refused = tuple(name for name in names if unsupported_reason(device, name))
        if refused and len(names) > 1 and len(names) - len(refused) < 2:
            sentences.append(_cannot_do(device, refused))
    return sentences


def _cannot_do(device: Device, names: tuple[str, ...]) -> str:
    reasons = "; ".join(f"{name}: {unsupported_reason(device, name)}" for name in names)
    rest = ", ".join(name for name in PRECISIONS if not unsupported_reason(device, name))
    return f"{device.name} cannot do {reasons}. It can do: {rest}."


def unsupported_reason(device: Device, name: str, phase: str | None = None) -> str | None:
    """Return why a device does not support a precision in a phase; None if it does.

    An emulated precision has no figures in phases that are about what steps cost.
    """
    if (precision := find_precision(name)) is None:  # a free word: an arm of a training script
        return None
    if reason := (device.unsupported or {}).get(precision.ability):
        return reason
    if precision.emulated and phase is not None and not PHASES[phase].arithmetic:
        whole = ", ".join(name for name, each in PHASES.items() if each.arithmetic)
        return f"it is emulated: what it does to numbers is measured ({whole}), and what that costs means nothing"
    return None


def best_mixed(device: Device) -> str:
    """Return the mixed precision that a device should gain most by: bf16, which needs no loss scaling, else fp16."""
    return "amp-fp16" if unsupported_reason(device, "amp-bf16") else "amp-bf16"


def lacks_tensor_cores(device: Device) -> bool:
    """Return whether a GPU is known to have no tensor cores: there a 16-bit type saves memory, and little time."""
    capability = device.compute_capability
    return capability is not None and tuple(int(part) for part in capability.split(".")) < TENSOR_CORES


def is_emulated(device: Device, name: str) -> bool:
    """Return whether a CPU emulates a precision: its products take more than twice as long as fp32's.

    Such a precision cannot gain, and its steps may take minutes: it is measured once where they are short, and else
    where ``--precisions`` names it.
    """
    if parse_precision(name).compute != "bfloat16" or unsupported_reason(device, name):
        return False
    if not device.bf16_gflops or not device.fp32_gflops:
        return False
    return device.bf16_gflops < device.fp32_gflops / 2


def refusal_reason(trial: Trial, device: Device) -> str | None:
    """Return why a device can measure none of a trial's arms; None if it can measure some."""
    cell = trial.cell
    reasons = [
        refusal((*cell.techniques, *arm.techniques), device.kind, trial.phase, len(cell.placement.members))
        or unsupported_reason(device, arm.precision, trial.phase)
        for arm in trial.arms
    ]
    return reasons[0] if all(reasons) else None
