"""What the scripts here time: the harness's own steps, and the same steps as one writes them by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from bench.data import random_batches
from bench.measure.quads import compare
from bench.measure.warmup import prepare
from bench.phases.arms import BATCHES, TrainingRunner
from bench.planning import suite_registry
from bench.planning.defaults import slower, unsupported_reason
from bench.results.records import Device
from bench.spec.precisions import parse_precision
from bench.spec.suite import Data, Suite
from bench.spec.trial import Protocol
from bench.training import amp as switches
from bench.training.step import build_arm, build_loss, synchronize

Batch = tuple[Tensor, Tensor]
HARNESS, BY_HAND = "harness", "by hand"
AGAIN, CALLED = "by hand again", "by hand, in a function"


@dataclass(slots=True)
class HandRunner:
    """A model in a loop of the usual kind: what a comparison with the harness is with."""

    name: str
    precision: str
    device: torch.device
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    batches: list[Batch]
    half: torch.dtype | None = None
    """What autocast computes in; None computes in fp32."""
    steps: int = 0
    last: Tensor | None = field(default=None)

    @property
    def asynchronous(self) -> bool:
        """Whether ``run`` returns before the device is done."""
        return self.device.type == "cuda"

    def activate(self) -> None:
        """Set the switches as the harness does, that both compute alike."""
        set_switches(self.precision)

    def run(self, steps: int) -> None:
        """Train as in PyTorch's recipe."""
        model, loss_of, optimizer, half = self.model, self.loss, self.optimizer, self.half
        batches = itertools.cycle(self.batches)
        for _ in range(self.steps % len(self.batches)):
            next(batches)
        for _ in range(steps):
            inputs, targets = next(batches)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, dtype=half) if half else nullcontext():
                loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
        self.steps += steps
        self.last = loss.detach() if steps else self.last

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.device)

    def fingerprint(self) -> object:
        """Return nothing that changes."""
        return None

    def taken_steps(self) -> int:
        """Return all steps."""
        return self.steps


Arm = TrainingRunner | HandRunner
Build = Callable[[Suite, str, torch.device, int], Arm]


@dataclass(slots=True)
class CalledRunner(HandRunner):
    """The same steps in a loop as the harness's: a function called for each batch, and the last loss dropped before."""

    def run(self, steps: int) -> None:
        """Train as ``HandRunner`` does."""
        for turn in range(self.steps, self.steps + steps):
            self.last = None
            self.last = bare_step(self, *self.batches[turn % len(self.batches)])
        self.steps += steps


def bare_step(arm: HandRunner, inputs: Tensor, targets: Tensor) -> Tensor:
    """Train on one batch; return its loss."""
    arm.optimizer.zero_grad(set_to_none=True)
    with torch.autocast(arm.device.type, dtype=arm.half) if arm.half else nullcontext():
        loss: Tensor = arm.loss(arm.model(inputs), targets)
    loss.backward()
    arm.optimizer.step()
    return loss


def open_suite(name: str, **parameters: object) -> Suite:
    """Return a suite with some of its parameters."""
    return suite_registry.load(suite_registry.refer(name, {key: str(value) for key, value in parameters.items()}))


def set_switches(precision: str) -> None:
    """Set TF32's switches for whatever runs next: torch's own default is TF32 in convolutions."""
    switches.apply(parse_precision(precision))


def half_type(precision: str) -> torch.dtype | None:
    """Return what a precision autocasts to."""
    name = parse_precision(precision).autocast
    return getattr(torch, name) if name else None


def harness(suite: Suite, precision: str, device: torch.device, batch_size: int) -> TrainingRunner:
    """Return the harness's own arm."""
    return TrainingRunner(
        name="harness",
        arm=build_arm(suite, suite.data, parse_precision(precision), device, seed=0),
        batches=itertools.cycle(
            random_batches(suite.data, batch_size=batch_size, count=BATCHES, device=device, seed=0)
        ),
    )


def by_hand(
    suite: Suite, precision: str, device: torch.device, batch_size: int, model: nn.Module | None = None
) -> HandRunner:
    """Return the same steps written by hand, of the suite's model or of another one."""
    torch.manual_seed(0)
    model = (suite.model(suite.data) if model is None else model).to(device).train()
    return HandRunner(
        name="by hand",
        precision=precision,
        device=device,
        model=model,
        loss=build_loss(suite, suite.data).to(device),
        optimizer=suite.optimizer(model.parameters()),
        batches=random_batches(suite.data, batch_size=batch_size, count=BATCHES, device=device, seed=0),
        half=half_type(precision),
    )


def called(suite: Suite, precision: str, device: torch.device, batch_size: int) -> HandRunner:
    """Return the same steps written by hand in a function."""
    made = by_hand(suite, precision, device, batch_size)
    return CalledRunner(**{field.name: getattr(made, field.name) for field in fields(made)})


def classes(data: Data) -> int:
    """Return the number of classes."""
    return data.classes or 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is to be timed in a process of its own, the harness's step and the one by hand."""

    suite: str
    parameters: dict[str, object]
    precision: str
    device: str
    batch_size: int
    budget_s: float
    own_first: bool
    """Which is built first."""
    references: bool = False
    """Whether the loop by hand is timed against itself too, and with its step in a function."""


def over_by_hand(asked: Question, _send: object = None) -> dict[str, float]:
    """Return the log-ratio of the harness's time for a step to that by hand, as this process finds it, by arm.

    Where tensors come to lie in memory differs from arm to arm and from process to process, by some per cent of a short
    step: a claim needs several processes, and each arm built first in half of them.
    """
    suite, place = open_suite(asked.suite, **asked.parameters), torch.device(asked.device)
    builders: dict[str, Build] = {HARNESS: harness, BY_HAND: by_hand}
    if asked.references:
        builders |= {AGAIN: by_hand, CALLED: called}
    names = list(builders) if asked.own_first else list(builders)[::-1]
    built = {name: builders[name](suite, asked.precision, place, asked.batch_size) for name in names}
    return log_ratios(built, BY_HAND, asked.budget_s)


def log_ratios(built: Mapping[str, Arm], below: str, budget_s: float) -> dict[str, float]:
    """Return for each arm but one the log-ratio of its time for a step to that one's, measured in quads of all.

    Args:
        built: the arms by name, in the order in which they were built; they are warmed up in it too.
        below: the one that the others are compared with.
        budget_s: seconds an arm.

    Raises:
        RuntimeError: nothing could be measured in the time.
    """
    protocol = Protocol(time_budget_s=budget_s, target_ci=0.001)
    cuts = dict(zip(built, prepare(list(built.values()), budget_s), strict=True))
    others = [name for name in built if name != below]
    names = [below, *others]
    speedups = compare([built[name] for name in names], [cuts[name].sizes for name in names], protocol, seed=0).logs[1:]
    found = {name: -log.center for name, log in zip(others, speedups, strict=True) if log is not None}
    if len(found) < len(others):
        raise RuntimeError(f"no quad of {' and '.join(names)} counts; give more --budget")
    return found


def why_not(device: Device, precision: str) -> str | None:
    """Say why a precision is left out: the device cannot do it, or emulates it."""
    if reason := unsupported_reason(device, precision):
        return reason
    if slower(device, precision):
        return f"this CPU emulates bfloat16 ({device.bf16_gflops:.1f} GFLOP/s against {device.fp32_gflops:.0f} in fp32)"
    return None
