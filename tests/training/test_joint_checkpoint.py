"""Processes that train together, stopped and gone on with: to the same bits as those that never stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.data import Shard
from bench.phases import train
from bench.planning import suite_registry
from bench.results.records import EpochResult, TrialResult
from bench.spec.suite import Data
from bench.spec.trial import Placement
from bench.training.checkpoint import read_checkpoint
from tests.arms import arms
from tests.phases.test_train import paint
from tests.processes import together
from tests.training.test_checkpoint import SUITE, deadly, launch, same

__all__ = ["deadly"]


class StoppedError(Exception):
    """A training that ended before its time."""


def train_twice(rank, trial, device, folder):
    """Train whole, then again with a stop after the first epoch; return the rows of both and what went on."""
    data = Data(input_shape=(3, 8, 8), classes=2, crop_padding=2, flip=True)
    suite_registry.load = lambda ref: replace(SUITE, model=model, data=data)
    sent = []

    def run(name, stop_after=None):
        def send(message):
            if isinstance(message, EpochResult | TrialResult):
                sent.append(message)
            if isinstance(message, EpochResult) and message.epoch == stop_after:
                raise StoppedError

        sent.clear()
        # Only the first process has a file: the others may be on another machine.
        path = Path(folder) / name if rank == 0 else None
        train.run(trial, device, send, path, Shard(rank=rank, ranks=2))
        return list(sent)

    whole = run("whole.pt")
    with pytest.raises(StoppedError):
        run("stopped.pt", stop_after=1)
    torch.manual_seed(99)
    before = list(sent)
    return whole, before, run("stopped.pt")


def model(data):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


@pytest.fixture
def both(tiny_trial, tmp_path):
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"), data=paint(tmp_path))
    return replace(tiny_trial, phase="train", epochs=3, arms=arms("fp32"), cell=cell)


def test_a_stopped_training_of_two_processes_goes_on_to_the_same_bits(both, cpu, tmp_path):
    found = together(tmp_path, train_twice, both, cpu, str(tmp_path))
    whole, before, after = found[0]
    losses = [row.train_loss for row in whole[:-1]]
    assert len(set(losses)) == 3
    assert [row.epoch for row in before] == [1]
    assert after[0] == before[0]  # the time it took included: it was not trained again
    for _, _, rows in found:
        assert [row.train_loss for row in rows[:-1]] == losses
        assert [row.test_loss for row in rows[:-1]] == [row.test_loss for row in whole[:-1]]
    one, other = (read_checkpoint(tmp_path / f"{name}.pt") for name in ("whole", "stopped"))
    assert same(one.model, other.model)
    assert not torch.equal(one.generators[0]["cpu"], one.generators[1]["cpu"])
    for own, resumed in zip(one.generators, other.generators, strict=True):
        assert torch.equal(own.pop("cpu"), resumed.pop("cpu"))
        assert own == resumed
        assert set(own) == {"python", "numpy"}
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.slow
def test_a_run_on_two_devices_whose_processes_were_killed_goes_on(deadly, cpu, tmp_path):
    trial, marker = deadly
    trial = replace(trial, cell=replace(trial.cell, placement=Placement(name="cpu+cpu")))
    ending, (first,) = launch(trial, cpu, tmp_path / "killed")
    assert (ending.kind, first.epoch, marker.exists()) == ("error", 1, True)
    ending, got = launch(trial, cpu, tmp_path / "killed")
    assert len(got) > 1, ending
    again, *resumed, result = got
    assert (ending.kind, again) == ("done", first)
    assert ([row.epoch for row in resumed], result.training.epochs) == ([2, 3], 3)
