"""The measurements of the self-tests, each in a fresh process: ``probe(device, *arguments, send)``."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from bench.devices.backend import backend_of, gpu_count
from bench.devices.cuda import gpu_properties, vendor
from bench.devices.energy import GpuMeter
from bench.devices.monitor import DeviceLostError, open_monitor
from bench.doctor.arms import (
    SLEPT,
    SMALL,
    beside_process,
    build_runner,
    busy_wait,
    known_step,
    lengthened,
    pause,
    torch_device,
    training_runner,
)
from bench.doctor.checks import Identity
from bench.measure import memory
from bench.measure.energy import measure
from bench.measure.operations import observe
from bench.measure.rounds import compare
from bench.measure.stream import burst_steps
from bench.measure.timing import Clock, Runner, Sizes
from bench.measure.warmup import empty_block_ns, prepare, warm_up
from bench.phases.arms import enter
from bench.phases.energy import WARM_UP_S, TrainingLoad
from bench.results.records import Device, MemoryPeak, Message
from bench.spec.trial import Protocol
from bench.stats import Interval

Send = Callable[[Message], None]

KNOWN_NS = (3e6, 2e6)
KNOWN_CYCLES = (4_000_000, 2_000_000)
"""Steps of a known ratio: nanoseconds on a CPU; cycles on a GPU, some milliseconds too."""
KNOWN = Protocol(replicates=1, time_budget_s=2.0)
FINE = Protocol(time_budget_s=2.0, target_ci=0.0025)
"""Narrow enough to see 1 %."""
ADDED = 0.01
BESIDE = Protocol(replicates=1, time_budget_s=8.0, min_quads=8, target_ci=0.002)
BESIDE_S, RESUME_S = 0.5, 0.1
"""Blocks beside the sampler hold a few of its readings each: a reading in few blocks would be trimmed away."""
WINDOWS_S = (5.0, 10.0)


def matmul_error(device: Device, precision: str, _send: Send) -> float | None:
    """Return the error of a matrix product under a precision's switches, against float64."""
    return enter(precision, torch_device(device))[1].matmul_error


def compute_dtypes(device: Device, precision: str, _send: Send) -> str:
    """Return the types that a small model's products computed in, with their shares of the FLOPs."""
    width, batch_size = SMALL
    runner = build_runner(device, precision, precision, width=width, batch_size=batch_size)
    runner.run(1)
    return observe(partial(runner.run, 1)).compute_dtypes


def timed(
    runners: Sequence[Runner], protocol: Protocol, *, seed: int = 0, clock: Clock | None = None
) -> list[Interval]:
    """Measure the log-speedup of each arm over the first as a speed trial does."""
    clock = clock or time.perf_counter_ns
    cuts = prepare(runners, protocol.time_budget_s, clock=clock)
    paired = compare(runners, [cut.sizes for cut in cuts], protocol, seed=seed, clock=clock)
    return [log for log in paired.logs[1:] if log is not None]


def empty_block(device: Device, _send: Send) -> float:
    """Return the nanoseconds of a block without steps."""
    runner = training_runner(device)
    runner.run(1)
    return empty_block_ns(runner)


def known_ratio(device: Device, _send: Send) -> tuple[float, Interval]:
    """Return the ratio of two arms that take known times, and the log-ratio measured."""
    place = torch_device(device)
    enter("fp32", place)
    on_gpu = device.is_gpu
    long, short = KNOWN_CYCLES if on_gpu else KNOWN_NS
    arms = [
        known_step(name, place, partial(backend_of(place).spin, int(size)) if on_gpu else busy_wait(size, SLEPT))
        for name, size in (("longer", long), ("shorter", short))
    ]
    (log,) = timed(arms, KNOWN)
    return long / short, log


def against_itself(device: Device, process: int, _send: Send) -> tuple[float, float]:
    """Return the log-ratios of a training step to itself, and to itself with 1 % added, in this process."""
    base, again, longer = (training_runner(device, name) for name in ("A", "A again", "A + 1 %"))
    step_ns = warm_up(longer, FINE.time_budget_s / 2).step_ns
    arms: list[Runner] = [base, again, lengthened("A + 1 %", longer, pause(torch_device(device), ADDED * step_ns))]
    same, added = timed(arms, FINE, seed=process)
    return same.center, added.center


def beside_sampler(device: Device, pid: int, _send: Send) -> Interval | None:
    """Return the log-ratio of steps while the sampling process is stopped to steps while it runs.

    Args:
        device: the GPU that it samples.
        pid: the sampling process, which continues when this ends.
    """
    runner = training_runner(device)
    step_s = warm_up(runner, BESIDE.time_budget_s / 4).step_ns / 1e9
    sizes = Sizes(switch_warmup=math.ceil(RESUME_S / step_s), steps=math.ceil(BESIDE_S / step_s))
    arms = [beside_process(name, runner, pid, runs=runs) for name, runs in (("off", False), ("on", True))]
    try:
        return compare(arms, [sizes, sizes], BESIDE, seed=0).logs[1]
    finally:
        os.kill(pid, signal.SIGCONT)


def peak(device: Device, held_bytes: int, _send: Send) -> MemoryPeak:
    """Return the peaks of a small training step that also holds ``held_bytes``, as the memory phase measures them."""
    width, batch_size = SMALL
    before = memory.driver_memory_bytes(device.uuid)  # before anything can make a context
    place = torch_device(device)
    enter("fp32", place)
    resident = None
    if not device.is_gpu:
        # The first step makes the system load code of the libraries, which is not the step's.
        build_runner(device, "first", "fp32", width=width, batch_size=2).run(1)
        resident = memory.resident_bytes()
    runner = build_runner(device, "fp32", "fp32", width=width, batch_size=batch_size)

    def step() -> None:
        held = torch.ones(held_bytes, dtype=torch.uint8, device=place)  # written to, or it would not be resident
        runner.run(1)
        del held

    return memory.measure_peaks(
        step,
        place,
        resident_before=resident,
        driver_before=before,
        uuid=device.uuid,
        model_bytes=memory.model_bytes(runner.arm.model),
    )


def take(device: Device, taken_bytes: int, _send: Send) -> bool:
    """Use that much memory and end; False where less than twice that is free."""
    place = torch_device(device)
    free = backend_of(place).free_bytes()
    if free < 2 * taken_bytes:
        return False
    return bool(torch.ones(taken_bytes, dtype=torch.uint8, device=place)[-1] == 1)


def identify(device: Device, _send: Send) -> Identity | None:
    """Follow a GPU's CUDA index to NVML's UUID and back; None where NVML does not start or does not know it."""
    nvml = open_monitor()
    if nvml is None:
        return None
    index = torch_device(device).index
    properties = gpu_properties(index)
    with nvml:
        try:
            gpu = nvml.gpu(cuda_uuid(index))
            # Asked of NVML anew, because ``gpu`` holds the UUID that it was asked with.
            uuid = nvml.canonical_uuid(gpu.uuid)
        except DeviceLostError as failure:
            print(f"NVML does not know GPU {index}: {failure}")
            return None
    return Identity(
        cuda_index=index,
        cuda_name=properties.name,
        cuda_bytes=properties.total_memory,
        uuid=uuid,
        nvml_name=gpu.name,
        nvml_bytes=gpu.memory_total_bytes,
        back=tuple(other for other in range(gpu_count()) if uuid.endswith(cuda_uuid(other))),
    )


def cuda_uuid(index: int) -> str:
    """Return a GPU's UUID as CUDA tells it: without NVML's prefix."""
    return vendor().uuid(gpu_properties(index))


def energy_windows(device: Device, send: Send) -> tuple[float, float] | None:
    """Return the joules per step of a window of 5 s and one of 10 s; None where the GPU does not tell."""
    nvml = open_monitor()
    if nvml is None or device.uuid is None:
        return None
    runner = training_runner(device)
    burst = burst_steps(warm_up(runner, WARM_UP_S).step_ns / 1e9)
    with nvml:
        meter, load = GpuMeter(nvml, device.uuid), TrainingLoad(runner, send)
        windows = [measure(load, meter, burst=burst, seconds=seconds) for seconds in WINDOWS_S]
    first, second = windows
    return (first.energy_j / first.steps, second.energy_j / second.steps) if first and second else None
