"""Training, in plain sight: one step and one loop for every precision.

What a precision changes is what ``Arm`` holds: the region that autocasts (or does not), a GradScaler that
scales (or does nothing), and weights that are 16-bit copies of others (or are not). The step itself is the
same for all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bench import precision as switches
from bench.master import Weights
from bench.spec import BASELINE, PRECISIONS, Data, Precision, Suite


class TakenSteps:
    """A hook on an optimizer that counts its steps; those that a GradScaler skips never reach it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(  # the signature that torch gives hooks
        self, _optimizer: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]
    ) -> None:
        """Count one."""
        self.count += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A model in training at one precision on one device."""

    precision: Precision
    device: torch.device
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    taken: TakenSteps
    """Counts the optimizer steps that the scaler let through."""
    weights: Weights
    """The model's, and what the optimizer updates in their place where there is a master copy."""
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    clip_grad: float | None = None
    """Gradients are scaled down to this norm, over all parameters, where theirs is larger."""

    def autocast(self) -> AbstractContextManager[None]:
        """Return the region in which the forward pass and the loss run."""
        return switches.autocast(self.precision, self.device)


def build_arm(
    suite: Suite,
    data: Data,
    precision: Precision,
    device: torch.device,
    *,
    seed: int,
    steps: int | None = None,
    clip_grad: float | None = None,
) -> Arm:
    """Build a suite's model, loss and optimizer, with the same initial weights for every precision, but for rounding.

    Args:
        suite: the recipe.
        data: the suite's data, with the number of classes that there really are.
        precision: the arm.
        device: where the model is moved to after it has been initialised on the CPU.
        seed: seed of the initial weights and of dropout.
        steps: optimizer steps of the whole run, for the schedule; None trains at a constant rate.
        clip_grad: the norm to clip gradients to; None leaves them alone.
    """
    torch.manual_seed(seed)
    model = suite.model(data).to(device).train()
    loss = build_loss(suite, data)
    if precision.float8:
        switches.use_float8(model)
    weights = Weights(model, precision)
    optimizer = suite.optimizer(weights.trained())
    schedule = suite.schedule(optimizer, steps) if suite.schedule and steps else None
    scaler = switches.grad_scaler(precision, device)
    taken = TakenSteps()
    optimizer.register_step_post_hook(taken)
    weights.follow(optimizer)
    return Arm(
        precision=precision,
        device=device,
        model=model,
        loss=loss.to(device),
        optimizer=optimizer,
        scaler=scaler,
        taken=taken,
        weights=weights,
        schedule=schedule,
        clip_grad=clip_grad,
    )


def build_loss(suite: Suite, data: Data) -> nn.Module:
    """Build the suite's loss, or the default: cross entropy, or mean square error for regression."""
    if suite.loss is not None:
        return suite.loss()
    return nn.MSELoss() if data.classes is None else nn.CrossEntropyLoss()


def training_step(arm: Arm, inputs: Tensor, targets: Tensor) -> Tensor:
    """Train on one batch.

    Args:
        arm: what to train.
        inputs: shape (batch, *input shape), on the arm's device.
        targets: shape (batch,) of classes, or (batch, *target shape).

    Returns:
        The loss, a scalar still on the device, so that nothing waits for it.
    """
    arm.optimizer.zero_grad(set_to_none=True)
    with arm.autocast():  # forward and loss in one region; backward runs outside it, in the types forward chose
        loss: Tensor = arm.loss(arm.model(inputs), targets)
    arm.scaler.scale(loss).backward()
    if arm.clip_grad is not None:
        arm.scaler.unscale_(arm.optimizer)  # the norm is the gradients' own, not the scaled ones'
        nn.utils.clip_grad_norm_(arm.weights.trained(), arm.clip_grad)
    arm.scaler.step(arm.optimizer)  # skips the step where a gradient overflowed
    arm.scaler.update()
    if arm.schedule is not None:
        arm.schedule.step()
    return loss.detach()


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What one pass over the training data came to."""

    loss: float
    """Mean over the epoch's batches."""
    seconds: float
    wait_seconds: float
    """Host time spent in asking for the next batch."""
    samples: int
    skipped_steps: int


def train_epoch(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> Epoch:
    """Train on every batch once; the clock covers loading and training, and stops when the device is done."""
    losses: list[Tensor] = []
    wait_ns = samples = 0
    taken = arm.taken.count
    synchronize(arm.device)
    start = asked = time.perf_counter_ns()
    for inputs, targets in batches:
        wait_ns += time.perf_counter_ns() - asked
        losses.append(training_step(arm, inputs, targets))
        samples += len(inputs)
        asked = time.perf_counter_ns()
    wait_ns += time.perf_counter_ns() - asked
    synchronize(arm.device)
    seconds = (time.perf_counter_ns() - start) / 1e9
    return Epoch(
        loss=float(torch.stack(losses).float().mean()),
        seconds=seconds,
        wait_seconds=wait_ns / 1e9,
        samples=samples,
        skipped_steps=len(losses) - (arm.taken.count - taken),
    )


@torch.no_grad()
def evaluate(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Return the mean loss and, for classification, the accuracy in per cent, evaluated under the arm's precision."""
    arm.model.eval()
    total = torch.zeros((), device=arm.device, dtype=torch.float64)
    right = torch.zeros((), device=arm.device, dtype=torch.int64)
    count, classified = 0, False
    for inputs, targets in batches:
        with arm.autocast():
            outputs = arm.model(inputs)
            loss = arm.loss(outputs, targets)
        total += loss.double() * len(inputs)
        classified = not targets.is_floating_point()
        if classified:
            right += (outputs.argmax(dim=1) == targets).sum()
        count += len(inputs)
    arm.model.train()
    return float(total) / count, 100 * int(right) / count if classified else None


def evaluate_fp32(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Evaluate the same weights in IEEE fp32, without autocast, whatever the arm's precision.

    Where there is a master copy, it is what is evaluated.
    """
    plain = PRECISIONS[BASELINE]
    switches.apply(plain)
    try:
        with arm.weights.in_fp32():
            return evaluate(replace(arm, precision=plain), batches)
    finally:
        switches.apply(arm.precision)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
