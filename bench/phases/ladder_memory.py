"""The peak memory of one rung alone in a fresh process, its batches brought to the device as it brings them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing

import torch

from bench.data import random_batches
from bench.data.transfer import Batch
from bench.devices.backend import backend_of
from bench.measure import memory
from bench.phases.climbing import build_rung
from bench.phases.context import Setting, open_setting
from bench.phases.feeding import kind_of, on_device
from bench.results.records import Device, Message, Progress, TrialResult
from bench.spec.ablation import AblationStep
from bench.spec.suite import Data
from bench.spec.trial import Trial
from bench.training.amp import read_back
from bench.training.step import training_step

BATCHES = 2
SMALL_BATCH = 2
"""Samples in the batch that loads the libraries; batch norm needs two."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the trial's only rung and send its result."""
    driver_before = memory.driver_memory_bytes(device.uuid)
    setting, rung = open_setting(trial), trial.arms[0]
    resident_before = None
    if setting.device.type == "cpu":
        small = min(SMALL_BATCH * rung.settings.grad_accumulation, trial.cell.batch_size)
        arm = build_rung(setting, trial, rung)
        with closing(on_device(arm, setting.data, iter(_host_batches(setting, trial, rung, small)))) as few:
            training_step(arm, *next(few))
        del arm, few
        resident_before = memory.resident_bytes()
    arm = build_rung(setting, trial, rung)
    loaded = itertools.cycle(_host_batches(setting, trial, rung, trial.cell.batch_size))
    batches = on_device(arm, setting.data, loaded)

    def step() -> None:
        send(Progress(text=f"{rung.name}: a step"))
        training_step(arm, *next(batches))

    with closing(batches):
        peaks = memory.measure_peaks(
            step,
            setting.device,
            resident_before=resident_before,
            driver_before=driver_before,
            uuid=device.uuid,
            model_bytes=memory.model_bytes(arm.model),
        )
    switches = read_back(arm.precision, setting.device)
    send(TrialResult(precision=rung.name, status="ok", switches=switches, memory=peaks))


def _host_batches(setting: Setting, trial: Trial, rung: AblationStep, size: int) -> list[Batch]:
    """Return batches in host memory as the rung's loader gives them: its type of pixels, and pinned where it pins."""
    data, cpu = setting.data, torch.device("cpu")
    pinned, normalize = kind_of(rung)
    if data.is_image and not normalize:
        batches = [_pixels(data, size, trial.seed + index) for index in range(BATCHES)]
    else:
        batches = random_batches(data, batch_size=size, count=BATCHES, device=cpu, seed=trial.seed)
    pin = pinned and backend_of(setting.device).is_gpu
    return [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in batches] if pin else batches


def _pixels(data: Data, size: int, seed: int) -> Batch:
    chance = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (size, *data.input_shape), generator=chance, dtype=torch.uint8)
    return pixels, torch.randint(data.classes or 1, (size,), generator=chance)
