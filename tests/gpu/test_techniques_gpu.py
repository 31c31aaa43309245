"""Techniques that only a GPU has, against the plain step; run with ``pytest -m gpu``."""

from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from bench.data.batch import to_device
from bench.data.transfer import prefetched
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import PRECISIONS
from bench.spec.techniques import PLAIN, Techniques
from bench.training import amp
from bench.training.step import train_epoch, training_step
from bench.training.techniques import WARM_UP, GraphedStep
from tests.gpu.conftest import GPU, ON_SIMULATED, run, vary_cell
from tests.training import conftest
from tests.training.conftest import batches, layers, momentum, norms, state

STEPS = WARM_UP + 5
NEEDS_TRITON = pytest.mark.skipif(ON_SIMULATED, reason="simulated GPUs have no Triton")


def gently(parameters):
    """Make an optimizer with which differences of 16-bit rounding do not grow."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def make(techniques=PLAIN, precision="fp32", model=layers, optimizer=momentum):
    amp.apply(PRECISIONS[precision])  # else some layouts of convolutions are in TF32
    return conftest.make(precision, techniques, model=model, optimizer=optimizer, device=GPU)


def train(techniques, precision, model):
    optimizer = momentum if precision == "fp32" else gently
    arm = make(techniques, precision, model, optimizer)
    losses = []
    for batch in batches(STEPS):
        loss = training_step(arm, to_device(batch, GPU))
        losses.append(loss)
    return arm, losses


def learns_as_plain(techniques, tolerance, precision="fp32", model=layers):
    """Check that an arm learns what the plain one does, roughly; return it."""
    plain, plain_losses = train(PLAIN, precision, model)
    arm, losses = train(techniques, precision, model)
    agree = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    agree(losses, plain_losses)
    agree(state(arm), state(plain))
    assert arm.taken.count == plain.taken.count
    return arm


@pytest.mark.card
@pytest.mark.parametrize("model", [layers, norms])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "fp16-master"])
@pytest.mark.parametrize(
    "techniques",
    [
        Techniques(cuda_graphs=True),
        Techniques(cuda_graphs=True, set_to_none=False),
        Techniques(cuda_graphs=True, fused_optimizer=True),
        Techniques(fused_optimizer=True),
        Techniques(channels_last=True),
        Techniques(checkpointing=True),
    ],
)
def test_a_technique_learns_what_the_plain_step_learns(techniques, precision, model):
    if techniques.checkpointing and model is layers:
        pytest.skip("plain layers are no blocks")
    # Algorithms and the order of sums differ from layout to layout.
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    arm = learns_as_plain(techniques, tolerance, precision, model)
    is_captured = arm.graph is not None and arm.graph.graph is not None
    assert is_captured == techniques.cuda_graphs


@NEEDS_TRITON
@pytest.mark.parametrize("parts", [1, 2])
def test_graphs_of_the_compilers_own_learn_what_the_plain_step_learns(parts):
    learns_as_plain(Techniques(compile="reduce-overhead", grad_accumulation=parts), 1e-4)


@pytest.mark.parametrize(
    ("breaking", "error", "message"),
    [
        (torch.cuda.synchronize, UnsupportedError, "not permitted"),
        (lambda: torch.empty(2**50, device=GPU), torch.OutOfMemoryError, "out of memory"),
    ],
    ids=["synchronizes", "out of memory"],
)
def test_a_capture_that_breaks_says_why_and_leaves_the_stream_of_before(breaking, error, message):
    def gradients(batch):
        inputs, targets = batch
        if torch.cuda.is_current_stream_capturing():
            breaking()
        return (inputs * targets).sum()

    graphed = GraphedStep(gradients=gradients, device=GPU)
    ones = torch.ones(4, device=GPU)
    batch = (ones, ones)
    before = torch.cuda.current_stream()
    for _ in range(WARM_UP):
        assert float(graphed(batch)) == 4
    with pytest.raises(error, match=message):
        graphed(batch)
    assert torch.cuda.current_stream() == before
    torch.cuda.empty_cache()  # as what follows in the same process may do


@pytest.mark.card
def test_a_graph_draws_other_random_numbers_in_each_replay():
    def dropping(data):
        return nn.Sequential(nn.Dropout(0.5), layers(data))

    arm = make(Techniques(cuda_graphs=True), model=dropping)
    (batch,) = batches(1)
    batch = to_device(batch, GPU)
    (group,) = arm.optimizer.param_groups
    group["lr"] = 0.0  # what differs from step to step is then what was dropped
    for _ in range(WARM_UP):
        training_step(arm, batch)
    losses = {training_step(arm, batch).item() for _ in range(4)}
    assert len(losses) > 1


@pytest.mark.parametrize("graphs", [False, True])
def test_skipped_steps_are_counted_without_reaching_the_weights(graphs):
    arm = make(Techniques(fused_optimizer=True, cuda_graphs=graphs), "amp-fp16")
    before = state(arm)
    (batch,) = batches(1)
    inputs, targets = to_device(batch, GPU)
    count = WARM_UP + 2
    overflowing = [(inputs * 1e30, targets)] * count
    epoch = train_epoch(arm, iter(overflowing))
    assert epoch.skipped_steps == count
    assert torch.equal(state(arm), before)
    epoch = train_epoch(arm, iter([(inputs, targets)]))
    assert epoch.skipped_steps == 0
    assert state(arm).isfinite().all()


@pytest.mark.card
def test_captures_go_on_while_a_loader_pins_batches():
    images = torch.randn(4096, 3, 64, 64)
    loader = torch.utils.data.DataLoader(
        images,
        256,
        num_workers=2,
        prefetch_factor=8,
        pin_memory=True,
    )
    (batch,) = batches(1)
    batch = to_device(batch, GPU)
    for _ in zip(range(10), loader, strict=False):  # each sets the loader's thread to work again
        arm = make(Techniques(cuda_graphs=True))
        for _ in range(WARM_UP + 1):
            training_step(arm, batch)
        assert arm.graph.graph is not None


@pytest.mark.card
def test_a_prefetcher_on_a_stream_gives_what_copying_gives_while_the_device_is_busy():
    factor = torch.ones(4096, 4096, device=GPU)

    def prepare(batch):
        inputs, targets = to_device(batch, GPU, non_blocking=True)
        return inputs.float() / 50, targets

    host = []
    for inputs, targets in batches(12):
        integers = (inputs * 50).to(torch.int16)
        host.append((integers, targets))
    held = []
    with closing(prefetched(host, GPU, prepare)) as ahead:
        for inputs, targets in ahead:
            factor @ factor  # the batch is used long after the next ones have been made
            held.append((inputs.clone(), targets.clone()))
            del inputs, targets
    expected = list(map(prepare, host))
    torch.testing.assert_close(held, expected, rtol=0, atol=0)


@pytest.mark.card
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_TRITON)])
def test_the_phases_run_with_techniques(trial, device, compiled):
    names = ("non-blocking", "prefetcher", "channels-last", "fused-optimizer", "cuda-graphs")
    if compiled:
        names = (*names, "compile")
    trial = vary_cell(trial, techniques=names)
    for phase in ("memory", "speed", "train"):
        (result,) = run(replace(trial, phase=phase), device)
        assert result.status in ("ok", "unconverged"), result.detail
        is_compiled = compiled and phase != "memory"
        assert (result.compile_s is not None) == is_compiled
