"""Facts of a suite that planning needs: the FLOPs of a step, and the memory of a model."""

from __future__ import annotations

import signal
from dataclasses import replace

import torch

from bench.data import first_batches
from bench.data.batch import Batch, first_dimension, to_device
from bench.measure import memory, operations
from bench.planning import suite_registry
from bench.planning.footprint import Footprint
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.spec.suite import Suite
from bench.spec.trial import SuiteRef
from bench.training.own_step import loss_in
from bench.training.step import build_arm, build_model, leave_gradients, loss_of

# Batch norm needs two samples; with more, only the count takes longer.
COUNTED_BATCH = 2
# A model of very many operations is not counted to the end.
COUNTING_S = 20
META = torch.device("meta")


def _first_batch(suite: Suite, batch_size: int) -> Batch:
    (batch,) = first_batches(
        suite,
        suite.data,
        batch_size=batch_size,
        count=1,
        device=torch.device("cpu"),
        seed=0,
    )
    return batch


def count_flops(ref: SuiteRef) -> float | None:
    """Return the FLOPs of a suite's products per sample; run in a worker."""
    return training_flops_per_sample(suite_registry.load(ref))


def training_flops_per_sample(suite: Suite) -> float | None:
    """Return the FLOPs of products in forward and backward, for one sample.

    They are counted on meta tensors, which have shapes and no values. None for a model that cannot
    run on those, or whose products' FLOPs are not known.
    """
    if suite.step is not None:
        return None
    try:
        batch = _first_batch(suite, COUNTED_BATCH if suite.batches is None else suite.batch_size)
        samples = (suite.count or first_dimension)(batch)
        batch = to_device(batch, META)
        with META:
            model = build_model(suite, suite.data)
            loss, _ = loss_of(suite, suite.data)
            observed = operations.observe(lambda: loss_in(loss(model, batch)).backward())
    except Exception:
        # A user's model may raise anything, and an estimate is all that is lost. If the run fails
        # too, it reports why.
        return None
    flops = observed.flops_per_step
    if flops is None:
        return None
    return flops / samples


def footprint(ref: SuiteRef) -> Footprint:
    """Return the memory of a suite's model in fp32, counted on the meta device; run in a worker.

    Raises:
        Exception: the model or the optimizer cannot be built there.
    """
    suite = suite_registry.load(ref)
    with META:
        model = build_model(suite, suite.data)
    built = replace(suite, model=lambda: model)
    arm = build_arm(built, suite.data, PRECISIONS[BASELINE], META, seed=0)
    optimizers = arm.optimizers.values()
    gradient_bytes = 0
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.empty_like(weight)
            gradient_bytes += weight.nbytes
    # Outside of the meta device: optimizers read the step's number.
    for optimizer in optimizers:
        optimizer.step()
    kept_bytes = memory.model_bytes(model)
    for state in memory.states(optimizers):
        kept_bytes += state.nbytes
    # The suite's own batch is so large that activations are the peak, not gradients.
    size = suite.batch_size
    batch = to_device(_first_batch(suite, size), META)

    def step() -> None:
        with META:
            leave_gradients(arm, batch)

    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(COUNTING_S)
    peak = memory.tensor_bytes(step, META, modules=[model], optimizers=optimizers)
    signal.alarm(0)
    sample_bytes = None
    if peak:
        sample_bytes = (peak["tracked_peak_bytes"] - kept_bytes) / size
    return Footprint(memory.model_bytes(model), kept_bytes + gradient_bytes, sample_bytes)


def _give_up(_signal: int, _frame: object) -> None:
    raise TimeoutError(
        f"a step of the model took more than {COUNTING_S} s without computing anything"
    )
