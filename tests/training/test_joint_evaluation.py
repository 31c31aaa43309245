"""A test set evaluated in shares by several processes, against one that evaluates it whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.data import Shard
from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Data, Suite
from bench.training import distributed
from bench.training.step import build_arm, evaluate, evaluate_fp32, training_step
from tests.processes import together

CPU = torch.device("cpu")
COUNTS = (7, 3, 1)
"""Samples of the test set's batches: of the last, one of two processes has none."""


def suite(classes):
    return Suite(
        name="small",
        title="",
        data=Data(input_shape=(6,), classes=classes, target_shape=None if classes else (3,)),
        model=lambda data: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=8,
    )


def make(classes):
    return build_arm(suite(classes), suite(classes).data, PRECISIONS["fp32"], CPU, seed=0)


def samples(count, classes, seed):
    chance = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (count,), generator=chance) if classes else torch.randn(count, 3, generator=chance)
    return torch.randn(count, 6, generator=chance), targets


def held_out(classes, counts, share):
    for seed, count in enumerate(counts):
        inputs, targets = samples(count, classes, seed)
        mine = share.of(0, count)
        if mine.start < mine.stop:
            yield inputs[mine], targets[mine]


def evaluate_shares(rank):
    share, found = Shard(rank=rank, ranks=2), {}
    for classes in (3, None):
        arm = make(classes)
        inputs, targets = samples(8, classes, 9)
        part = share.of(0, 8)
        training_step(arm, inputs[part], targets[part])
        found[classes, "own statistics"] = arm.model[1].running_mean.clone()
        distributed.share_buffers(arm.model)
        found[classes, "state"] = arm.model.state_dict()
        for counts in (COUNTS, (1,)):  # of a single sample, this process or the other sees nothing at all
            found[classes, counts] = [
                judge(arm, held_out(classes, counts, share)) for judge in (evaluate, evaluate_fp32)
            ]
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return together(tmp_path_factory.mktemp("shares"), evaluate_shares)


@pytest.mark.parametrize("counts", [COUNTS, (1,)])
@pytest.mark.parametrize("classes", [3, None])
def test_shares_come_to_what_the_whole_test_set_comes_to(found, classes, counts):
    arm = make(classes)
    arm.model.load_state_dict(found[0][classes, "state"])
    loss, accuracy = evaluate(arm, held_out(classes, counts, Shard()))
    for part in found:
        for shared_loss, shared_accuracy in part[classes, counts]:
            assert shared_loss == pytest.approx(loss, rel=1e-6)
            assert shared_accuracy == accuracy  # counts are exact
    assert (accuracy is None) == (classes is None)


def test_all_evaluate_with_the_first_ones_statistics(found):
    own, states = ([part[3, key] for part in found] for key in ("own statistics", "state"))
    assert not torch.equal(*own)
    for state in states:
        assert torch.equal(state["1.running_mean"], own[0])
