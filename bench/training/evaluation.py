"""Evaluation: mean loss and accuracy on test data, under the precision trained in and in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bench.spec.precisions import BASELINE, PRECISIONS
from bench.training import amp, distributed
from bench.training.step import Arm
from bench.training.techniques import arrange


@torch.no_grad()
def evaluate(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Return mean loss and, for classes, accuracy in per cent under its precision, over all processes' batches.

    A sample whose outputs hold a NaN counts as wrong.
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
        classified = not targets.is_floating_point()
        right += _right(outputs, targets) if classified else 0
        count += len(inputs)
    arm.model.train()
    loss_sum, hits, samples, classes = distributed.summed([float(total), int(right), count, classified], arm.device)
    return loss_sum / samples, 100 * hits / samples if classes else None


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count the samples whose class has the largest output; the largest of NaNs would be the first class."""
    return ((outputs.argmax(dim=1) == targets) & ~outputs.isnan().any(dim=1)).sum()


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
