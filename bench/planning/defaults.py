"""What is measured where the request names nothing: data, precisions, batch sizes."""

from __future__ import annotations

from dataclasses import dataclass

from bench.results.records import Device
from bench.spec.phases import LADDER, PHASES
from bench.spec.precisions import BASELINE, PRECISIONS, parse_precision
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.trial import DataSource


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What is known of a suite's data before anything runs."""

    source: DataSource
    classes: int | None = None
    train_samples: int | None = None
    """None for synthetic data, which have as many batches as the suite says."""
    fingerprint: str | None = None
    """What a folder's images are known by on every machine; None for data that are the same everywhere."""


def choose_source(suite: Suite, request: Request) -> DataSource:
    """Return where a suite's data come from: what was asked, where the suite can use it at all."""
    asked = request.data if suite.data.is_image else "synthetic"
    return DataSource.parse(asked or suite.data.source, request.data_dir, elsewhere=request.on is not None)


def choose_precisions(request: Request, device: Device) -> tuple[str, ...]:
    """Return the precisions to compare on a device, the baseline first; those it cannot do are rows that say so."""
    unique = tuple(dict.fromkeys(request.precisions or default_precisions(device)))
    return tuple(sorted(unique, key=lambda name: name != BASELINE))


def unsupported_reason(device: Device, name: str) -> str | None:
    """Say why a device cannot do a precision, whatever its options; None where it can."""
    return (device.unsupported or {}).get(parse_precision(name).base)


def default_precisions(device: Device) -> tuple[str, ...]:
    """Return the precisions that are compared unless the user names others: those the device may gain by."""
    wanted = [name for name, precision in PRECISIONS.items() if device.kind in precision.default_on]
    return tuple(name for name in wanted if name not in (device.unsupported or {}) and not slower(device, name))


def slower(device: Device, name: str) -> bool:
    """Say whether a CPU emulates a precision: its products take more than twice as long as fp32's.

    It cannot gain, and its steps may take minutes, so that it is measured only where ``--precisions`` names it.
    """
    if parse_precision(name).compute != "bfloat16" or unsupported_reason(device, name):
        return False
    if not device.bf16_gflops or not device.fp32_gflops:
        return False
    return device.bf16_gflops < device.fp32_gflops / 2


def choose_batch_sizes(suite: Suite, request: Request, device: Device, phase: str) -> tuple[int, ...]:
    """Return the batch sizes of a phase: those asked for, else the suite's sweep, or its recipe's for training."""
    if any(name == "batch_size" for name, _ in request.sweep):
        return (suite.batch_size,)
    if request.batch_sizes or (request.largest_batch and not PHASES[phase].recipe_batch):
        return request.batch_sizes or ()
    if phase in LADDER:
        return (min(suite.cpu_batch_sizes, default=suite.batch_size) if device.kind == "cpu" else suite.batch_size,)
    if PHASES[phase].recipe_batch:
        return (suite.batch_size,)
    sweep = suite.cpu_batch_sizes if device.kind == "cpu" else ()
    return sweep or suite.batch_sizes or (suite.batch_size,)
