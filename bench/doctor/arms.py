"""What the self-tests time: steps that take a known time, and a small model in training."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.data import random_batches
from bench.devices.backend import backend_of, device_at
from bench.measure.timing import Runner
from bench.phases.arms import BATCHES, TrainingRunner, enter
from bench.planning import suite_registry
from bench.results.records import Device
from bench.spec.precisions import parse_precision
from bench.spec.trial import Placement, SuiteRef
from bench.training.step import build_arm, synchronize

SMALL = (256, 128)
SIZES = {"cpu": SMALL, "cuda": (2048, 1024)}
"""Width and batch size of the model that is timed: steps of milliseconds, which on a GPU are not launch-bound."""
SLEPT = 0.6
"""Share of a known time that is slept; the rest is a busy wait, because a sleep ends late by some tens of µs."""
CALIBRATION_CYCLES = 20_000_000


def torch_device(device: Device) -> torch.device:
    """Return the device as torch names it."""
    index = Placement(name=device.placement).index
    return device_at(index)


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
    return StepRunner(name, backend_of(device).is_gpu, wait, lambda: synchronize(device))


def lengthened(name: str, inner: Runner, wait: Callable[[], None]) -> StepRunner:
    """Return an arm whose steps are another arm's, each followed by a wait."""

    def step() -> None:
        inner.run(1)
        wait()

    return StepRunner(name, inner.asynchronous, step, inner.synchronize, inner.activate, inner.fingerprint)


def beside_process(name: str, inner: Runner, pid: int, *, runs: bool) -> StepRunner:
    """Return an arm with another one's steps, during whose blocks a process runs or is stopped."""

    def activate() -> None:
        os.kill(pid, signal.SIGCONT if runs else signal.SIGSTOP)
        inner.activate()

    return StepRunner(name, inner.asynchronous, lambda: inner.run(1), inner.synchronize, activate, inner.fingerprint)


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


def pause(device: torch.device, time_ns: float) -> Callable[[], None]:
    """Return a wait that is short beside a step: a busy one on a CPU, a spinning kernel on a GPU."""
    if backend_of(device).is_gpu:
        cycles = round(time_ns * cycles_per_ns(device))
        return lambda: backend_of(device).spin(cycles)
    return busy_wait(time_ns)


def cycles_per_ns(device: torch.device) -> float:
    """Return the GPU's clock rate as its spinning kernel sees it, in GHz."""
    backend_of(device).spin(CALIBRATION_CYCLES)
    synchronize(device)
    start = time.perf_counter_ns()
    backend_of(device).spin(CALIBRATION_CYCLES)
    synchronize(device)
    return CALIBRATION_CYCLES / (time.perf_counter_ns() - start)
