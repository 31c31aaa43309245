"""What the epochs of a training come to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.phases import train
from bench.phases.train import epoch_row, summary, time_to_accuracy_s
from bench.planning import suite_registry
from bench.results.records import EpochResult
from bench.spec.precisions import PRECISIONS
from bench.training.checkpoint import stored_bytes
from bench.training.step import Epoch, build_arm


def epochs(*accuracies):
    made = dict.fromkeys(EpochResult.__dataclass_fields__)
    return [
        EpochResult(**{**made, "test_accuracy_pct": accuracy, "elapsed_s": 10.0 * number})
        for number, accuracy in enumerate(accuracies, start=1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "target", "seconds"),
    [
        ((50.0, 90.0, 85.0, 95.0), 90.0, 20.0),
        ((50.0, 90.0), 90.1, None),
        ((50.0, 90.0), None, None),
        ((None, None), 50.0, None),
    ],
)
def test_time_to_accuracy_is_that_of_the_first_epoch_that_reached_the_target(accuracies, target, seconds):
    assert time_to_accuracy_s(epochs(*accuracies), target) == seconds


def test_the_sum_of_a_training_is_that_of_all_its_epochs(tiny_trial):
    suite = suite_registry.load(tiny_trial.cell.suite)
    arm = build_arm(suite, suite.data, PRECISIONS["fp32"], torch.device("cpu"), seed=0)
    rows = []
    for seconds, wait_s, test_s, energy_j in ((10.0, 4.0, 1.0, 70.0), (2.0, 0.5, 3.0, 30.0), (4.0, 0.3, 2.0, 20.0)):
        epoch = Epoch(loss=1.0, seconds=seconds, wait_seconds=wait_s, samples=100, skipped_steps=0)
        tested = train.Tested(loss=0.5, accuracy_pct=80.0, seconds=test_s)
        rows.append(epoch_row(tiny_trial, rows, epoch, tested, rate=0.1, scale=None, energy_j=energy_j))
    found = summary(tiny_trial, rows, arm)
    assert [one.elapsed_s for one in rows] == [10.0, 12.0, 16.0]
    assert (found.epochs, found.time_per_epoch_s, found.total_s) == (3, 4.0, 22.0)
    assert found.train_samples_per_s == pytest.approx(300 / 16)
    assert found.data_wait_pct == pytest.approx(100 * 4.8 / 16)
    assert found.train_energy_j == 120.0
    rows[1] = replace(rows[1], energy_j=None)
    assert summary(tiny_trial, rows, arm).train_energy_j is None


def test_in_16_bits_whole_numbers_are_stored_as_they_are():
    model = nn.Linear(4, 4)
    plain = stored_bytes(model, torch.float16)
    model.register_buffer("seen", torch.zeros(10_000, dtype=torch.int64))
    assert stored_bytes(model, torch.float16) - plain >= 80_000
