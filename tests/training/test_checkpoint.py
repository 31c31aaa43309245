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

from bench.cli.display import Display
from bench.launch.local import LocalLauncher
from bench.measure.sampler import Sampler
from bench.phases.train import measure as train_phase
from bench.planning import suite_registry
from bench.planning.plan import Plan
from bench.report.reading.load import load
from bench.results.records import EpochResult
from bench.results.store import Store
from bench.run.queue import run_plan
from bench.run.session import Session
from bench.spec.errors import UsageError
from bench.spec.placement import Placement
from bench.spec.suite import Data
from bench.spec.trial import SuiteRef, kept_checkpoint
from bench.training.checkpoint import Checkpoint, read_checkpoint
from tests.arms import arms
from tests.phases.test_train import paint
from tests.processes import together
from tests.rows import trial_rows
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


EPOCH = EpochResult(**dict.fromkeys(EpochResult.__dataclass_fields__, 1))


@pytest.mark.parametrize(
    "precision", ["fp32", "amp-fp16", "amp-bf16", "fp16-master", "fp16", "bf16"]
)
def test_training_resumes_from_a_checkpoint_to_the_same_bits(tmp_path, precision):
    arm, other = make(precision), make(precision, seed=5)
    train(arm, DATA[:4])
    scale = 2.0**15 if arm.scaler.is_enabled() else None
    if scale:
        arm.scaler.update(scale)  # as after a step that overflowed
    Checkpoint.of(arm, "abc", [EPOCH]).write(tmp_path / "deep" / "a.pt")
    train(arm, DATA[4:])
    kept = read_checkpoint(tmp_path / "deep" / "a.pt")
    kept.restore(other)
    assert kept.trial == "abc"
    assert kept.epochs == (EPOCH,)
    assert other.loss_scale == scale
    train(other, DATA[4:])
    assert same(arm.weights.state_dict(), other.weights.state_dict())
    assert arm.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"] < 0.1


def test_pythons_and_numpys_generators_are_seeded_and_restored(tmp_path):
    def drawn():
        return random.gauss(), np.random.standard_normal()

    arm = make(seed=3)
    first = drawn()  # a generator of normal values keeps the second of a pair
    Checkpoint.of(arm, "abc", []).write(tmp_path / "a.pt")
    after = drawn()
    other = make("amp-bf16", seed=3)
    assert drawn() == first
    read_checkpoint(tmp_path / "a.pt").restore(other)
    assert drawn() == after


@pytest.mark.parametrize("first", ["fp32", "amp-fp16", "fp16-master"])
@pytest.mark.parametrize("second", ["fp32", "amp-fp16", "fp16-master"])
def test_a_training_from_another_runs_epoch_ends_as_if_it_had_not_been_interrupted(
    tmp_path, tiny_trial, cpu, first, second
):
    def losses(name, folder, start=None):
        trial = replace(
            tiny_trial,
            phase="train",
            epochs=4,
            arms=arms(name),
            start=start,
            keep_checkpoints=True,
        )
        messages = []
        train_phase.run(trial, cpu, messages.append, tmp_path / folder / trial.checkpoint)
        *epochs, _result = messages
        kept = tmp_path / folder / kept_checkpoint(trial.id, 2)
        return [(row.epoch, row.train_loss) for row in epochs], str(kept)

    whole, kept = losses(first, "whole")
    rest, _ = losses(second, "rest", start=kept)
    tolerance = 0 if first == second else 0.03
    for expected, row in zip(whole[2:], rest, strict=True):
        assert row == pytest.approx(expected, rel=tolerance, abs=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"seed": 1}, "is of another training, tiny-"), ({"epochs": 1}, "leaves no epoch to train")],
)
def test_a_checkpoint_of_another_training_or_of_its_last_epoch_is_refused(
    tmp_path, tiny_trial, cpu, change, sentence
):
    trial = replace(tiny_trial, phase="train", epochs=1, keep_checkpoints=True)
    train_phase.run(trial, cpu, lambda _message: None, tmp_path / trial.checkpoint)
    start = str(tmp_path / kept_checkpoint(trial.id, 1))
    with pytest.raises(UsageError, match=sentence):
        train_phase.run(replace(trial, start=start, **change), cpu, print, tmp_path / "other.pt")


def test_an_interrupted_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    arm = make()
    path = tmp_path / "a.pt"
    Checkpoint.of(arm, "first", []).write(path)

    def cut(state, file):
        file.write_bytes(b"PK half a file")
        raise KeyboardInterrupt

    second = Checkpoint.of(arm, "second", [])
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", cut)
        with pytest.raises(KeyboardInterrupt):
            second.write(path)
    assert read_checkpoint(path).trial == "first"
    second.write(path)
    assert read_checkpoint(path).trial == "second"
    assert list(tmp_path.iterdir()) == [path]


class Loud:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_damaged_file_or_one_with_code_is_not_loaded(tmp_path):
    path, trace = tmp_path / "a.pt", tmp_path / "trace"
    assert read_checkpoint(path) is None
    Checkpoint.of(make(), "abc", []).write(path)
    path.write_bytes(path.read_bytes()[:-200])
    assert read_checkpoint(path) is None
    torch.save({"config": Loud(str(trace)), "epochs": []}, path)
    assert read_checkpoint(path) is None
    assert not trace.exists()


@pytest.fixture
def deadly(tiny_trial, tmp_path):
    """A training whose process is killed in the second of three epochs, unless marked."""
    (tmp_path / "killed.py").write_text(KILLED)
    parameters = (("marker", str(tmp_path / "marker")),)
    suite = SuiteRef(name="killed", file=str(tmp_path / "killed.py"), parameters=parameters)
    cell = replace(tiny_trial.cell, suite=suite, data=paint(tmp_path))
    return replace(tiny_trial, phase="train", epochs=3, arms=arms("amp-fp16"), cell=cell)


@pytest.mark.slow
def test_a_killed_run_resumes_with_no_epoch_lost_or_repeated_and_leaves_no_checkpoint(
    deadly, cpu, tmp_path
):
    trial = deadly
    folder = tmp_path / "run"
    whole = tmp_path / "whole"

    def run(folder):
        launcher = LocalLauncher()
        launcher.workspace = folder
        store = Store(folder)
        store.write_run({})
        session = Session(
            plan=Plan(trials=(trial,)),
            store=store,
            devices={"cpu": cpu},
            launcher=launcher,
            sampler=Sampler(()),
            display=Display(),
        )
        run_plan(session)
        return (folder / trial.checkpoint).exists()

    assert run(folder)
    (killed,) = trial_rows(folder)
    assert killed["status"] == "failed"
    assert "SIGKILL" in killed["detail"]
    assert not run(folder)
    # As if killed after the result was stored and before the checkpoint was removed.
    (folder / "checkpoints").mkdir()
    (folder / trial.checkpoint).touch()
    assert not run(folder)
    assert not (folder / "checkpoints").exists()
    assert [row["status"] for row in trial_rows(folder)] == ["ok"]
    run(whole)  # which is not killed
    resumed = load([folder]).details["epochs"]
    uninterrupted = load([whole]).details["epochs"]
    assert list(resumed["epoch"]) == [1, 2, 3]
    assert list(resumed["train_loss"]) == list(uninterrupted["train_loss"])


class StoppedError(Exception):
    """A training that ended before its time."""


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
                    raise StoppedError

        # Only the first process has a file: the others may be on another machine.
        file = Path(folder) / name if rank == 0 else None
        with suppress(StoppedError):
            train_phase.run(trial, device, send, file)
        return losses

    whole = run("whole.pt")
    stopped = run("stopped.pt", stop_after=1)
    torch.manual_seed(99)
    return whole, stopped, run("stopped.pt")


@pytest.mark.slow
def test_a_stopped_training_of_two_ranks_resumes_to_the_same_bits(tiny_trial, cpu, tmp_path):
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"), data=paint(tmp_path))
    trial = replace(tiny_trial, phase="train", epochs=3, cell=cell)
    ranks = together(tmp_path, train_twice, trial, cpu, str(tmp_path))
    for whole, stopped, resumed in ranks:
        assert len({loss for _, loss, _ in whole}) == 3
        assert stopped == whole[:1]
        assert resumed == whole
    stored = read_checkpoint(tmp_path / "whole.pt")
    other = read_checkpoint(tmp_path / "stopped.pt")
    assert same(stored.model, other.model)
    first, second = stored.generators
    assert not torch.equal(first["cpu"], second["cpu"])
    assert list(tmp_path.glob("*.part")) == []
