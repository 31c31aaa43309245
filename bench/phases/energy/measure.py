"""The energy phase: one precision alone in a fresh process, in continuous steps.

Of several processes that train together, the first reads the meters of all GPUs, in one window, while the others run
the steps that it says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from bench.devices.backend import backend_of
from bench.devices.monitor import DeviceLostError, GpuMeter, energy_source, monitor_problem, open_monitor
from bench.devices.monitor import meters as open_meters
from bench.measure.disturbance import open_watch
from bench.measure.warmup import warm_up
from bench.phases.energy import Energy
from bench.phases.energy import stream as energy
from bench.phases.energy.stream import Done, Nap, Window, burst_steps
from bench.phases.speed.paired import Recompilations
from bench.results.records import Device, Message, Progress, Status, TrialResult
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import BATCHES, Context, TrainingRunner, open_context

WARM_UP_S = 2.0
"""Warm-up gives up after this; the lead-in to the window goes on warming."""
HEARTBEAT_S = 0.5
"""Shortest interval between two progress messages."""
CPU_REASON = "energy is read from a GPU's driver; nothing is read of a CPU's"


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Measure the energy of the trial's only precision and send its result."""
    if distributed.rank() > 0:
        _follow(trial, send)
        return
    with ExitStack() as stack:
        meters, why = _open_meters(device, stack)
        distributed.from_first(len(meters))
        send(_measure(trial, device, meters, send) if meters else _unsupported(trial, why))


def _open_meters(device: Device, stack: ExitStack) -> tuple[tuple[GpuMeter, ...], str]:
    """Return the meters of all GPUs; or none and why, where one of them does not tell."""
    if not (device.uuid or device.uuids):
        return (), CPU_REASON
    monitor = open_monitor()
    if monitor is None:
        return (), monitor_problem() or "NVML does not start"
    stack.enter_context(monitor)
    meters = open_meters(monitor, device)
    if len(meters) < distributed.ranks():
        return (), f"of {distributed.ranks()} devices that train together, {len(meters)} can be asked from here"
    for meter in meters:
        try:
            if not energy_source(meter):
                which = f"{meter.uuid}: " if len(meters) > 1 else ""
                return (), which + monitor.energy_problem(meter.uuid)
        except DeviceLostError as failure:
            return (), str(failure)
    return meters, ""


def _build(context: Context) -> tuple[TrainingRunner, float, tuple[int, ...]]:
    """Build the precision's arm, and wait for all processes to; return also the samples of a step and their ids."""
    (name,) = context.trial.precisions
    batches = context.resident_batches(BATCHES)
    runner = context.runner(name, batches)
    runner.synchronize()
    return runner, context.samples_per_step(batches), distributed.gathered(os.getpid())


def _follow(trial: Trial, send: Callable[[Message], None]) -> None:
    """Run the steps that the first process queues, while it reads the meters."""
    if not distributed.from_first(0):
        return
    runner, _, _ = _build(open_context(trial))
    distributed.from_first(0)
    warm_up(runner, WARM_UP_S, distributed.clock())
    while steps := distributed.from_first(0):
        send(Progress(text=f"{runner.name}: {steps} steps for the meters of the first process"))
        runner.run(steps)
    runner.synchronize()
    distributed.gathered(runner.finite())
    runner.operations()


def _measure(
    trial: Trial, device: Device, meters: tuple[GpuMeter, ...], send: Callable[[Message], None]
) -> TrialResult:
    context = open_context(trial)
    runner, samples, pids = _build(context)
    send(Progress(text=f"{runner.name}: power with nothing running"))
    idle = energy.measure(Nap(), *meters, seconds=energy.IDLE_S)
    runner.compile(context, send)
    send(Progress(text=f"{runner.name}: warming up"))
    distributed.from_first(0)  # the others have been idle until now
    warm = warm_up(runner, WARM_UP_S, distributed.clock())
    recompilations = Recompilations()
    with ExitStack() as stack:
        opened = (open_watch(device, gather=lambda _own: pids, rank=rank) for rank in range(len(pids)))
        watches = list(map(stack.enter_context, opened))
        load, burst = TrainingLoad(runner, send), burst_steps(warm.step_ns / 1e9)
        window, alone_s = energy.measure(load, *meters, burst=burst), energy.pace_s(load, burst=burst)
        distributed.from_first(0)
        runner.synchronize()
        disturbed = "; ".join(filter(None, (watch.disturbance() for watch in watches)))
    switches = runner.read_back()  # last: the model may have changed them
    finite = all(distributed.gathered(runner.finite()))
    cause, operations = recompilations.cause(), runner.operations()
    if window is None:
        return _unsupported(trial, "the GPU stopped telling its energy and its power while steps ran")
    status: Status = "ok"
    detail = energy.doubt(window, idle, name=device.name, limit_w=device.power_limit_w, disturbed=disturbed)
    if not finite:
        status, detail = "nonfinite", "the loss became NaN or Inf while energy was measured"
    elif cause:
        status, detail = "invalid", f"{cause} while energy was measured, so compiling is in it"
    alone_samples_per_s = None if disturbed else samples / alone_s
    figures = _energy(window, idle.power_w if idle else None, alone_samples_per_s)
    return runner.result(status, detail, switches=switches, operations=operations, row=figures)


def _unsupported(trial: Trial, why: str) -> TrialResult:
    return TrialResult(precision=trial.precisions[0], status="unsupported", detail=why)


def _energy(window: Window, idle_power_w: float | None, alone_samples_per_s: float | None) -> Energy:
    """Return a window's energy by the step, gross and less what the device draws idle."""
    gross_j = window.energy_j / window.steps
    return Energy(
        energy_source=window.source,
        energy_j_per_step=gross_j,
        energy_net_j_per_step=None if idle_power_w is None else gross_j - idle_power_w * window.step_s,
        idle_power_w=idle_power_w,
        mean_power_w=window.power_w,
        energy_window_s=window.seconds,
        energy_steps=round(window.steps),
        energy_start_s=window.start_s,
        alone_samples_per_s=alone_samples_per_s,
    )


@dataclass(slots=True)
class TrainingLoad:
    """Training steps as a load: queued without waiting, done when an event behind them is."""

    runner: TrainingRunner
    send: Callable[[Message], None]
    steps: int = 0
    sent_s: float = 0.0
    """When the progress was sent last."""

    def queue(self, steps: int) -> Done:
        """Queue training steps."""
        if time.monotonic() - self.sent_s >= HEARTBEAT_S:
            self.sent_s = time.monotonic()
            self.send(Progress(text=f"{self.runner.name}: energy of continuous steps, {self.steps} so far"))
        distributed.from_first(steps)
        self.runner.run(steps)
        self.steps += steps
        return backend_of(self.runner.arm.device).record_event().query
