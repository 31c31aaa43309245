"""Peak memory of an ablation step: that of a training step whose batches come from host memory."""

from __future__ import annotations

from collections.abc import Callable

from bench.phases.memory.measure import measure
from bench.results.records import Device, Message
from bench.spec.trial import Trial


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the trial's only step, and send its result."""
    (step,) = trial.arms
    measure(trial, device, send, step)
