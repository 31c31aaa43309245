"""The energy phase: one precision alone in a fresh process, in continuous steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.data import random_batches
from bench.measure import energy
from bench.measure.nvml import Nvml, NvmlFailure, nvml_problem, open_nvml
from bench.measure.stream import Done, Nap, burst_steps
from bench.measure.warmup import warm_up
from bench.phases.compiling import Recompilations, compile_s
from bench.phases.runner import BATCHES, TorchRunner
from bench.phases.setting import enter, open_setting
from bench.precision import apply, read_back
from bench.records import Device, Message, Progress, Status, TrialResult
from bench.train import build_arm
from bench.trial import Trial

WARM_UP_S = 2.0
"""Warm-up gives up after this; the lead-in to the window goes on warming."""
HEARTBEAT_S = 0.5
CPU_REASON = "energy is read from a GPU's driver; nothing is read of a CPU's"


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the energy of the trial's only precision and send its result."""
    if device.uuid is None:
        send(_unsupported(trial, CPU_REASON))
        return
    nvml = open_nvml()
    if nvml is None:
        send(_unsupported(trial, nvml_problem() or "NVML does not start"))
        return
    with nvml:
        meter = energy.NvmlMeter(nvml, device.uuid)
        try:
            source = energy.energy_source(meter)
        except NvmlFailure as failure:
            send(_unsupported(trial, str(failure)))
            return
        send(_measure(trial, meter, send) if source else _unsupported(trial, why_unknown(nvml, device.uuid)))


def why_unknown(nvml: Nvml, uuid: str) -> str:
    """Say why neither energy nor power of a GPU is told."""
    if nvml.calls.target(uuid).is_slice:
        return "a MIG slice shares its board's power with the others, so its own energy is unknown"
    asked = {"energy": "nvmlDeviceGetTotalEnergyConsumption", "power": "nvmlDeviceGetPowerUsage"}
    why = [
        f"{what}: {nvml.reasons.get((uuid, name), 'the GPU answers, but not with a figure')}"
        for what, name in asked.items()
    ]
    return f"the GPU tells neither energy nor power ({'; '.join(why)})"


@dataclass(slots=True)
class TrainingLoad:
    """Training steps as a load: queued without waiting, done when an event behind them is."""

    runner: TorchRunner
    send: Callable[[Message], None]
    said_s: float = 0.0

    def queue(self, steps: int) -> Done:
        """Queue training steps."""
        if time.monotonic() - self.said_s >= HEARTBEAT_S:
            self.said_s = time.monotonic()
            self.send(Progress(text=f"{self.runner.name}: energy of continuous steps, {self.runner.turn} so far"))
        self.runner.run(steps)
        if self.runner.arm.device.type != "cuda":
            return lambda: True
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.runner.arm.device))
        return event.query


def _measure(trial: Trial, meter: energy.NvmlMeter, send: Callable[[Message], None]) -> TrialResult:
    setting = open_setting(trial)
    precision, _ = enter(trial.precisions[0], setting.device)
    arm = build_arm(
        setting.suite, setting.data, precision, setting.device, seed=trial.seed, techniques=setting.techniques
    )
    apply(precision)
    batches = random_batches(
        setting.data, batch_size=trial.cell.batch_size, count=BATCHES, device=setting.device, seed=trial.seed
    )
    runner = TorchRunner(name=precision.name, arm=arm, batches=batches, asynchronous=setting.device.type == "cuda")
    runner.synchronize()
    send(Progress(text=f"{precision.name}: power with nothing running"))
    idle = energy.measure(Nap(), meter, seconds=energy.IDLE_S)
    if arm.techniques.compile:
        send(Progress(text=f"{precision.name}: compiling"))
    spent_s = compile_s(arm, setting.data, trial.cell.batch_size)
    send(Progress(text=f"{precision.name}: warming up"))
    warm = warm_up(runner, WARM_UP_S)
    recompilations = Recompilations()
    window = energy.measure(TrainingLoad(runner, send), meter, burst=burst_steps(warm.step_ns / 1e9))
    runner.synchronize()
    switches = read_back(precision, setting.device)  # after the model has had its chance to change them
    if window is None:
        return _unsupported(trial, "the GPU stopped telling its energy and its power while steps ran")
    status, detail = _judge(runner, recompilations)
    return TrialResult(
        precision=precision.name,
        status=status,
        detail=detail,
        compile_s=spent_s,
        switches=switches,
        energy=energy.energy_of(window, idle.power_w if idle else None),
    )


def _judge(runner: TorchRunner, recompilations: Recompilations) -> tuple[Status, str]:
    if not runner.finite():
        return "nonfinite", "the loss became NaN or Inf while energy was measured"
    if cause := recompilations.cause():
        return "invalid", f"{cause} while energy was measured, so compiling is in it"
    return "ok", ""


def _unsupported(trial: Trial, why: str) -> TrialResult:
    return TrialResult(precision=trial.precisions[0], status="unsupported", detail=why)
