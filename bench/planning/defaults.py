"""What is measured where the request names nothing, and what a device cannot measure."""

from __future__ import annotations

from dataclasses import dataclass

from bench.results.records import Device
from bench.spec.phases import LADDER, PHASES
from bench.spec.precisions import BASELINE, PRECISIONS, parse_precision
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import refusal
from bench.spec.trial import DataSource, Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What is known about a suite's data before anything runs."""

    source: DataSource
    classes: int | None = None
    train_samples: int | None = None
    """None for synthetic data, whose number of batches is the suite's."""
    fingerprint: str | None = None
    """Identifies a folder's images on every machine; None for data that are the same everywhere."""


def choose_source(suite: Suite, request: Request) -> DataSource:
    """Return where a suite's data come from: the request's source, if the suite can use it, else the suite's."""
    named = request.data if suite.data.is_image else "synthetic"
    return DataSource.parse(named or suite.data.source, request.data_dir, elsewhere=request.on is not None)


def choose_precisions(request: Request, device: Device) -> tuple[str, ...]:
    """Return the precisions to compare on a device, the baseline first; unsupported ones get a row with the reason."""
    names = dict.fromkeys(request.precisions or default_precisions(device))
    return tuple(sorted(names, key=lambda name: name != BASELINE))


def default_precisions(device: Device) -> tuple[str, ...]:
    """Return the precisions compared where none is named: those that the device may gain by."""
    names = [name for name, precision in PRECISIONS.items() if device.kind in precision.default_on]
    return tuple(name for name in names if not unsupported_reason(device, name) and not is_emulated(device, name))


def unsupported_reason(device: Device, name: str) -> str | None:
    """Return why a device does not support a precision; None if it does."""
    return (device.unsupported or {}).get(parse_precision(name).base)


def refusal_reason(trial: Trial, device: Device) -> str | None:
    """Return why a device can measure none of a trial's arms; None if it can measure some."""
    cell = trial.cell
    reasons = [
        refusal((*cell.techniques, *arm.techniques), device.kind, trial.phase, len(cell.placement.members))
        or unsupported_reason(device, arm.precision)
        for arm in trial.arms
    ]
    return reasons[0] if all(reasons) else None


def is_emulated(device: Device, name: str) -> bool:
    """Return whether a CPU emulates a precision: its products take more than twice as long as fp32's.

    Such a precision cannot gain, and its steps may take minutes: it is measured only where ``--precisions`` names it.
    """
    if parse_precision(name).compute != "bfloat16" or unsupported_reason(device, name):
        return False
    if not device.bf16_gflops or not device.fp32_gflops:
        return False
    return device.bf16_gflops < device.fp32_gflops / 2


def choose_batch_sizes(suite: Suite, request: Request, device: Device, phase: str) -> tuple[int, ...]:
    """Return the batch sizes of a phase: the request's, else the suite's sweep, or its recipe's for training."""
    if any(name == "batch_size" for name, _ in request.sweep):
        return (suite.batch_size,)
    if request.batch_sizes or (request.largest_batch and not PHASES[phase].recipe_batch):
        return request.batch_sizes or ()
    if PHASES[phase].recipe_batch:
        return (suite.batch_size,)
    sizes = suite.cpu_batch_sizes if device.kind == "cpu" else ()
    if phase in LADDER:
        return (min(sizes, default=suite.batch_size),)
    return sizes or suite.batch_sizes or (suite.batch_size,)
