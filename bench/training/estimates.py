"""Facts of a suite that planning needs: the FLOPs of a step, and the memory of a model."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import torch

from bench.data import first_batches
from bench.data.batch import first_dimension, to_device
from bench.measure import memory, operations
from bench.planning import suite_registry
from bench.planning.footprint import Footprint
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.suite import Data, Suite
from bench.spec.trial import SuiteRef
from bench.training.own_step import loss_in
from bench.training.step import build_arm, build_model, leave_gradients, loss_of

COUNTED_BATCH = 2
# A model of very many operations is not counted to the end.
COUNTING_S = 20


def count_flops(ref: SuiteRef, _send: Callable[[object], None]) -> float | None:
    """Return the FLOPs of a suite's products in forward and backward, for one sample; run in a worker."""
    suite = suite_registry.load(ref)
    return training_flops_per_sample(suite, suite.data)


def training_flops_per_sample(suite: Suite, data: Data) -> float | None:
    """Return the FLOPs of products in forward and backward, for one sample.

    They are counted on meta tensors, which have shapes and no values. None for a model that cannot
    run on those, or whose products' FLOPs are not known.
    """
    if suite.step is not None:
        return None
    size = COUNTED_BATCH if suite.batches is None else suite.batch_size
    try:
        (batch,) = first_batches(
            suite, data, batch_size=size, count=1, device=torch.device("cpu"), seed=0
        )
        samples, batch = (
            (suite.count or first_dimension)(batch),
            to_device(batch, torch.device("meta")),
        )
        with torch.device("meta"):
            model, loss = build_model(suite, data), loss_of(suite, data)[0]
            counted = operations.observe(
                lambda: loss_in(loss(model, batch)).backward()
            ).flops_per_step
    except (
        Exception
    ) as error:  # a user's model may raise anything, and an estimate is all that is lost
        print(f"{suite.name}: FLOPs not counted: {error}")  # if the run fails too, it reports why
        return None
    return None if counted is None else counted / samples


def footprint(ref: SuiteRef, _send: Callable[[object], None]) -> Footprint:
    """Return the memory that a suite's model takes in fp32, counted on the meta device; run in a worker.

    Raises:
        Exception: the model or the optimizer cannot be built there.
    """
    suite, meta = suite_registry.load(ref), torch.device("meta")
    with meta:
        model = build_model(suite, suite.data)
    arm = build_arm(
        replace(suite, model=lambda: model), suite.data, PRECISIONS[BASELINE], meta, seed=0
    )
    for weight in model.parameters():
        weight.grad = torch.empty_like(weight) if weight.requires_grad else None
    for (
        optimizer
    ) in arm.optimizers.values():  # outside of the meta device: it reads the step's number
        optimizer.step()
    gradient_bytes = sum(
        weight.grad.nbytes for weight in model.parameters() if weight.grad is not None
    )
    states = memory.states(arm.optimizers.values())
    kept_bytes = memory.model_bytes(model) + sum(state.nbytes for state in states)
    cpu, size = (
        torch.device("cpu"),
        suite.batch_size,
    )  # so large that activations are the peak, not gradients
    (batch,) = first_batches(suite, suite.data, batch_size=size, count=1, device=cpu, seed=0)
    batch = to_device(batch, meta)

    def step() -> None:
        with meta:
            leave_gradients(arm, batch)

    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(COUNTING_S)
    peak = memory.tensor_bytes(step, meta, modules=[model], optimizers=arm.optimizers.values())
    signal.alarm(0)
    made = (peak["tracked_peak_bytes"] - kept_bytes) / size if peak else None
    return Footprint(memory.model_bytes(model), kept_bytes + gradient_bytes, made)


def _give_up(_signal: int, _frame: object) -> None:
    raise TimeoutError(
        f"a step of the model took more than {COUNTING_S} s without computing anything"
    )
