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
    refused: dict[str, str] = {}
    for device in reversed(devices):  # the sentence is about the first
        reasons = {name: unsupported_reason(device, name) for name in names}
        refused = {name: reason for name, reason in reasons.items() if reason}
        if len(names) - len(refused) >= min(2, len(names)):
            return
    able = ", ".join(name for name in PRECISIONS if not unsupported_reason(devices[0], name))
    reasons_given = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    raise UsageError(
        f"Nothing can be compared: {devices[0].name} cannot do {reasons_given}. It can do: {able}."
    )


def unsupported_reason(device: Device, name: str) -> str | None:
    """Return why a device does not support a precision; None if it does."""
    precision = find_precision(name)
    if precision is None:  # a free word: an arm of a training script
        return None
    return (device.unsupported or {}).get(precision.base)


def best_mixed(device: Device) -> str:
    """Return the mixed precision that a device should gain most by: bf16, which needs no loss scaling, else fp16."""
    return "amp-fp16" if unsupported_reason(device, "amp-bf16") else "amp-bf16"


def is_emulated(device: Device, name: str) -> bool:
    """Return whether a CPU emulates a precision: its products take more than twice as long as fp32's.

    Such a precision cannot gain, and its steps may take minutes: it is measured once where they are
    short, and else where ``--precisions`` names it.
    """
    if parse_precision(name).compute != "bfloat16" or unsupported_reason(device, name):
        return False
    if not device.bf16_gflops or not device.fp32_gflops:
        return False
    return device.bf16_gflops < device.fp32_gflops / 2


def refusal_reason(trial: Trial, device: Device) -> str | None:
    """Return why a device can measure none of a trial's arms; None if it can measure some."""
    cell, first = trial.cell, None
    for arm in trial.arms:
        names = (*cell.techniques, *arm.techniques)
        reason = refusal(names, device.kind, trial.phase, len(cell.placement.members))
        reason = reason or unsupported_reason(device, arm.precision)
        first = first or reason
        if reason is None:
            return None
    return first
