"""The energy phase: one precision alone in a fresh process, in continuous steps.

Of several processes that train together, the first reads the meters of all GPUs, in one window,
while the others run the steps that it says.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial

from bench.devices.backend import backend_of
from bench.devices.monitor import GpuMeter, monitor_problem, open_monitor
from bench.devices.monitor import meters as open_meters
from bench.measure.disturbance import open_watch
from bench.measure.warmup import warm_up
from bench.phases.energy import Energy, stream
from bench.phases.energy.stream import Done
from bench.results.records import Device, Progress, Send, Status
from bench.spec.errors import UnsupportedError
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import BATCHES, TrainingRunner, open_context
from bench.training.techniques import compilations

# Warm-up gives up after this; the first stretch of steps goes on warming.
WARM_UP_S = 2.0
# How long the steps may take without a message: ten times as long as they are to take.
SILENCE_S = 100.0


def run(trial: Trial, device: Device, send: Send) -> None:
    """Measure the energy of the trial's only precision and send its result."""
    is_first = distributed.rank() == 0
    with ExitStack() as stack:
        meters, why = _open_meters(device, stack) if is_first else ((), "")
        why = distributed.from_first(why)
        if why:
            raise UnsupportedError(why)
        context = open_context(trial)
        (name,) = trial.arm_names
        batches = context.resident_batches(BATCHES)
        runner = context.runner(name, batches)
        runner.synchronize()
        distributed.gathered(None)  # now nothing runs anywhere
        send(Progress(text=f"{name}: power with nothing running"))
        idle = window = None
        if is_first:
            idle = stream.measure(stream.rest, meters, stream.IDLE_S)
        distributed.from_first(None)  # the others wait until it is known
        runner.compile(context, send)
        send(Progress(text=f"{name}: warming up"))
        warm = warm_up(runner, WARM_UP_S, distributed.clock())
        compiled_before = compilations()
        send(Progress(text=f"{name}: energy of continuous steps", silence_s=SILENCE_S))
        watch = stack.enter_context(
            open_watch(device, gather=distributed.gathered, rank=distributed.rank())
        )
        if is_first:
            # Queueing steps one by one would leave no time to look at the meters.
            burst = math.ceil(stream.BURST_S * 1e9 / warm.step_ns)
            window = stream.measure(partial(_queue, runner), meters, stream.STRETCH_S, burst)
            distributed.from_first(0)
        else:
            _follow(runner)
        runner.synchronize()
        disturbed = "; ".join(filter(None, distributed.gathered(watch.disturbance())))
    switches = runner.read_back()  # last: the model may have changed them
    is_recompiled = compilations() != compiled_before
    finite = all(distributed.gathered(runner.finite()))
    operations = runner.operations()
    # Row and meters are the first process's; the others were needed for what all do together.
    if not is_first:
        return
    if window is None:
        raise UnsupportedError("the GPU stopped telling its energy and its power while steps ran")
    status: Status = "ok"
    detail = stream.doubt(
        window, idle, name=device.name, limit_w=device.power_limit_w, disturbed=disturbed
    )
    if not finite:
        status = "nonfinite"
        detail = "the loss became NaN or Inf while energy was measured"
    elif is_recompiled:
        status = "invalid"
        detail = "recompiled while energy was measured, so compiling is in it"
    samples_per_s = context.samples_per_step(batches) / window.step_s
    row = Energy(
        energy_source=window.source,
        energy_j_per_step=window.power_w * window.step_s,
        idle_power_w=idle.power_w if idle else None,
        mean_power_w=window.power_w,
        energy_window_s=window.seconds,
        energy_steps=window.steps,
        energy_start_s=window.start_s,
        alone_samples_per_s=None if disturbed else samples_per_s,
    )
    send(runner.result(status, detail, switches=switches, operations=operations, row=row))


def _open_meters(device: Device, stack: ExitStack) -> tuple[tuple[GpuMeter, ...], str]:
    """Return the meters of all GPUs; or none and why, where one of them does not tell."""
    monitor = open_monitor()
    if monitor is None:
        return (), monitor_problem() or "NVML does not start"
    meters = open_meters(stack.enter_context(monitor), device)
    ranks = distributed.ranks()
    if len(meters) < ranks:
        why = f"of {ranks} devices that train, {len(meters)} can be asked for energy from here"
        return (), why
    for meter in meters:
        if meter.energy_j() is None and not meter.power_w():
            return (), f"{meter.uuid}: {monitor.energy_problem(meter.uuid)}"
    return meters, ""


def _queue(runner: TrainingRunner, steps: int) -> Done:
    """Queue training steps in all processes; they are done when an event behind them is."""
    distributed.from_first(steps)
    runner.run_steps(steps)
    return backend_of(runner.arm.device).record_event().query


def _follow(runner: TrainingRunner) -> None:
    """Run the steps that the first process queues, while it reads the meters."""
    while steps := distributed.from_first(0):
        runner.run_steps(steps)
