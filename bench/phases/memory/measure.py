"""Peak memory: one arm alone in a fresh process, so that no other's blocks are in its peak."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import torch

from bench.data.batch import Batch, tensors
from bench.devices.backend import backend_of
from bench.measure import memory
from bench.phases.memory import MemoryPeak
from bench.results.records import Device, Progress, Send
from bench.spec.techniques import ArmSpec
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import BATCHES, Context, TrainingRunner, enter, open_context
from bench.training.pipeline import from_host

# Of random batches, which are alike. A suite's own may differ in size: of them BATCHES are held.
FEW_BATCHES = 2
# Samples in the batch that loads the libraries; batch norm needs two.
SMALL_BATCH = 2


def run(trial: Trial, device: Device, send: Send) -> None:
    """Measure the trial's only arm, and send its result."""
    uuid = device.uuid_of(distributed.rank(), distributed.ranks())
    driver_before, _ = memory.driver_memory_bytes(uuid)  # before anything can make a context
    context = open_context(trial)
    (asked,) = trial.arms
    enter(asked.precision, context.device)
    resident_before = None
    if not backend_of(context.device).is_gpu:
        memory.fix_allocator()  # here only: in other phases mapping blocks anew would take time
        send(Progress(text=f"{asked.name}: a small step to load the libraries"))
        _load_libraries(context, asked)
        resident_before = memory.resident_bytes()
    with ExitStack() as stack:
        arm = context.build(asked.precision, techniques=trial.techniques_of(asked))
        held = _batches(context)
        batches = from_host(arm, held, stack) if trial.ablation else itertools.cycle(held)
        runner = TrainingRunner(asked.name, arm, batches)
        numbers = itertools.count(1)

        def train() -> None:
            send(Progress(text=f"{asked.name}: step {next(numbers)}"))
            runner.run_steps(1)

        peaks = memory.measure_peaks(
            train,
            context.device,
            resident_before=resident_before,
            driver_before=driver_before,
            uuid=uuid,
            steps=max(memory.STEADY_STEPS, len(held)),
        )
        # A compiled or captured step hides its operators, and so its tensors.
        if not trial.ablation and not arm.techniques.hidden and distributed.ranks() == 1:
            modules = [module for module in (arm.model, arm.criterion) if module is not None]
            peaks |= memory.tensor_bytes(
                train,
                arm.device,
                modules=modules,
                optimizers=arm.optimizers.values(),
                held=tensors(held),
            )
        switches = runner.read_back()  # last: the model may have changed them
        detail = "" if runner.finite() else f"the loss was {runner.loss} after a few steps"
        operations = runner.operations()
    row = MemoryPeak(**peaks, model_bytes=memory.model_bytes(arm.model))
    send(runner.result("ok", detail, switches=switches, operations=operations, row=row))


def _batches(context: Context) -> list[Batch]:
    """Return the batches that steps take in turn; those of an ablation lie in host memory."""
    count = FEW_BATCHES if context.suite.batches is None else BATCHES
    place = torch.device("cpu") if context.trial.ablation else None
    return context.resident_batches(count, device=place)


def _load_libraries(context: Context, asked: ArmSpec) -> None:
    """Train a model of the same kind on a small batch, and drop it.

    In the first step of a process the system loads 15 to 30 MiB of torch's and oneDNN's code, and
    both libraries allocate caches that they keep. This memory does not belong to the model, so the
    process must already hold it when the phase reads the level that it subtracts from the peak.
    """
    trial = context.trial
    techniques = trial.techniques_of(asked)
    small = min(SMALL_BATCH * techniques.grad_accumulation, trial.cell.batch_size)
    arm = context.build(asked.precision, techniques=techniques)
    with ExitStack() as stack:
        held = context.resident_batches(1, batch_size=small)
        batches = from_host(arm, held, stack) if trial.ablation else iter(held)
        arm.step(arm, next(batches))
