"""What the self-tests time: steps that take a known time, and a small model in training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from bench.data import random_batches
from bench.devices.backend import backend_of, device_at
from bench.measure.timing import Runner
from bench.phases.context import enter
from bench.phases.runner import BATCHES, TorchRunner
from bench.planning import suite_registry
from bench.results.records import Device
from bench.spec.precisions import parse_precision
from bench.spec.trial import Placement, SuiteRef
from bench.training.step import build_arm, synchronize

SMALL, LARGE = (256, 128), (2048, 1024)
"""Width and batch size of the model that is timed on a CPU and on a GPU: steps of milliseconds, not launch-bound."""
SLEPT = 0.6
"""Share of a known time that is slept; the rest is spun, because a sleep ends late by some tens of microseconds."""
CALIBRATION_CYCLES = 20_000_000


def torch_device(device: Device) -> torch.device:
    """Return the device as torch names it."""
    index = Placement(name=device.placement).index
    return device_at(index)


@dataclass(slots=True)
class KnownStep:
    """An arm whose steps are waits."""

    name: str
    device: torch.device
    wait: Callable[[], None]
    asynchronous: bool = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.asynchronous = backend_of(self.device).is_gpu

    def activate(self) -> None:
        """Nothing to set."""

    def run(self, steps: int) -> None:
        """Wait, or queue waits."""
        for _ in range(steps):
            self.wait()
        self.steps += steps

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.device)

    def fingerprint(self) -> object:
        """Return nothing that changes."""
        return None

    def taken_steps(self) -> int:
        """Return all steps."""
        return self.steps


@dataclass(slots=True)
class Wrapped:
    """An arm that does something more than another one; by itself nothing."""

    name: str
    inner: Runner
    asynchronous: bool = field(init=False)

    def __post_init__(self) -> None:
        self.asynchronous = self.inner.asynchronous

    def activate(self) -> None:
        """Activate the other."""
        self.inner.activate()

    def run(self, steps: int) -> None:
        """Run the other's steps."""
        self.inner.run(steps)

    def synchronize(self) -> None:
        """Wait for the other's steps."""
        self.inner.synchronize()

    def fingerprint(self) -> object:
        """Return the other's."""
        return self.inner.fingerprint()

    def taken_steps(self) -> int:
        """Return the other's."""
        return self.inner.taken_steps()


@dataclass(slots=True)
class Lengthened(Wrapped):
    """An arm each of whose steps is followed by a wait."""

    wait: Callable[[], None]

    def run(self, steps: int) -> None:
        """Run steps with their waits."""
        for _ in range(steps):
            self.inner.run(1)
            self.wait()


@dataclass(slots=True)
class BesideProcess(Wrapped):
    """An arm during whose blocks another process runs, or stands still."""

    pid: int
    runs: bool

    def activate(self) -> None:
        """Let the process go on, or stop it."""
        os.kill(self.pid, signal.SIGCONT if self.runs else signal.SIGSTOP)
        self.inner.activate()


def training_runner(device: Device, name: str = "fp32") -> TorchRunner:
    """Return a small MLP in training in fp32, on batches that are on the device."""
    width, batch_size = LARGE if device.is_gpu else SMALL
    return build_runner(device, name, "fp32", width=width, batch_size=batch_size)


def build_runner(device: Device, name: str, precision: str, *, width: int, batch_size: int) -> TorchRunner:
    """Return an MLP of some width in training, with the precision's switches set."""
    place = torch_device(device)
    enter(precision, place)
    suite = suite_registry.load(SuiteRef(name="mlp", parameters=(("width", width),)))
    return TorchRunner(
        name=name,
        arm=build_arm(suite, suite.data, parse_precision(precision), place, seed=0),
        batches=random_batches(suite.data, batch_size=batch_size, count=BATCHES, device=place, seed=0),
        asynchronous=backend_of(place).is_gpu,
    )


def nap(time_ns: float) -> Callable[[], None]:
    """Return a wait of a known time on a CPU."""

    def wait() -> None:
        end = time.perf_counter_ns() + time_ns
        time.sleep(SLEPT * time_ns / 1e9)
        while time.perf_counter_ns() < end:
            pass

    return wait


def pause(device: torch.device, time_ns: float) -> Callable[[], None]:
    """Return a busy wait that is short beside a step."""
    ticks = round(time_ns * cycles_per_ns(device)) if backend_of(device).is_gpu else round(time_ns)
    return partial(spin, device, ticks)


def spin(device: torch.device, ticks: int) -> None:
    """Queue a wait of that many cycles of a GPU, or nanoseconds of a CPU."""
    backend_of(device).spin(ticks)


def cycles_per_ns(device: torch.device) -> float:
    """Return the GPU's clock rate as its spinning kernel sees it, in GHz."""
    spin(device, CALIBRATION_CYCLES)
    synchronize(device)
    start = time.perf_counter_ns()
    spin(device, CALIBRATION_CYCLES)
    synchronize(device)
    return CALIBRATION_CYCLES / (time.perf_counter_ns() - start)
