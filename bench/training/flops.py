"""Floating-point operations of a training step, counted without doing them."""

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

    Counted on meta tensors, which have shapes and no values; None for a model that cannot run on those, or
    with products whose FLOPs are not known.
    """
    try:
        with torch.device("meta"):
            model = suite.model(data)
            inputs = torch.empty(COUNTED_BATCH, *data.input_shape)
            if data.classes is None:
                targets = torch.empty(COUNTED_BATCH, *(data.target_shape or ()))
            else:
                targets = torch.zeros(COUNTED_BATCH, dtype=torch.int64)
            loss = build_loss(suite, data)
            counted = operations.count(lambda: loss(model(inputs), targets).backward()).flops_per_step
    except Exception as error:  # a user's model may raise anything, and an estimate is all that is lost
        print(f"{suite.name}: FLOPs not counted: {error}")  # if the run fails too, it reports why
        return None
    return None if counted is None else counted / COUNTED_BATCH


def count_all(suites: tuple[SuiteRef, ...], _send: Callable[[object], None]) -> dict[str, float | None]:
    """Return each suite's FLOPs per sample, by its name; run in a worker."""
    loaded = [suite_registry.load(ref) for ref in suites]
    return {suite.name: training_flops_per_sample(suite, suite.data) for suite in loaded}
