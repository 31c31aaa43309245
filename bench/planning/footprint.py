"""Which batches and models a device's memory should hold."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from bench.planning.batch_sizes import usual_sizes
from bench.results.records import Device
from bench.spec.phases import PHASES
from bench.spec.placement import Placement
from bench.spec.precisions import parse_precision
from bench.spec.suite import Suite
from bench.spec.trial import SuiteRef, Trial

GIB = 2**30
# Shares of a device's memory: a model whose state takes more cannot be trained, and a step that
# should take more gets a smaller batch.
MOST_STATE = 0.95
MOST_STEP = 0.8


class Footprint(NamedTuple):
    """The memory of a model in fp32, counted on tensors without values."""

    model_bytes: int
    state_bytes: int
    """Of weights, buffers, gradients and the optimizer's states, whatever the batch."""
    sample_bytes: float | None
    """Of what a step makes for each sample, at its peak; None is unknown."""


def fit_batches(
    suite: Suite,
    ref: SuiteRef,
    device: Device,
    footprint: Footprint | None,
) -> Suite:
    """Return a suite with its batch sizes halved until a step in fp32 should fit a device.

    It stays as it is where ``--set`` names the size, or nothing tells how much memory it takes.
    """
    is_named = "batch_size" in dict(ref.parameters) or ref.batch_size is not None
    if is_named or footprint is None or device.memory_total_bytes is None:
        return suite
    size = min((suite.batch_size, *usual_sizes(suite, device)))
    ranks = len(Placement(name=device.placement).members)
    free = MOST_STEP * device.memory_total_bytes / ranks
    sample_bytes = footprint.sample_bytes or 0.0
    while size > 1 and footprint.state_bytes + size * sample_bytes > free:
        size //= 2
    return replace(suite, batch_size=size, batch_sizes=(size,), cpu_batch_sizes=(size,))


def unfit_reason(trial: Trial, device: Device, footprint: Footprint | None) -> str:
    """Return why a device's memory cannot hold any of a trial's arms, whatever the batch.

    Empty where it may.
    """
    if footprint is None or device.memory_total_bytes is None:
        return ""
    what = "weights"
    least = float(footprint.model_bytes)
    if PHASES[trial.phase].trains:
        what = "weights, gradients and optimizer states"
        least = float(footprint.state_bytes)
    if any(parse_precision(arm.precision).weights for arm in trial.arms):
        least /= 2  # 16-bit weights halve the least that an arm takes
    # Each device of several holds all of the model, and has an equal share of their memory.
    total = device.memory_total_bytes / len(trial.cell.placement.members)
    if least <= MOST_STATE * total:
        return ""
    return (
        f"its {what} take {least / GIB:.1f} GiB, and the device has {total / GIB:.1f} GiB; nothing "
        "was allocated"
    )
