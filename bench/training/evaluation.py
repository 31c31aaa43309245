"""How good a model is: mean loss and accuracy on data that it was not trained on, under its precision and in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bench.spec.precisions import BASELINE, PRECISIONS
from bench.training import amp as switches
from bench.training import distributed
from bench.training import techniques as how
from bench.training.step import Arm


@torch.no_grad()
def evaluate(arm: Arm, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Return mean loss and, for classes, accuracy in per cent under its precision, over all processes' batches.

    A sample that the model answers with NaN is not right, whatever its class.
    """
    arm.model.eval()
    total = torch.zeros((), device=arm.device, dtype=torch.float64)
    right = torch.zeros((), device=arm.device, dtype=torch.int64)
    count, classified = 0, False
    for inputs, targets in batches:
        with arm.autocast():
            outputs = arm.model(how.arrange(inputs, arm.techniques))
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
    switches.apply(plain)
    try:
        with arm.weights.in_fp32():
            return evaluate(replace(arm, precision=plain), batches)
    finally:
        switches.apply(arm.precision)
