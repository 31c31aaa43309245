"""Arms that scripts of this folder time: the harness's steps, and the same in a plain loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bench.data import random_batches
from bench.devices.backend import backend_of
from bench.launch.local import LocalLauncher
from bench.measure.rounds import compare
from bench.measure.warmup import prepare
from bench.planning import suite_registry
from bench.planning.abilities import is_emulated, unsupported_reason
from bench.results.records import Device
from bench.spec.precisions import parse_precision
from bench.spec.protocol import Protocol
from bench.spec.suite import Suite
from bench.stats import Interval, student
from bench.training import amp
from bench.training.arms import BATCHES, TrainingRunner
from bench.training.step import build_arm, build_loss

HARNESS, BY_HAND = "harness", "by hand"


@dataclass(slots=True)
class HandRunner:
    """A model in a hand-written training loop, to compare the harness with."""

    name: str
    precision: str
    device: torch.device
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    batches: list[tuple[Tensor, Tensor]]
    half: torch.dtype | None
    """The type that autocast computes in; None computes in fp32."""
    steps: int = 0
    last: Tensor | None = None

    @property
    def asynchronous(self) -> bool:
        """Whether ``run_steps`` returns before the device is done."""
        return self.device.type == "cuda"

    def activate(self) -> None:
        """Set the switches as the harness does, so that both compute alike."""
        amp.apply(parse_precision(self.precision))

    def run_steps(self, steps: int) -> None:
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
        backend_of(self.device).synchronize()

    def fingerprint(self) -> object:
        """Return nothing that changes."""
        return None

    def taken_steps(self) -> int:
        """Return all steps."""
        return self.steps


def half_type(precision: str) -> torch.dtype | None:
    """Return the type that a precision autocasts to."""
    name = parse_precision(precision).autocast
    return getattr(torch, name) if name else None


def open_suite(name: str, **parameters: object) -> Suite:
    """Return a suite with some of its parameters set."""
    settings = {key: str(value) for key, value in parameters.items()}
    return suite_registry.load(suite_registry.refer(name, settings))


def harness(suite: Suite, precision: str, device: torch.device, batch_size: int) -> TrainingRunner:
    """Return the harness's arm."""
    arm = build_arm(suite, suite.data, parse_precision(precision), device, seed=0)
    batches = batches_of(suite, device, batch_size)
    return TrainingRunner(name=precision, arm=arm, batches=itertools.cycle(batches))


def batches_of(suite: Suite, device: torch.device, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the batches that all arms train on."""
    return random_batches(suite.data, batch_size=batch_size, count=BATCHES, device=device, seed=0)


def by_hand(
    suite: Suite,
    precision: str,
    device: torch.device,
    batch_size: int,
    *,
    model: nn.Module | None = None,
) -> HandRunner:
    """Return the same steps written by hand, of the suite's model or of another model."""
    torch.manual_seed(0)
    if model is None:
        model = suite.model(suite.data)
    model = model.to(device).train()
    return HandRunner(
        name=BY_HAND,
        precision=precision,
        device=device,
        model=model,
        loss=build_loss(suite, suite.data).to(device),
        optimizer=suite.optimizer(model.parameters()),
        batches=batches_of(suite, device, batch_size),
        half=half_type(precision),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A comparison that a fresh process makes."""

    suite: str
    parameters: dict[str, object]
    precision: str
    device: str
    batch_size: int
    budget_s: float
    """Seconds an arm."""
    own_first: bool = True
    """Whether the harness's arm is built first, or last."""

    def arguments(self) -> tuple[Suite, str, torch.device, int]:
        """Return the suite, precision, device and batch size of every arm."""
        return (
            open_suite(self.suite, **self.parameters),
            self.precision,
            torch.device(self.device),
            self.batch_size,
        )


def over_by_hand(comparison: Comparison) -> dict[str, float]:
    """Return the log-ratio of the harness's step time to the hand-written loop's."""
    arguments = comparison.arguments()
    builders: dict[str, Callable[[], TrainingRunner | HandRunner]] = {
        HARNESS: lambda: harness(*arguments),
        BY_HAND: lambda: by_hand(*arguments),
    }
    return log_ratios(comparison, builders, BY_HAND)


def log_ratios(
    comparison: Comparison,
    builders: Mapping[str, Callable[[], TrainingRunner | HandRunner]],
    below: str,
) -> dict[str, float]:
    """Build all arms, and return the log-ratio of each one's step time to that of ``below``.

    All take turns in the same rounds. Tensors lie at other addresses in each arm and process, which
    changes a short step by some per cent. A claim therefore needs several processes, and each arm
    built first in half of them.
    """
    names = list(builders) if comparison.own_first else list(builders)[::-1]
    arms = {name: builders[name]() for name in names}
    protocol = Protocol(time_budget_s=comparison.budget_s, target_ci=0.001)
    cuts = dict(zip(arms, prepare(list(arms.values()), protocol.process_s), strict=True))
    # Rounds give each arm's speedup over the first: its logarithm is that of the inverse ratio.
    others = [name for name in arms if name != below]
    order = (below, *others)
    runners = [arms[name] for name in order]
    sizes = [cuts[name].sizes for name in order]
    logs = compare(runners, sizes, protocol, seed=0).logs[1:]
    return {name: -log.center for name, log in zip(others, logs, strict=True)}


def over_processes(
    launcher: LocalLauncher, target: str, comparison: Comparison, processes: int
) -> dict[str, Interval]:
    """Make a comparison in fresh processes, and return each arm's ratio.

    The harness's arm is built first and last by turns.
    """
    logs = []
    for number in range(processes):
        turn = replace(comparison, own_first=number % 2 == 0)
        logs.append(launcher.call(target, turn))
    return {arm: student([log[arm] for log in logs]).exp() for arm in logs[0]}


def survey(launcher: LocalLauncher, name: str) -> Device:
    """Return the survey's record of a device named like ``cpu`` or ``cuda:0``."""
    device = torch.device(name)
    placement = "cpu" if device.type == "cpu" else str(device.index or 0)
    return launcher.survey((placement,)).devices[0]


def choose_precisions(words: str | None, device: Device, notes: list[str]) -> list[str]:
    """Return the named precisions, else fp32 and amp-bf16 if the device does not emulate them.

    Args:
        words: the value of ``--precisions``.
        device: runs them.
        notes: receives the reason for each precision that is left out.
    """
    if words:
        return words.split(",")
    chosen = []
    for precision in ("fp32", "amp-bf16"):
        reason = unsupported_reason(device, precision)
        if reason is None and is_emulated(device, precision):
            rates = f"{device.bf16_gflops:.1f} GFLOP/s against {device.fp32_gflops:.0f} in fp32"
            reason = f"this CPU emulates bfloat16 ({rates})"
        if reason is None:
            chosen.append(precision)
        else:
            notes.append(f"{precision} is left out: {reason}.")
    return chosen
