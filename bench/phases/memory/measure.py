"""Peak memory: one arm alone in a fresh process, so that no other's blocks are in its peak."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from bench.data.batch import Batch, pinned, tensors
from bench.devices.backend import backend_of
from bench.measure import memory
from bench.measure.memory import STEADY_STEPS, tensor_bytes
from bench.phases.memory import MemoryPeak
from bench.results.records import Device, Message, Progress
from bench.spec.techniques import AblationStep
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import BATCHES, Context, TrainingRunner, enter, open_context
from bench.training.pipeline import InputPipeline, LoaderKind
from bench.training.step import Arm

FEW_BATCHES = 2
SMALL_BATCH = 2
"""Samples in the batch that loads the libraries; batch norm needs two."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the trial's only precision, and send its result."""
    measure(trial, device, send)


def measure(trial: Trial, device: Device, send: Callable[[Message], None], step: AblationStep | None = None) -> None:
    """Measure the trial's only arm, on batches on the device or, of an ablation ``step``, through its pipeline."""
    uuid = device.uuid_of(distributed.rank(), distributed.ranks())
    driver_before, _ = memory.driver_memory_bytes(uuid)  # before anything can make a context
    context = open_context(trial)
    (asked,) = trial.arms
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
            peaks |= tensor_bytes(train, arm.device, modules=modules, optimizers=optimizers, held=tensors(resident))
        runner = TrainingRunner(asked.name, arm, batches)
        switches = runner.read_back()  # last: the model may have changed them
        odd = [f"the loss was {float(loss)} after a few steps" for loss in losses if not torch.isfinite(loss)]
        operations = runner.operations()
    send(runner.result("ok", "; ".join(odd), switches=switches, operations=operations, row=MemoryPeak(**peaks)))


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
