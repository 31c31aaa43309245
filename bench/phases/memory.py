"""The memory phase: one precision alone in a fresh process, so that no other's blocks are in its peak."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from bench.data import random_batches
from bench.measure import memory
from bench.phases.setting import enter, open_setting
from bench.precision import apply, read_back
from bench.records import Device, Message, Progress, TrialResult
from bench.train import build_arm, training_step
from bench.trial import Trial

BATCHES = 2


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the trial's only precision and send its result."""
    setting = open_setting(trial)
    driver_before = memory.driver_memory_bytes(device.uuid)
    precision, _ = enter(trial.precisions[0], setting.device)
    resident_before = memory.resident_bytes() if setting.device.type == "cpu" else None
    arm = build_arm(setting.suite, setting.data, precision, setting.device, seed=trial.seed)
    apply(precision)
    batches = random_batches(
        setting.data, batch_size=trial.cell.batch_size, count=BATCHES, device=setting.device, seed=trial.seed
    )
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
    switches = read_back(precision, setting.device)  # after the model has had its chance to change them
    send(TrialResult(precision=precision.name, status="ok", switches=switches, memory=peaks))
