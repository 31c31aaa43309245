"""The step, the loop and the evaluation."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.spec.techniques import Techniques
from bench.training.step import evaluate, train_epoch
from tests.training.conftest import batches, layers, make, momentum, plain_sgd, same, train, weights


def test_the_step_is_plain_sgd_in_fp32():
    arm = make()
    train(arm, batches())
    torch.manual_seed(0)
    model = layers(None)
    optimizer = momentum(model.parameters())
    for inputs, targets in batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    assert same(list(arm.model.parameters()), list(model.parameters()))


@pytest.mark.parametrize("precision", ["amp-fp16", "amp-bf16"])
def test_every_precision_starts_from_the_seeds_weights_and_trains_fp32_ones(precision):
    plain = make()
    # Those that a suite may draw from.
    drawn = random.random()
    numpy_drawn = np.random.random()
    mixed = make(precision)
    assert random.random() == drawn
    assert np.random.random() == numpy_drawn
    initial = weights(plain)
    assert torch.equal(weights(mixed), initial)
    other = make(seed=1)
    assert not torch.equal(weights(other), initial)
    expected = train(plain, batches())
    losses = train(mixed, batches())
    assert losses == pytest.approx(expected, rel=0.02)
    assert weights(mixed).dtype == torch.float32
    assert not torch.equal(weights(mixed), weights(plain))


def halving(optimizer, steps):
    assert steps == 2
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def plateau(optimizer, steps):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, patience=0, threshold=1e9, threshold_mode="abs"
    )


@pytest.mark.parametrize(
    ("schedule", "every", "factor"),
    [
        (halving, "step", 0.5**6),
        (halving, "epoch", 0.5**2),
        (plateau, "epoch", 0.1),
    ],
)
def test_a_schedule_goes_on_after_each_step_or_epoch_and_on_a_plateau_by_the_loss(
    schedule, every, factor
):
    arm = make(schedule=schedule, schedule_every=every, steps=2)
    for _ in range(2):
        epoch = train_epoch(arm, iter(batches(3)))
    assert epoch.samples == 3 * 8
    (group,) = arm.optimizer.param_groups
    assert group["lr"] == pytest.approx(0.1 * factor)


def test_a_plateau_of_steps_is_refused():
    with pytest.raises(UsageError, match="schedule_every='epoch'"):
        make(schedule=plateau, steps=2)


def test_the_wait_for_data_includes_the_end_of_the_epoch(monkeypatch):
    now_s = 0

    def slow(given):
        nonlocal now_s
        for pair in given:
            now_s += 2
            yield pair
        now_s += 5

    clock = SimpleNamespace(perf_counter_ns=lambda: now_s * 10**9)
    for module in ("step", "distributed"):
        monkeypatch.setattr(f"bench.training.{module}.time", clock)
    epoch = train_epoch(make(), slow(batches(3)))
    assert epoch.seconds == 3 * 2 + 5
    assert epoch.wait_seconds == epoch.seconds


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "fp16-master", "fp16-master:scale=4096"])
def test_clipping_limits_the_norm_of_the_gradients_themselves_not_of_the_scaled_ones(precision):
    def distance(clip_grad):
        """Return how far a step of plain SGD at rate 1 moves the trained weights."""
        arm = make(precision, clip_grad=clip_grad, optimizer=plain_sgd(1.0))
        trained = arm.weights.trained()
        before = parameters_to_vector(trained)
        train(arm, batches(1))
        after = parameters_to_vector(trained)
        moved = torch.dist(before, after)
        return moved.item()

    unclipped = distance(None)
    assert unclipped > 0.1
    clipped = distance(0.05)
    assert clipped == pytest.approx(0.05, rel=1e-3)
    hardly_clipped = distance(100.0)
    assert hardly_clipped == pytest.approx(unclipped)


def test_a_batch_that_has_no_equal_parts_is_not_trained_on():
    in_three_parts = Techniques(grad_accumulation=3)
    arm = make(techniques=in_three_parts)
    before = weights(arm)
    with pytest.raises(ValueError, match="a batch of 8 cannot be cut into 3 equal parts"):
        train(arm, batches(1))
    assert torch.equal(weights(arm), before)


def test_evaluation_weighs_batches_by_their_size_and_leaves_training_mode_and_weights_alone():
    def model(data):
        return nn.Sequential(nn.Dropout(0.5), layers(data))

    arm = make(model=model)
    before = weights(arm)
    ((inputs, targets),) = batches(1)
    few = inputs[:2], targets[:2]
    more = inputs[2:], targets[2:]
    loss, accuracy = evaluate(arm, iter([few, more]))
    _, without_dropout = arm.model
    outputs = without_dropout(inputs)
    expected = nn.functional.cross_entropy(outputs, targets)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    guesses = outputs.argmax(dim=1)
    right = guesses == targets
    assert accuracy == 100 * right.sum() / 8
    assert arm.model.training
    assert torch.equal(weights(arm), before)


def test_regression_has_a_loss_of_mean_squares_and_no_accuracy():
    def model(_data):
        return nn.Linear(6, 3, bias=False)

    data = Data(input_shape=(6,), target_shape=(3,))
    arm = make(data=data, model=model)
    inputs = torch.zeros(4, 6)
    targets = torch.ones(4, 3)
    loss, accuracy = evaluate(arm, iter([(inputs, targets)]))
    assert loss == 1.0
    assert accuracy is None
