"""An attempt of the search for the largest batch.

It holds what the speed phase holds of one precision, so that what fits here fits there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bench.devices.backend import backend_of
from bench.measure import memory
from bench.measure.operations import observe
from bench.phases.fit import Fit
from bench.results.records import Device, Progress, Send
from bench.spec.trial import Trial
from bench.training.arms import BATCHES, enter, open_context
from bench.training.techniques import WARM_UP

# After the first, which tries workspaces, and those before a capture: all that a step needs is then
# there.
FIT_STEPS = 3


def run(trial: Trial, _device: Device, send: Send) -> None:
    """Train a few steps at the trial's batch size; raise what a batch that does not fit raises."""
    context = open_context(trial)
    (name,) = trial.arm_names
    enter(name, context.device)
    send(Progress(text=f"{name}: does a batch of {trial.cell.batch_size} fit?"))
    backend = backend_of(context.device)
    free = backend.free_bytes()
    before = 0 if backend.is_gpu else memory.resident_bytes()
    can_reset = backend.reset_peak_memory()
    runner = context.runner(name, context.resident_batches(BATCHES))
    runner.compile(context, send)
    runner.activate()
    observe(partial(runner.observable().run_steps, 1))
    if context.techniques.cuda_graphs:
        runner.run_steps(WARM_UP + 1)  # the last of these captures, which takes memory of its own
    runner.synchronize()
    runner.run_steps(FIT_STEPS)
    runner.synchronize()
    fit = Fit(fit_free_bytes=free)
    if can_reset:
        peaks = backend.peak_memory()
        highest = peaks.reserved if backend.is_gpu else peaks.resident
        if highest is not None:
            fit = replace(fit, fit_peak_bytes=highest - before)
    # An attempt is no measurement of the time to compile.
    send(runner.result(switches=runner.read_back(), row=fit, compile_s=None))
