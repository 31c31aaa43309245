"""Processes that train together start from one model and drop out different activations."""

from __future__ import annotations

import torch
from torch import nn

from bench.spec import PRECISIONS, Data, Suite
from bench.train import build_arm
from tests.processes import together

SUITE = Suite(
    name="small",
    title="",
    data=Data(input_shape=(64,), classes=2),
    model=lambda data: nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 2)),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    batch_size=4,
)


def drawn(_rank):
    """Return the weights, and which of some ones dropout leaves, of each of two arms of one seed."""
    found = []
    for _ in range(2):
        arm = build_arm(SUITE, SUITE.data, PRECISIONS["fp32"], torch.device("cpu"), seed=3)
        found.append((arm.model[1].weight.detach(), arm.model[0](torch.ones(64)) > 0))
    return found


def test_each_part_of_a_batch_has_its_own_dropout_and_the_same_weights(tmp_path):
    first, second = together(tmp_path, drawn)
    for one, other in (first, second):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])  # of one seed they repeat
    assert torch.equal(first[0][0], second[0][0])
    assert not torch.equal(first[0][1], second[0][1])
