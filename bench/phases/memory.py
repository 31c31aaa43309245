"""The phases of memory: one arm alone in a fresh process, so that no other's blocks are in its peak.

``memory`` measures a precision on batches on the device, ``ladder_memory`` a step of the ablation, whose batches come
from host memory through its input pipeline. ``fit`` is an attempt of the search for the largest batch: it holds what
the speed phase holds of one precision, so that what fits here fits there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import torch

from bench.data.batch import Batch, pinned, tensors
from bench.devices.backend import backend_of
from bench.measure import memory
from bench.measure.memory import STEADY_STEPS, tensor_bytes
from bench.measure.operations import observe
from bench.phases.arms import BATCHES, Context, TrainingRunner, enter, open_context
from bench.phases.ladder import InputPipeline, LoaderKind
from bench.results.records import Device, Fit, Message, Progress
from bench.spec.phases import LADDER
from bench.spec.techniques import AblationStep
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.step import Arm
from bench.training.techniques import WARM_UP

FEW_BATCHES = 2
SMALL_BATCH = 2
"""Samples in the batch that loads the libraries; batch norm needs two."""
FIT_STEPS = 3
"""After the first, which tries workspaces, and those before a capture: all that a step needs is then there."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the trial's only arm, or try whether it fits, and send its result."""
    if trial.phase == "fit":
        _fit(trial, send)
    else:
        _measure(trial, device, send)


def _fit(trial: Trial, send: Callable[[Message], None]) -> None:
    """Train a few steps at the trial's batch size; raise what a batch that does not fit raises."""
    context = open_context(trial)
    (name,) = trial.precisions
    enter(name, context.device)
    send(Progress(text=f"{name}: does a batch of {trial.cell.batch_size} fit?"))
    backend = backend_of(context.device)
    free = backend.free_bytes()
    before = 0 if backend.is_gpu else memory.resident_bytes()
    resettable = backend.reset_peak_memory()
    runner = context.runner(name, context.resident_batches(BATCHES))
    runner.compile(context, send)
    runner.activate()
    observe(partial(runner.observable().run, 1))
    if context.techniques.cuda_graphs:
        runner.run(WARM_UP + 1)  # the last of these captures, which takes memory of its own
    runner.synchronize()
    start = time.perf_counter()
    runner.run(FIT_STEPS)
    runner.synchronize()
    step_s = (time.perf_counter() - start) / FIT_STEPS
    peaks = backend.peak_memory()
    highest = (peaks.reserved if backend.is_gpu else peaks.resident) if resettable else None
    peak = highest - before if highest is not None and before is not None else None
    fit = Fit(fit_peak_bytes=peak, fit_free_bytes=free, fit_step_s=step_s)
    send(runner.result(switches=runner.read_back(), fit=fit, compile_s=None))  # an attempt is no measurement of it


def _measure(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    uuid = device.uuid_of(distributed.rank(), distributed.ranks())
    driver_before = memory.driver_memory_bytes(uuid)  # before anything can make a context
    context = open_context(trial)
    (asked,) = trial.arms
    step = asked if trial.phase in LADDER else None
    enter(asked.precision, context.device)
    resident_before = None
    if not backend_of(context.device).is_gpu:
        memory.fix_allocator()  # here only: in other phases mapping blocks anew would take time
        send(Progress(text=f"{asked.name}: a small step to load the libraries"))
        _load_libraries(context, asked.precision, step)
        resident_before = memory.resident_bytes()
    with ExitStack() as stack:
        arm = context.build(asked.precision, techniques=step.settings if step else None)
        count = FEW_BATCHES if context.suite.batches is None else BATCHES
        resident = [] if step else context.resident_batches(count)
        batches = _through_pipeline(context, arm, step, stack) if step else itertools.cycle(resident)
        numbers, losses = itertools.count(1), list[torch.Tensor]()

        def train() -> None:
            send(Progress(text=f"{asked.name}: step {next(numbers)}"))
            losses[:] = [arm.step(arm, next(batches)).detach()]

        peaks = memory.measure_peaks(
            train,
            context.device,
            resident_before=resident_before,
            driver_before=driver_before,
            uuid=uuid,
            model_bytes=memory.model_bytes(arm.model),
            steps=max(STEADY_STEPS, len(resident)),
        )
        if step is None and not context.techniques.hidden and distributed.ranks() == 1:
            modules = [module for module in (arm.model, arm.criterion) if module is not None]
            optimizers = arm.optimizers.values()
            peaks = tensor_bytes(
                peaks, train, arm.device, modules=modules, optimizers=optimizers, held=tensors(resident)
            )
        runner = TrainingRunner(asked.name, arm, batches)
        switches = runner.read_back()  # last: the model may have changed them
        odd = [f"the loss was {float(loss)} after a few steps" for loss in losses if not torch.isfinite(loss)]
        operations = runner.operations()
    send(runner.result("ok", "; ".join(odd), switches=switches, operations=operations, memory=peaks))


def _load_libraries(context: Context, precision: str, step: AblationStep | None) -> None:
    """Train a model of the same kind on a small batch, and drop it.

    The first step of a process makes the system load pages of torch's and oneDNN's code, some 15 to 30 MiB, and fills
    caches that stay. None of it is the model's, so it must lie below the peak's zero.
    """
    techniques = step.settings if step else context.techniques
    small = min(SMALL_BATCH * techniques.grad_accumulation, context.trial.cell.batch_size)
    arm = context.build(precision, techniques=techniques)
    with ExitStack() as stack:
        if step:
            batches = _through_pipeline(context, arm, step, stack, small)
        else:
            batches = iter(context.resident_batches(1, batch_size=small))
        arm.step(arm, next(batches))


def _through_pipeline(
    context: Context, arm: Arm, step: AblationStep, stack: ExitStack, batch_size: int | None = None
) -> Iterator[Batch]:
    """Return batches in host memory, as the step's loader makes them, on their way through its input pipeline."""
    kind = LoaderKind.of(step)
    batches = context.resident_batches(FEW_BATCHES, batch_size=batch_size, device=torch.device("cpu"))
    if context.image_data and not kind.normalize:
        rng = torch.Generator().manual_seed(context.trial.seed)
        batches = [(torch.randint(256, x.shape, generator=rng, dtype=torch.uint8), y) for x, y in batches]
    if kind.pinned and backend_of(context.device).is_gpu:
        batches = list(map(pinned, batches))
    pipeline = InputPipeline(arm, context.image_data, itertools.cycle(batches))
    stack.callback(pipeline.close)
    return pipeline
