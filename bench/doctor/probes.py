"""The measurements of the self-tests, each in a fresh process: ``probe(device, *arguments)``.

They time steps that take a known time, and a small model in training.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from bench.data import random_batches
from bench.devices.backend import backend_of, device_at
from bench.doctor.checks import KNOWN_PARTS
from bench.measure import memory
from bench.measure.rounds import Clock, Runner, compare
from bench.measure.warmup import prepare
from bench.phases.memory import MemoryPeak
from bench.planning import suite_registry
from bench.results.records import Device
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.protocol import Protocol
from bench.spec.trial import SuiteRef
from bench.stats import Interval
from bench.training.arms import BATCHES, TrainingRunner, enter, use_precision
from bench.training.step import build_arm

# A part of a step of a known ratio on a CPU: three milliseconds of waiting.
PART_NS = 3e6
# What of it is slept; the rest is a busy wait, because a sleep ends late, by more where other
# programs are busy.
SLEPT_S = 1.8e-3
# The size of the product that is a part on a GPU: tenths of a millisecond, so that launching it
# takes no time.
PRODUCT = 2048
# Narrow enough to see 1 %.
FINE = Protocol(
    replicates=1, most_replicates=1, time_budget_s=2.0, fewest_rounds=5, target_ci=0.0025
)
# Width and batch size of the model: its steps take milliseconds, and on a GPU are not launch-bound.
SIZES = {"cpu": (256, 128), "cuda": (2048, 1024)}


def matmul_error(device: Device) -> float | None:
    """Return the error of a matrix product under fp32's switches, against float64."""
    return enter(BASELINE, torch_device(device)).matmul_error


def timed(
    arms: Sequence[Runner], *, seed: int = 0, clock: Clock = time.perf_counter_ns
) -> Interval:
    """Measure the log-speedup of the second arm over the first as a speed trial does."""
    plans = prepare(arms, FINE.process_s, clock=clock)
    sizes = [plan.sizes for plan in plans]
    return compare(arms, sizes, FINE, seed=seed, clock=clock).logs[1]


def known_ratio(device: Device) -> Interval:
    """Return the log-ratio measured of two arms that take known times.

    Their steps are made of work that always takes the same time: waiting on a CPU, a product on a
    GPU.
    """
    place = torch_device(device)
    use_precision(BASELINE, place)
    part: Callable[[], object] = wait
    if device.is_gpu:
        factor = torch.ones(PRODUCT, PRODUCT, device=place)
        part = partial(torch.mm, factor, factor, out=torch.empty_like(factor))
    return timed([KnownArm(place, part, parts) for parts in KNOWN_PARTS])


def wait() -> None:
    """Wait for ``PART_NS``."""
    end = time.perf_counter_ns() + PART_NS
    time.sleep(SLEPT_S)
    while time.perf_counter_ns() < end:
        pass


def against_itself(device: Device, process: int) -> float:
    """Return the log-ratio of a training step to itself in this process."""
    arms = [training_runner(device), training_runner(device)]
    return timed(arms, seed=process).center


def peak(device: Device, held_bytes: int) -> int | None:
    """Return the peak of a small training step that also holds ``held_bytes``.

    It is measured as in the memory phase.
    """
    place = torch_device(device)
    # The first step makes the system load code of the libraries, which is not the step's.
    training_runner(device).run_steps(1)
    resident = memory.resident_bytes()
    runner = training_runner(device)

    def step() -> None:
        # Written to, or it would not be resident.
        held = torch.ones(held_bytes, dtype=torch.uint8, device=place)
        runner.run_steps(1)
        del held

    peaks = memory.measure_peaks(step, place, resident_before=resident)
    return MemoryPeak(**peaks).headline_bytes


def torch_device(device: Device) -> torch.device:
    """Return the device as torch names it."""
    return device_at(Placement(name=device.placement).device_of())


class KnownArm:
    """An arm of which each step is so many times the same work."""

    def __init__(self, place: torch.device, part: Callable[[], object], parts: int) -> None:
        self.name = f"{parts} parts"
        self._part = part
        self._parts = parts
        self._steps = 0
        backend = backend_of(place)
        self.asynchronous = backend.is_gpu
        self.synchronize = backend.synchronize

    def activate(self) -> None:
        """Do nothing: there is nothing to switch."""

    def run_steps(self, steps: int) -> None:
        """Run, or queue, that many steps."""
        for _ in range(steps * self._parts):
            self._part()
        self._steps += steps

    def fingerprint(self) -> object:
        """Return nothing: it is always steady."""
        return None

    def taken_steps(self) -> int:
        """Return all steps."""
        return self._steps


def training_runner(device: Device, precision: str = BASELINE) -> TrainingRunner:
    """Return a small MLP in training at a precision, on batches that are on the device."""
    width, batch_size = SIZES[device.kind]
    place = torch_device(device)
    use_precision(precision, place)
    suite = suite_registry.load(SuiteRef(name="mlp", parameters=(("width", width),)))
    arm = build_arm(suite, suite.data, PRECISIONS[precision], place, seed=0)
    batches = random_batches(suite.data, batch_size=batch_size, count=BATCHES, device=place, seed=0)
    return TrainingRunner(precision, arm, itertools.cycle(batches))
