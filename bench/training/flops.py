"""Floating-point operations of a training step, counted without executing them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.measure import operations
from bench.planning import suite_registry
from bench.spec.suite import Data, Suite
from bench.spec.trial import SuiteRef
from bench.training.step import build_loss

COUNTED_BATCH = 2


def training_flops_per_sample(suite: Suite, data: Data) -> float | None:
    """Return the FLOPs of products in forward and backward, for one sample.

    They are counted on meta tensors, which have shapes and no values. None for a model that cannot run on those, or
    whose products' FLOPs are not known.
    """
    try:
        with torch.device("meta"):
            model = suite.model(data)
            inputs = torch.empty(COUNTED_BATCH, *data.input_shape)
            if data.tokens:
                inputs = inputs.long()
            if data.classes is None:
                targets = torch.empty(COUNTED_BATCH, *(data.target_shape or ()))
            else:
                targets = torch.zeros_like(inputs) if data.tokens else torch.zeros(COUNTED_BATCH, dtype=torch.int64)
            loss = build_loss(suite, data)
            counted = operations.count(lambda: loss(model(inputs), targets).backward()).flops_per_step
    except Exception as error:  # a user's model may raise anything, and an estimate is all that is lost
        print(f"{suite.name}: FLOPs not counted: {error}")  # if the run fails too, it reports why
        return None
    return None if counted is None else counted / COUNTED_BATCH


def count_flops(ref: SuiteRef, _send: Callable[[object], None]) -> float | None:
    """Return a suite's FLOPs per sample; run in a worker."""
    suite = suite_registry.load(ref)
    return training_flops_per_sample(suite, suite.data)
