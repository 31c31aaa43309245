"""The memory phases: one arm alone in a fresh process, so that no other's blocks are in its peak.

``memory`` measures a precision on batches on the device, ``ladder_memory`` a step of the ablation, whose batches come
from host memory through its input pipeline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace

import torch

from bench.data import random_batches
from bench.data.transfer import Batch
from bench.devices.backend import backend_of
from bench.measure import memory
from bench.measure.memory import tensor_bytes
from bench.phases.arms import Context, TrainingRunner, compute_dtypes, enter, judge_types, open_context
from bench.phases.input_pipeline import InputPipeline, LoaderKind
from bench.results.records import Device, Message, Progress, TrialResult
from bench.spec.phases import LADDER
from bench.spec.techniques import AblationStep
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.amp import read_back
from bench.training.step import Arm, training_step

BATCHES = 2
SMALL_BATCH = 2
"""Samples in the batch that loads the libraries; batch norm needs two."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the trial's only arm and send its result."""
    uuid = device.uuid_of(distributed.rank(), distributed.ranks())
    driver_before = memory.driver_memory_bytes(uuid)  # before anything can make a context
    context = open_context(trial)
    (arm_asked,) = trial.arms
    name, step = arm_asked.name, arm_asked if trial.phase in LADDER else None
    enter(arm_asked.precision, context.device)
    resident_before = None
    if not backend_of(context.device).is_gpu:
        send(Progress(text=f"{name}: a small step to load the libraries"))
        _load_libraries(context, name, step)
        resident_before = memory.resident_bytes()
    with ExitStack() as stack:
        arm = _build(context, name, step)
        resident = [] if step else context.resident_batches(BATCHES)
        batches = _through_pipeline(context, arm, step, stack) if step else itertools.cycle(resident)
        numbers, losses = itertools.count(1), list[torch.Tensor]()

        def train() -> None:
            send(Progress(text=f"{name}: step {next(numbers)}"))
            losses[:] = [training_step(arm, *next(batches)).detach()]

        peaks = memory.measure_peaks(
            train,
            context.device,
            resident_before=resident_before,
            driver_before=driver_before,
            uuid=uuid,
            model_bytes=memory.model_bytes(arm.model),
        )
        if step is None and not context.techniques.hidden and distributed.ranks() == 1:
            kinds = tensor_bytes(
                train,
                context.device,
                modules=[arm.model, arm.loss],
                optimizer=arm.optimizer,
                held=[tensor for batch in resident for tensor in batch],
            )
            peaks = replace(peaks, **asdict(kinds)) if kinds is not None else peaks
        switches = read_back(arm.precision, context.device)  # last: the model may have changed them
        odd = [f"the loss was {float(loss)} after a few steps" for loss in losses if not torch.isfinite(loss)]
        computed = compute_dtypes(TrainingRunner(name, arm, batches))
    status, detail = judge_types(arm.precision, computed, "ok", "; ".join(odd))
    send(TrialResult(precision=name, status=status, detail=detail, switches=switches, memory=peaks))


def _build(context: Context, name: str, step: AblationStep | None) -> Arm:
    return context.build_step(step) if step else context.build(name)


def _load_libraries(context: Context, name: str, step: AblationStep | None) -> None:
    """Train a model of the same kind on a small batch, and drop it.

    The first step of a process makes the system load pages of torch's and oneDNN's code, some 15 to 30 MiB, and fills
    caches that stay. None of it is the model's, so it must lie below the peak's zero.
    """
    techniques = step.settings if step else context.techniques
    small = min(SMALL_BATCH * techniques.grad_accumulation, context.trial.cell.batch_size)
    arm = _build(context, name, step)
    with ExitStack() as stack:
        if step:
            batches = _through_pipeline(context, arm, step, stack, small)
        else:
            seed = context.trial.seed
            batches = iter(random_batches(context.data, batch_size=small, count=1, device=context.device, seed=seed))
        training_step(arm, *next(batches))


def _through_pipeline(
    context: Context, arm: Arm, step: AblationStep, stack: ExitStack, batch_size: int | None = None
) -> Iterator[Batch]:
    """Return batches in host memory, as the step's loader makes them, on their way through its input pipeline."""
    data, seed, size = context.data, context.trial.seed, batch_size or context.trial.cell.batch_size
    kind = LoaderKind.of(step)
    if data.is_image and not kind.normalize:
        batches = [_pixels(context, size, seed + index) for index in range(BATCHES)]
    else:
        batches = random_batches(data, batch_size=size, count=BATCHES, device=torch.device("cpu"), seed=seed)
    if kind.pinned and backend_of(context.device).is_gpu:
        batches = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in batches]
    pipeline = InputPipeline(arm, data, itertools.cycle(batches))
    stack.callback(pipeline.close)
    return pipeline


def _pixels(context: Context, size: int, seed: int) -> Batch:
    rng, data = torch.Generator().manual_seed(seed), context.data
    pixels = torch.randint(256, (size, *data.input_shape), generator=rng, dtype=torch.uint8)
    return pixels, torch.randint(data.classes or 1, (size,), generator=rng)
