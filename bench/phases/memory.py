"""The memory phase: one precision alone in a fresh process, so that no other's blocks are in its peak."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, replace

from bench.data import random_batches
from bench.measure import memory
from bench.measure.categories import tensor_bytes
from bench.phases.context import Setting, enter, open_setting, resident_batches
from bench.results.records import Device, Message, Progress, TrialResult
from bench.spec.precisions import Precision
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.amp import apply, read_back
from bench.training.step import build_arm, training_step

BATCHES = 2
SMALL_BATCH = 2
"""Samples in the batch that is thrown away; batch norm needs two."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the trial's only precision and send its result."""
    driver_before = memory.driver_memory_bytes(device.uuid)  # before anything can make a context
    setting = open_setting(trial)
    precision, _ = enter(trial.precisions[0], setting.device)
    resident_before = None
    if setting.device.type == "cpu":
        send(Progress(text=f"{precision.name}: a small step to load the libraries"))
        _touch_libraries(setting, precision, trial)
        resident_before = memory.resident_bytes()
    arm = build_arm(
        setting.suite, setting.data, precision, setting.device, seed=trial.seed, techniques=setting.techniques
    )
    apply(precision)
    batches = resident_batches(setting, trial, BATCHES)
    turn = itertools.count()

    def step() -> None:
        number = next(turn)
        send(Progress(text=f"{precision.name}: step {number + 1}"))
        training_step(arm, *batches[number % BATCHES])

    peaks = memory.measure_peaks(
        step,
        setting.device,
        resident_before=resident_before,
        driver_before=driver_before,
        uuid=device.uuid,
        model_bytes=memory.model_bytes(arm.model),
    )
    kinds = None
    if not setting.techniques.hidden and distributed.ranks() == 1:
        kinds = tensor_bytes(
            step,
            setting.device,
            modules=[arm.model, arm.loss],
            optimizer=arm.optimizer,
            held=[tensor for batch in batches for tensor in batch],
        )
    if kinds is not None:
        peaks = replace(peaks, **asdict(kinds))
    switches = read_back(precision, setting.device)  # after the model has had its chance to change them
    send(TrialResult(precision=precision.name, status="ok", switches=switches, memory=peaks))


def _touch_libraries(setting: Setting, precision: Precision, trial: Trial) -> None:
    """Train a model of the same kind on a small batch, and forget it.

    The first step of a process makes the system load pages of torch's and oneDNN's code, some 15 to 30 MiB, and fills
    caches that stay. None of it is the model's, so it must lie below the peak's zero.
    """
    arm = build_arm(
        setting.suite, setting.data, precision, setting.device, seed=trial.seed, techniques=setting.techniques
    )
    apply(precision)
    small = min(SMALL_BATCH * setting.techniques.grad_accumulation, trial.cell.batch_size)
    (batch,) = random_batches(setting.data, batch_size=small, count=1, device=setting.device, seed=trial.seed)
    training_step(arm, *batch)
