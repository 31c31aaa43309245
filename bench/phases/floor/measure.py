"""The floor phase: the baseline timed against a second copy of itself in one process."""

from __future__ import annotations

from bench.phases.floor import AGAIN
from bench.phases.speed.paired import measure
from bench.results.records import Device, Send
from bench.spec.trial import Trial
from bench.training.arms import BATCHES, open_context


def run(trial: Trial, device: Device, send: Send) -> None:
    """Time the trial's only arm against itself; send blocks, then the second copy's result."""
    context = open_context(trial)
    (name,) = trial.arm_names
    batches = context.resident_batches(BATCHES)
    first, second = [context.runner(name, batches) for _ in range(2)]
    # A block tells arms apart by their names; the result has the baseline's own.
    second.name += AGAIN
    for runner in (first, second):
        runner.compile(context, send)
    paired = measure(context, [first, second], device, send, batches=batches)
    for block in paired.blocks():
        send(block)
    send(paired.result(1, arm=name))
