"""Training and evaluation in plain sight: one step, one loop and one evaluation for every precision.

What differs by precision is what ``Arm`` holds: an autocast region, a GradScaler that scales, weights that are 16-bit
copies of a master copy, or none of these.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.devices.backend import backend_of
from bench.results.records import Conversion
from bench.spec.precisions import BASELINE, PRECISIONS, Precision
from bench.spec.suite import Data, Suite
from bench.spec.techniques import PLAIN, Techniques
from bench.training import amp, distributed
from bench.training.amp import Weights
from bench.training.conversions import convert, replaced, require_plain
from bench.training.techniques import (
    GraphedStep,
    arrange,
    checkpoint_activations,
    compiled,
    cut,
    fused,
    require_supported,
)


class TakenSteps:
    """Counts an optimizer's steps, as a hook on it, without those that a GradScaler skips.

    Skipped steps never reach an ordinary optimizer. A fused one is called with a device tensor that makes the step a
    no-op; these tensors are kept, and read when the count is asked for.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Register the hook; without an optimizer, whoever takes the steps adds to ``called``."""
        self.called, self._found_inf = 0, list[Tensor]()
        if optimizer is not None:
            optimizer.register_step_post_hook(self)

    def __call__(self, optimizer: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Count one; the signature is torch's."""
        self.called += 1
        if (found_inf := getattr(optimizer, "found_inf", None)) is not None:
            self._found_inf.append(found_inf)

    @property
    def count(self) -> int:
        """Steps taken so far; with a fused optimizer under a GradScaler, this waits for the device."""
        if self._found_inf:
            self.called -= int(torch.stack(self._found_inf).count_nonzero())
            self._found_inf.clear()
        return self.called


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A model in training at one precision on one device."""

    precision: Precision
    device: torch.device
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    scaled: bool
    """Whether the scaler is enabled; a step leaves a disabled one alone."""
    taken: TakenSteps
    """Counts the optimizer steps that the scaler let through."""
    weights: Weights
    """The model's weights, and the master copy that the optimizer updates where there is one."""
    forward: Callable[..., Tensor]
    """The model in the training step: itself, compiled, or wrapped for several devices."""
    region: AbstractContextManager[None] | None
    """The training step's autocast region, entered anew each step; None where the precision has none."""
    conversion: Conversion | None = None
    """Which layers were converted, where the precision converts any."""
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    clip_grad: float | None = None
    """The norm over all parameters that gradients are clipped to."""
    techniques: Techniques = PLAIN
    graph: GraphedStep | None = None
    """The CUDA graph that computes the gradients, where one is used."""

    @property
    def loss_scale(self) -> float | None:
        """The GradScaler's scale; None where the precision has none."""
        return self.scaler.get_scale() if self.scaled else None

    def autocast(self) -> AbstractContextManager[None]:
        """Return a new region in which the forward pass and the loss run under the precision."""
        return amp.autocast(self.precision, self.device)


def build_arm(
    suite: Suite,
    data: Data,
    precision: Precision,
    device: torch.device,
    *,
    seed: int,
    steps: int | None = None,
    clip_grad: float | None = None,
    techniques: Techniques = PLAIN,
) -> Arm:
    """Build a suite's model, loss and optimizer; initial weights are the same for every precision but for rounding.

    Args:
        suite: the recipe.
        data: the suite's data, with the number of classes that there really are.
        precision: the arm's.
        device: takes the model after it has been initialised on the CPU.
        seed: of the initial weights and of dropout.
        steps: optimizer steps of the whole run, for the schedule; None trains at a constant rate.
        clip_grad: the norm to clip gradients to; None does not clip.
        techniques: to train with.

    Raises:
        UnsupportedError: a technique does not go with this suite or device.
    """
    require_supported(techniques, suite, data, device)
    if precision.package == "transformer_engine":
        require_plain(techniques, precision)
    seed_all(seed)
    model = suite.model(data).to(device).train()
    if techniques.sync_bn:
        model = distributed.synchronised_norms(model)
    if techniques.channels_last:
        model.to(memory_format=torch.channels_last)
    if techniques.checkpointing:
        checkpoint_activations(model, compiled=bool(techniques.compile))
    loss = build_loss(suite, data)
    conversion = convert(model, precision) if precision.conversion else None
    weights = Weights(model, precision)
    scaler = amp.grad_scaler(precision, device)
    optimizer = suite.optimizer(weights.trained())
    if precision.optimizer:
        optimizer = replaced(optimizer, precision, device.type)
    if techniques.fused_optimizer:
        optimizer = fused(optimizer, scaled=scaler.is_enabled())
    schedule = suite.schedule(optimizer, steps) if suite.schedule and steps else None
    taken = TakenSteps(optimizer if scaler.is_enabled() else None)  # a hook costs some microseconds a step
    weights.follow(optimizer)
    arm = Arm(
        precision=precision,
        device=device,
        model=model,
        loss=loss.to(device),
        optimizer=optimizer,
        scaler=scaler,
        scaled=scaler.is_enabled(),
        taken=taken,
        weights=weights,
        conversion=conversion,
        forward=_forward(model, device, techniques, seed) if suite.trainer == "plain" else model,
        region=amp.autocast(precision, device) if precision.autocast else None,
        schedule=schedule,
        clip_grad=clip_grad,
        techniques=techniques,
    )
    if not techniques.cuda_graphs:
        return arm
    return replace(arm, graph=GraphedStep(gradients=partial(leave_gradients, arm), device=device))


def _forward(model: nn.Module, device: torch.device, techniques: Techniques, seed: int) -> Callable[..., Tensor]:
    if distributed.ranks() > 1:
        seed_all(seed + 7919 * distributed.rank())  # so that dropout differs between the parts of a batch
        return distributed.parallel(model, device, techniques)
    if not techniques.compile:
        return model
    return compiled(model, techniques.compile if isinstance(techniques.compile, str) else None)


def seed_all(seed: int) -> None:
    """Seed the global generators that a suite may draw from: torch's, Python's and NumPy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def build_loss(suite: Suite, data: Data) -> nn.Module:
    """Build the suite's loss, or the default: cross entropy, of every token, or mean square error for regression."""
    if suite.loss is not None:
        return suite.loss()
    if data.tokens:
        return TokenLoss()
    return nn.MSELoss() if data.classes is None else nn.CrossEntropyLoss()


class TokenLoss(nn.CrossEntropyLoss):
    """Mean cross entropy over the tokens of all sequences, in nats."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits, (B, length, vocabulary), for the next tokens, (B, length)."""
        return super().forward(input.flatten(0, 1), target.flatten())


def training_step(arm: Arm, inputs: Tensor, targets: Tensor) -> Tensor:
    """Train on one batch.

    Args:
        arm: what to train.
        inputs: shape (batch, *input shape), on the arm's device.
        targets: shape (batch,) of classes, (batch, length) of tokens, or (batch, *target shape).

    Returns:
        The loss, a scalar on the device that nothing has waited for; its graph is used up.
    """
    loss = arm.graph(inputs, targets) if arm.graph else leave_gradients(arm, inputs, targets)
    if arm.clip_grad is not None:
        arm.scaler.unscale_(arm.optimizer)  # the norm is the gradients' own, not the scaled ones'
        nn.utils.clip_grad_norm_(arm.weights.trained(), arm.clip_grad)
    if arm.scaled:
        arm.scaler.step(arm.optimizer)  # skips the step where a gradient overflowed
        arm.scaler.update()
    else:
        arm.optimizer.step()
        arm.taken.called += 1
    if arm.schedule is not None:
        arm.schedule.step()
    return loss


def leave_gradients(arm: Arm, inputs: Tensor, targets: Tensor) -> Tensor:
    """Drop the gradients and compute those of a batch, in as many parts as they are accumulated over.

    Takes what ``training_step`` takes; returns the mean of the parts' losses.
    """
    techniques = arm.techniques
    arm.optimizer.zero_grad(set_to_none=techniques.set_to_none)
    if techniques.channels_last:
        inputs = arrange(inputs, techniques)
    if (parts := techniques.grad_accumulation) == 1:
        return _add_gradients(arm, inputs, targets)
    chunks = cut(inputs, targets, parts)
    return torch.stack([_add_gradients(arm, *chunk, parts).detach() for chunk in chunks]).sum()


def _add_gradients(arm: Arm, inputs: Tensor, targets: Tensor, parts: int = 1) -> Tensor:
    """Add the gradients of one part of a batch; return its share of the loss."""
    loss: Tensor
    if arm.region is None:
        loss = arm.loss(arm.forward(inputs), targets)
    else:
        with arm.region:  # forward and loss in one region; backward runs outside it, in the types forward chose
            loss = arm.loss(arm.forward(inputs), targets)
    if parts > 1:
        loss = loss / parts
    (arm.scaler.scale(loss) if arm.scaled else loss).backward()
    return loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """The result of one pass over the training data."""

    loss: float
    """Mean over the epoch's batches."""
    seconds: float
    wait_seconds: float
    """Host time spent waiting for the next batch."""
    samples: int
    skipped_steps: int


def train_epoch(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> Epoch:
    """Train on every batch once; the clock covers loading and training, and stops when the device is done."""
    losses: list[Tensor] = []
    wait_ns = samples = 0
    taken = arm.taken.count
    synchronize(arm.device)
    clock = distributed.clock()
    start, wait_start = clock(), time.perf_counter_ns()
    for inputs, targets in batches:
        wait_ns += time.perf_counter_ns() - wait_start
        losses.append(training_step(arm, inputs, targets).detach())
        samples += len(inputs)
        wait_start = time.perf_counter_ns()
    wait_ns += time.perf_counter_ns() - wait_start
    synchronize(arm.device)
    seconds = (clock() - start) / 1e9
    (loss,) = distributed.summed([float(torch.stack(losses).float().mean())], torch.device("cpu"))
    return Epoch(
        loss=loss / distributed.ranks(),
        seconds=seconds,
        wait_seconds=wait_ns / 1e9,
        samples=samples * distributed.ranks(),
        skipped_steps=len(losses) - (arm.taken.count - taken),
    )


@torch.no_grad()
def evaluate(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Return mean loss and, for classes, accuracy in per cent under its precision, over all processes' batches.

    A sample whose outputs hold a NaN counts as wrong. Of tokens there is the loss alone.
    """
    arm.model.eval()
    total = torch.zeros((), device=arm.device, dtype=torch.float64)
    right = torch.zeros((), device=arm.device, dtype=torch.int64)
    count, classified = 0, False
    for inputs, targets in batches:
        with arm.autocast():
            outputs = arm.model(arrange(inputs, arm.techniques))
            loss = arm.loss(outputs, targets)
        total += loss.double() * len(inputs)
        classified = not targets.is_floating_point() and targets.dim() == 1
        if classified:  # the largest of NaNs would be the first class
            right += ((outputs.argmax(dim=1) == targets) & ~outputs.isnan().any(dim=1)).sum()
        count += len(inputs)
    arm.model.train()
    loss_sum, hits, samples, classes = distributed.summed([float(total), int(right), count, classified], arm.device)
    return loss_sum / samples, 100 * hits / samples if classes else None


def evaluate_fp32(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Evaluate the same weights in IEEE fp32, without autocast, whatever the arm's precision.

    Where there is a master copy, it is what is evaluated.
    """
    plain = PRECISIONS[BASELINE]
    amp.apply(plain)
    try:
        with arm.weights.in_fp32():
            return evaluate(replace(arm, precision=plain), batches)
    finally:
        amp.apply(arm.precision)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all queued work."""
    backend_of(device).synchronize()
