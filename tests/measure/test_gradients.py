"""Histograms, what float16 would do, and errors, on values whose answers are known."""

import copy
import math

import pytest
import torch
from torch import nn

from bench.measure import gradients
from bench.measure.gradients import BINS
from bench.training.step import pair_loss


def errors(model, loss, batch, *, autocast=False):
    """Return the errors of a model, its loss scaled, against a copy of itself in float64."""

    def narrow_loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return loss(model, batch)

    exact = copy.deepcopy(model).double()
    return gradients.errors_against_float64(
        model,
        exact,
        narrow_loss,
        batch,
        exact_loss=loss,
        scale=1024.0,
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("zero", [0.0, -0.0]),
        ("below", [2.0**-49, 2.0**-140]),
        ("-48", [2.0**-48]),
        ("-1", [0.75]),
        ("0", [1.0, 1.999]),
        ("1", [-2.0]),
        ("17", [2.0**17]),
        ("above", [2.0**18]),
        ("nonfinite", [math.inf, math.nan]),
    ],
)
def test_each_magnitude_is_counted_in_the_bin_of_its_power_of_two(name, values):
    counts = gradients.count_bins(torch.tensor(values))
    place = BINS.index(name)
    assert counts[place] == len(values)
    assert counts.sum() == len(values)


def test_a_sparse_gradient_is_counted_and_compared_as_a_dense_one():
    words = torch.tensor([0, 2, 2])

    def loss(model, batch):
        return model(batch).square().sum()

    def measured(sparse):
        torch.manual_seed(0)
        model = nn.Embedding(4, 3, sparse=sparse)
        error = errors(model, loss, words)
        loss(model, words).backward()
        assert model.weight.grad.is_sparse == sparse
        named = gradients.named_gradients(model, model.parameters())
        ((_, gradient),) = named
        counts = gradients.count_bins(gradient).tolist()
        return error, counts, gradients.nonfinite_layers(named)

    assert measured(sparse=True) == measured(sparse=False)


def test_the_largest_activation_of_each_layer_is_seen_and_a_nan_is_not_lost():
    model = nn.Sequential(
        nn.Identity(),
        nn.ReLU(),
        nn.Identity(),
    )
    with gradients.watch_activations(model) as largest:
        model(torch.tensor([-3.0, 2.0]))
        assert largest() == {"0": 3.0, "1": 2.0, "2": 2.0}
        model(torch.tensor([1.0, math.nan]))
        model(torch.tensor([1.0, 2.0]))
        for value in largest().values():
            assert math.isnan(value)
    model(torch.ones(1))
    assert largest() == {}


def test_the_error_of_a_product_rounded_by_hand():
    """Forward y = w·x with w = 1 + 2^-9: in bfloat16 w is 1, so y, and the gradient of y²/2 by w,
    y·x, lose 2^-9.
    """
    true = 1 + 2**-9
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, true)

    def half_square(model, batch):
        outputs = model(batch).to(batch.dtype)
        return outputs.square().sum() / 2

    inputs = torch.ones(1, 1)
    measured = errors(model, half_square, inputs, autocast=True)
    lost = pytest.approx(1 - 1 / true, rel=1e-12)
    assert measured.output == lost
    assert measured.gradients == lost
    assert measured.loss == pytest.approx(1 - 1 / true**2, rel=1e-12)
    assert model.weight.grad is None


def test_dropout_is_no_error():
    dropout = nn.Dropout(0.5)
    model = nn.Sequential(
        nn.Linear(8, 8),
        dropout,
    )
    inputs = torch.randn(4, 8)
    targets = torch.randn(4, 8)
    loss = pair_loss(nn.MSELoss())
    measured = errors(model, loss, (inputs, targets))
    assert 0 < measured.gradients < 1e-6
    assert dropout.p == 0.5
