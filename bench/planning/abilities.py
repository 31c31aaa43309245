"""What a device can measure, and the sentence that says why not."""

from __future__ import annotations

from bench.results.records import Device
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS, find_precision, parse_precision
from bench.spec.techniques import refusal
from bench.spec.trial import Trial

EMULATED = "amp-bf16"


def require_comparable(names: tuple[str, ...], devices: tuple[Device, ...]) -> None:
    """Refuse precisions of which no device supports two that can be compared, or the only one.

    Raises:
        UsageError: they are such.
    """
    fewest = min(2, len(names))
    for device in devices:
        supported = [name for name in names if unsupported_reason(device, name) is None]
        if len(supported) >= fewest:
            return
    # The sentence is about one device, which stands for the others.
    first = devices[0]
    able = []
    refused = []
    for name in dict.fromkeys((*PRECISIONS, *names)):
        reason = unsupported_reason(first, name)
        if reason is None:
            able.append(name)
        elif name in names:
            refused.append(f"{name}: {reason}")
    raise UsageError(
        f"Nothing can be compared: {first.name} cannot do {'; '.join(refused)}. It can do: "
        f"{', '.join(able)}."
    )


def unsupported_reason(device: Device, name: str) -> str | None:
    """Return why a device does not support a precision; None if it does."""
    precision = find_precision(name)
    if precision is None:  # a free word: an arm of a training script
        return None
    return (device.unsupported or {}).get(precision.base)


def best_mixed(device: Device) -> str:
    """Return the mixed precision that a device should gain most by."""
    # bfloat16 needs no loss scaling.
    if unsupported_reason(device, "amp-bf16"):
        return "amp-fp16"
    return "amp-bf16"


def is_emulated(device: Device, name: str) -> bool:
    """Return whether a CPU emulates a precision.

    It does where products take more than twice as long as fp32's. Such a precision cannot gain, and
    its steps may take minutes: it is measured once where they are short, and else where
    ``--precisions`` names it.
    """
    if parse_precision(name).compute != "bfloat16" or unsupported_reason(device, name):
        return False
    if not device.bf16_gflops or not device.fp32_gflops:  # a rate that could not be measured
        return False
    return device.bf16_gflops < device.fp32_gflops / 2


def refusal_reason(trial: Trial, device: Device) -> str | None:
    """Return why a device can measure none of a trial's arms; None if it can measure some."""
    members = len(trial.cell.placement.members)
    reasons = []
    for arm in trial.arms:
        names = (*trial.cell.techniques, *arm.techniques)
        refused = refusal(names, device.kind, trial.phase, members)
        reason = refused or unsupported_reason(device, arm.precision)
        if reason is None:
            return None
        reasons.append(reason)
    return reasons[0]
