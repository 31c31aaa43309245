"""Which batches and models a device's memory should hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from bench.results.records import Device
from bench.spec.phases import PHASES
from bench.spec.placement import Placement
from bench.spec.precisions import parse_precision
from bench.spec.suite import Suite
from bench.spec.trial import SuiteRef, Trial

GIB = 2**30
# Shares of a device's memory: a model whose state takes more cannot be trained, and a step that
# should take more gets a smaller batch.
MOST_STATE, MOST_STEP = 0.95, 0.8


class Footprint(NamedTuple):
    """The memory of a model in fp32, counted on tensors without values."""

    model_bytes: int
    state_bytes: int
    """Of weights, buffers, gradients and the optimizer's states, whatever the batch."""
    sample_bytes: float | None
    """Of what a step makes for each sample, at its peak; None is unknown."""


Footprints = Mapping[SuiteRef, Footprint | None]


def fit_batches(suite: Suite, ref: SuiteRef, device: Device, footprint: Footprint) -> Suite:
    """Return a suite with its batch sizes halved until a step in fp32 should fit a device; --set names others."""
    named = ref.batch_size or dict(ref.parameters).get("batch_size")
    size = suite.batch_size if device.is_gpu else min((suite.batch_size, *suite.cpu_batch_sizes))
    if named or device.memory_total_bytes is None:
        return suite
    free = MOST_STEP * device.memory_total_bytes / len(Placement(name=device.placement).members)
    while size > 1 and footprint.state_bytes + size * (footprint.sample_bytes or 0.0) > free:
        size //= 2
    return replace(suite, batch_size=size, batch_sizes=(size,), cpu_batch_sizes=(size,))


def unfit_reason(trial: Trial, device: Device, footprint: Footprint) -> str:
    """Return why a device's memory cannot hold any of a trial's arms, whatever the batch; empty where it may.

    16-bit weights halve the least that an arm takes.
    """
    if device.memory_total_bytes is None:
        return ""
    precisions = [parse_precision(arm.precision) for arm in trial.arms]
    halvings = max(each.weights is not None for each in precisions)
    training = PHASES[trial.phase].trains
    least = (footprint.state_bytes if training else footprint.model_bytes) / 2**halvings
    total = device.memory_total_bytes / len(trial.cell.placement.members)
    if least <= MOST_STATE * total:
        return ""
    what = "weights, gradients and optimizer states" if training else "weights"
    return (
        f"its {what} take {least / GIB:.1f} GiB, and the device has {total / GIB:.1f} GiB; nothing "
        "was allocated"
    )
