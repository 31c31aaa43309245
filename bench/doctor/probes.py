"""The measurements of the self-tests, each in a fresh process: ``probe(device, *arguments, send)``.

They time steps that take a known time, and a small model in training.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.data import random_batches
from bench.devices.backend import backend_of, device_at
from bench.measure import memory
from bench.measure.rounds import Clock, Runner, Sizes, compare
from bench.measure.warmup import prepare, warm_up
from bench.phases.memory import MemoryPeak
from bench.planning import suite_registry
from bench.results.records import Device, Message
from bench.spec.precisions import parse_precision
from bench.spec.trial import Placement, Protocol, SuiteRef
from bench.stats import Interval
from bench.training.arms import BATCHES, TrainingRunner, enter
from bench.training.step import build_arm

Send = Callable[[Message], None]

KNOWN_PARTS, PART_NS = (3, 2), 1e6
"""Steps of a known ratio: of so many equal parts, each a millisecond of waiting on a CPU, and products on a GPU."""
PRODUCT = 2048
"""The size of such a product: tenths of a millisecond or more on every GPU, so that launching it takes no time."""
KNOWN = Protocol(replicates=1, most_replicates=1, time_budget_s=2.0, fewest_rounds=5)
FINE = Protocol(replicates=1, most_replicates=1, time_budget_s=2.0, fewest_rounds=5, target_ci=0.0025)
"""Narrow enough to see 1 %."""
WATCHED = Protocol(replicates=1, most_replicates=1, time_budget_s=8.0, min_rounds=8, fewest_rounds=5, target_ci=0.002)
SWITCH_S, BLOCK_S = 0.1, 0.5
"""Untimed and timed part of a block in which a GPU is read or not: of several readings each."""
SMALL = (256, 128)
SIZES = {"cpu": SMALL, "cuda": (2048, 1024)}
"""Width and batch size of the model that is timed: steps of milliseconds, which on a GPU are not launch-bound."""
SLEPT = 0.6
"""Share of a known time that is slept; the rest is a busy wait, because a sleep ends late by some tens of µs."""


def matmul_error(device: Device, _send: Send) -> float | None:
    """Return the error of a matrix product under fp32's switches, against float64."""
    return enter("fp32", torch_device(device)).matmul_error


def timed(
    runners: Sequence[Runner], protocol: Protocol, *, seed: int = 0, clock: Clock | None = None
) -> list[Interval]:
    """Measure the log-speedup of each arm over the first as a speed trial does."""
    clock = clock or time.perf_counter_ns
    cuts = prepare(runners, protocol.process_s, clock=clock)
    paired = compare(runners, [cut.sizes for cut in cuts], protocol, seed=seed, clock=clock)
    return [log for log in paired.logs[1:] if log is not None]


def known_ratio(device: Device, _send: Send) -> tuple[float, Interval]:
    """Return the ratio of two arms that take known times, and the log-ratio measured."""
    place = torch_device(device)
    enter("fp32", place)
    arms = [known_step(str(parts), place, known_work(place, parts)) for parts in KNOWN_PARTS]
    (log,) = timed(arms, KNOWN)
    return KNOWN_PARTS[0] / KNOWN_PARTS[1], log


def known_work(place: torch.device, parts: int) -> Callable[[], None]:
    """Return work of so many equal parts: milliseconds of waiting on a CPU, the same product on a GPU."""
    if not backend_of(place).is_gpu:
        return busy_wait(parts * PART_NS, SLEPT)
    factor = torch.ones(PRODUCT, PRODUCT, device=place)
    product = torch.empty_like(factor)

    def multiply() -> None:
        for _ in range(2 * parts):
            torch.mm(factor, factor, out=product)

    return multiply


def against_itself(device: Device, process: int, _send: Send) -> float:
    """Return the log-ratio of a training step to itself in this process."""
    arms: list[Runner] = [training_runner(device, name) for name in ("A", "A again")]
    (same,) = timed(arms, FINE, seed=process)
    return same.center


def peak(device: Device, held_bytes: int, _send: Send) -> MemoryPeak:
    """Return the peaks of a small training step that also holds ``held_bytes``, as the memory phase measures them."""
    width, batch_size = SMALL
    before, _ = memory.driver_memory_bytes(device.uuid)  # before anything can make a context
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

    peaks = memory.measure_peaks(
        step,
        place,
        resident_before=resident,
        driver_before=before,
        uuid=device.uuid,
        model_bytes=memory.model_bytes(runner.arm.model),
    )
    return MemoryPeak(**peaks)


def telemetry(device: Device, reading: int, _send: Send) -> Interval:
    """Return the log-speedup of a training step while a process reads the GPU over one while that process is stopped.

    Args:
        device: the GPU.
        reading: the id of the process that reads it.
    """
    inner = training_runner(device)
    step_s = warm_up(inner, FINE.time_budget_s).step_ns / 1e9
    sizes = Sizes(switch_warmup=math.ceil(SWITCH_S / step_s), steps=math.ceil(BLOCK_S / step_s))
    arms = [
        StepRunner(name, inner.asynchronous, partial(inner.run, 1), inner.synchronize, partial(os.kill, reading, what))
        for name, what in (("stopped", signal.SIGSTOP), ("reading", signal.SIGCONT))
    ]
    try:
        log = compare(arms, [sizes, sizes], WATCHED, seed=0).logs[1]
    finally:
        os.kill(reading, signal.SIGCONT)
    assert log is not None  # both arms were timed
    return log


def torch_device(device: Device) -> torch.device:
    """Return the device as torch names it."""
    return device_at(Placement(name=device.placement).device_of())


@dataclass(slots=True)
class StepRunner:
    """An arm made of functions: one step, and what the timing calls around it."""

    name: str
    asynchronous: bool
    step: Callable[[], object]
    synchronize: Callable[[], None]
    activate: Callable[[], None] = lambda: None
    fingerprint: Callable[[], object] = lambda: None
    steps: int = 0

    def run(self, steps: int) -> None:
        """Run, or queue, that many steps."""
        for _ in range(steps):
            self.step()
        self.steps += steps

    def taken_steps(self) -> int:
        """Return all steps."""
        return self.steps


def known_step(name: str, device: torch.device, wait: Callable[[], None]) -> StepRunner:
    """Return an arm whose steps are waits."""
    return StepRunner(name, backend_of(device).is_gpu, wait, lambda: backend_of(device).synchronize())


def training_runner(device: Device, name: str = "fp32") -> TrainingRunner:
    """Return a small MLP in training in fp32, on batches that are on the device."""
    width, batch_size = SIZES[device.kind]
    return build_runner(device, name, "fp32", width=width, batch_size=batch_size)


def build_runner(device: Device, name: str, precision: str, *, width: int, batch_size: int) -> TrainingRunner:
    """Return an MLP of some width in training, with the precision's switches set."""
    place = torch_device(device)
    enter(precision, place)
    suite = suite_registry.load(SuiteRef(name="mlp", parameters=(("width", width),)))
    return TrainingRunner(
        name=name,
        arm=build_arm(suite, suite.data, parse_precision(precision), place, seed=0),
        batches=itertools.cycle(random_batches(suite.data, batch_size=batch_size, count=BATCHES, device=place, seed=0)),
    )


def busy_wait(time_ns: float, slept: float = 0.0) -> Callable[[], None]:
    """Return a wait of a known time on a CPU, a share of which is slept."""

    def wait() -> None:
        end = time.perf_counter_ns() + time_ns
        if slept:
            time.sleep(slept * time_ns / 1e9)
        while time.perf_counter_ns() < end:
            pass

    return wait
