"""Histograms, what float16 would do, and errors, on values whose answers are known."""

from __future__ import annotations

import contextlib
import copy
import math

import pytest
import torch
from torch import nn

from bench.measure import gradients
from bench.measure.gradients import BINS
from bench.training.step import pair_loss


def errors(model, loss, batch, *, autocast=contextlib.nullcontext, scale=1.0):
    """Return the errors of a model against a copy of itself in float64."""

    def narrow_loss(model, batch):
        with autocast():
            return loss(model, batch)

    exact = copy.deepcopy(model).double()
    return gradients.errors_against_float64(
        model, exact, narrow_loss, batch, exact_loss=loss, scale=scale
    )


def test_each_magnitude_is_counted_in_the_bin_of_its_power_of_two() -> None:
    magnitudes = {
        "zero": [0.0, -0.0],
        "below": [2.0**-49, 2.0**-140],
        "-48": [2.0**-48],
        "-1": [0.75],
        "0": [1.0, 1.999],
        "1": [-2.0],
        "17": [2.0**17],
        "above": [2.0**18],
        "nonfinite": [math.inf, math.nan],
    }
    for name, values in magnitudes.items():
        counts = gradients.count_bins(torch.tensor(values)).tolist()
        assert counts[BINS.index(name)] == sum(counts) == len(values)


def test_a_sparse_gradient_is_counted_and_compared_as_a_dense_one() -> None:
    words = torch.tensor([[0, 2], [2, 2]])
    seen = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(4, 3, sparse=sparse)
        measured = errors(model, lambda model, batch: model(batch).square().sum(), words)
        model(words).square().sum().backward()
        named = gradients.named_gradients(model, model.parameters())
        counted = [gradients.count_bins(gradient).tolist() for _, gradient in named]
        seen.append((measured, counted, gradients.nonfinite_layers(named)))
    assert model.weight.grad.is_sparse
    assert seen[0] == seen[1]


def test_the_largest_activation_of_each_layer_is_seen_and_a_nan_is_not_lost() -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(), nn.Identity())
    with gradients.watch_activations(model) as largest:
        model(torch.tensor([-3.0, 2.0]))
        assert largest() == {"0": 3.0, "1": 2.0, "2": 2.0}
        model(torch.tensor([1.0, math.nan]))
        assert all(math.isnan(value) for value in largest().values())
    model(torch.ones(1))
    assert largest() == {}


def test_the_error_of_a_product_rounded_by_hand() -> None:
    """Forward y = w·x with w = 1 + 2^-9: in bfloat16 w is 1, so y, and the gradient of y²/2 by w,
    y·x, lose 2^-9.
    """
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1 + 2**-9)

    def half_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).to(batch.dtype).square().sum() / 2

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    measured = errors(model, half_square, torch.ones(1, 1), autocast=autocast, scale=1024.0)
    true = 1 + 2**-9
    assert measured.loss == pytest.approx(1 - 1 / true**2, rel=1e-12)
    assert measured.output == pytest.approx(1 - 1 / true, rel=1e-12)
    assert measured.gradients == pytest.approx(1 - 1 / true, rel=1e-12)
    assert model.weight.grad is None


def test_dropout_is_no_error() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    measured = errors(model, pair_loss(nn.MSELoss()), (torch.randn(4, 8), torch.randn(4, 8)))
    assert 0 < measured.gradients < 1e-6
    assert model[1].p == 0.5
