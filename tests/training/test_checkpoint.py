"""Training goes on from a checkpoint to the same bits, in one process and in two, stopped or
killed.
"""

import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bench.phases.train import measure as train_phase
from bench.planning import suite_registry
from bench.results.records import EpochResult
from bench.spec.errors import UsageError
from bench.spec.placement import Placement
from bench.spec.suite import Data
from bench.training.checkpoint import Checkpoint, read_checkpoint
from tests.arms import arms
from tests.conftest import call
from tests.phases.conftest import of_kind
from tests.phases.test_train import paint
from tests.processes import together
from tests.rows import rows, trial_rows
from tests.training import conftest
from tests.training.conftest import batches, make_suite, same, train

SCHEDULE = torch.optim.lr_scheduler.CosineAnnealingLR
DATA = batches(8)
KILLED = """
import os
import signal
from pathlib import Path

from bench.spec import Data, Suite


def suite(marker: str = "") -> Suite:
    from torch import nn, optim

    class Deadly(nn.Flatten):
        steps = 0

        def forward(self, inputs):
            self.steps += self.training
            if self.steps == 5 and not Path(marker).exists():
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(inputs)

    return Suite(
        name="killed",
        title="is killed in the second step of its second epoch, once",
        data=Data(input_shape=(3, 8, 8), classes=2, crop_padding=2, flip=True),
        model=lambda: nn.Sequential(Deadly(), nn.Linear(192, 9), nn.Dropout(0.5), nn.Linear(9, 2)),
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9),
        schedule=optim.lr_scheduler.CosineAnnealingLR,
        batch_size=4,
    )
"""


def model(data):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    )


def make(precision="fp32", seed=0):
    return conftest.make(precision, model=model, seed=seed, schedule=SCHEDULE, steps=12)


@pytest.mark.parametrize(
    "precision", ["fp32", "amp-fp16", "amp-bf16", "fp16-master", "fp16", "bf16"]
)
def test_training_resumes_from_a_checkpoint_to_the_same_bits(tmp_path, precision):
    file = tmp_path / "deep" / "a.pt"
    arm = make(precision)
    train(arm, DATA[:4])
    arm.scaler.update(2.0**15)  # as after a step that overflowed
    random.gauss()  # Python's generator keeps the second of a pair
    Checkpoint.of(arm, "abc", []).write(file)
    drawn = random.gauss()
    numpy_drawn = np.random.standard_normal()
    train(arm, DATA[4:])
    other = make(precision, seed=5)
    read_checkpoint(file).restore(other)
    assert random.gauss() == drawn
    assert np.random.standard_normal() == numpy_drawn
    assert other.loss_scale == arm.loss_scale
    train(other, DATA[4:])
    assert same(arm.weights.state_dict(), other.weights.state_dict())


@pytest.mark.parametrize("first", ["fp32", "amp-fp16", "fp16-master"])
@pytest.mark.parametrize("second", ["fp32", "amp-fp16", "fp16-master"])
def test_a_training_from_another_runs_epoch_ends_as_if_it_had_not_been_interrupted(
    tmp_path, tiny_trial, cpu, first, second
):
    def losses(folder, precision, **changes):
        trial = replace(kept, arms=arms(precision), **changes)
        messages = []
        train_phase.run(trial, cpu, messages.append, tmp_path / folder / trial.checkpoint)
        epochs = of_kind(EpochResult, messages)
        return {epoch.epoch: epoch.train_loss for epoch in epochs}

    kept = replace(tiny_trial, phase="train", epochs=4, keep_checkpoints=True)
    whole = losses("whole", first)
    (start,) = tmp_path.glob("whole/**/*2.pt")
    rest = losses("rest", second, start=str(start))
    tolerance = 0 if first == second else 0.03
    last_two = {3: whole[3], 4: whole[4]}
    assert rest == pytest.approx(last_two, rel=tolerance, abs=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"seed": 1}, "is of another training, tiny-"), ({"epochs": 1}, "leaves no epoch to train")],
)
def test_a_checkpoint_of_another_training_or_of_its_last_epoch_is_refused(
    tmp_path, tiny_trial, cpu, change, sentence
):
    trial = replace(tiny_trial, phase="train", epochs=1)
    start = tmp_path / "a.pt"
    train_phase.run(trial, cpu, print, start)
    other = replace(trial, start=str(start), **change)
    with pytest.raises(UsageError, match=sentence):
        train_phase.run(other, cpu, print)


def test_an_interrupted_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    checkpoint = Checkpoint.of(make(), "first", [])
    checkpoint.write(path)

    def cut(state, file):
        file.write_bytes(b"PK half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", cut)
    with pytest.raises(KeyboardInterrupt):
        replace(checkpoint, trial="second").write(path)
    assert read_checkpoint(path).trial == "first"
    assert list(tmp_path.iterdir()) == [path]


class Loud:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_file_with_code_is_not_loaded(tmp_path):
    path = tmp_path / "a.pt"
    trace = tmp_path / "trace"
    state = {"config": Loud(str(trace)), "epochs": []}
    torch.save(state, path)
    assert read_checkpoint(path) is None
    assert not trace.exists()


def losses_in(folder):
    """Return the epochs of a run with their training losses."""
    return [(row["epoch"], row["train_loss"]) for row in rows(folder, "epochs.csv")]


@pytest.mark.slow
def test_a_killed_run_resumes_with_no_epoch_lost_or_repeated_and_leaves_no_checkpoint(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    paint(tmp_path)
    words = "--suite killed.py --set marker=marker --data folder:images --gpus cpu --phases train"
    asked = (*words.split(), "--precisions", "amp-fp16", "--epochs", 3)
    run = tmp_path / "run"
    whole = tmp_path / "whole"

    call(*asked, "--out", run, cwd=tmp_path)
    (killed,) = trial_rows(run)
    assert killed["status"] == "failed"
    assert "SIGKILL" in killed["detail"]
    (checkpoint,) = run.glob("checkpoints/*")
    call("--resume", run, cwd=tmp_path)
    # As if killed after the result was stored and before the checkpoint was removed.
    checkpoint.parent.mkdir()
    checkpoint.touch()
    call("--resume", run, cwd=tmp_path)
    assert not checkpoint.parent.exists()
    (resumed,) = trial_rows(run)
    assert resumed["status"] == "ok"

    call(*asked, "--out", whole, cwd=tmp_path)  # the marker is there: it is not killed
    assert losses_in(run) == losses_in(whole)
    assert len(losses_in(run)) == 3


def train_twice(rank, trial, device, folder):
    """Train whole, then again with a stop after the first epoch; return the losses of both and what
    was left.
    """
    data = Data(input_shape=(3, 8, 8), classes=2, crop_padding=2, flip=True)
    suite_registry.load = lambda ref: make_suite(model, data=data, schedule=SCHEDULE)

    def run(name, stop_after=None):
        losses = []

        def send(message):
            if isinstance(message, EpochResult):
                losses.append((message.epoch, message.train_loss, message.test_loss))
                if message.epoch == stop_after:
                    raise KeyboardInterrupt

        # Only the first process has a file: the others may be on another machine.
        file = Path(folder) / name if rank == 0 else None
        with suppress(KeyboardInterrupt):
            train_phase.run(trial, device, send, file)
        return losses

    whole = run("whole.pt")
    stopped = run("stopped.pt", stop_after=1)
    torch.manual_seed(99)
    resumed = run("stopped.pt")
    return whole, stopped, resumed


@pytest.mark.slow
def test_a_stopped_training_of_two_ranks_resumes_to_the_same_bits(tiny_trial, cpu, tmp_path):
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"), data=paint(tmp_path))
    trial = replace(tiny_trial, phase="train", epochs=3, cell=cell)
    ranks = together(tmp_path, train_twice, trial, cpu, str(tmp_path))
    for whole, stopped, resumed in ranks:
        assert len(whole) == 3
        assert stopped == whole[:1]
        assert resumed == whole
    kept = read_checkpoint(tmp_path / "whole.pt")
    assert same(kept.model, read_checkpoint(tmp_path / "stopped.pt").model)
    first, second = kept.generators
    assert not torch.equal(first["cpu"], second["cpu"])
