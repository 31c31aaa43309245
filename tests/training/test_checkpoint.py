import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bench.cli.display import Display
from bench.launch.local import LocalLauncher
from bench.measure.sampler import Sampler
from bench.planning.plan import Plan
from bench.report.reading.load import load
from bench.results.records import EpochResult, TrialResult
from bench.results.store import Store
from bench.run.execute import Execution
from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Data, Suite
from bench.spec.trial import SuiteRef
from bench.training.checkpoint import Checkpoint, read_checkpoint, stored_bytes
from bench.training.step import build_arm, training_step
from tests.arms import arms
from tests.phases.test_train import paint
from tests.results.test_store import rows

CPU = torch.device("cpu")
SUITE = Suite(
    name="small",
    title="",
    data=Data(input_shape=(6,), classes=3),
    model=lambda data: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    schedule=torch.optim.lr_scheduler.CosineAnnealingLR,
    batch_size=8,
)
KILLED = """
import os
import signal
from pathlib import Path

from bench.spec import Data, Suite


def suite(marker: str = "") -> Suite:
    def model(data):
        from torch import nn

        class Deadly(nn.Flatten):
            steps = 0

            def forward(self, inputs):
                self.steps += self.training
                if self.steps == 5 and not Path(marker).exists():
                    Path(marker).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().forward(inputs)

        return nn.Sequential(Deadly(), nn.Linear(192, 16), nn.Dropout(0.5), nn.Linear(16, data.classes))

    def optimizer(parameters):
        from torch import optim

        return optim.SGD(parameters, lr=0.01, momentum=0.9)

    def schedule(optimizer, steps):
        from torch import optim

        return optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    return Suite(
        name="killed",
        title="is killed in the second step of its second epoch, once",
        data=Data(input_shape=(3, 8, 8), classes=2, crop_padding=2, flip=True),
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        batch_size=4,
    )
"""


def make(precision="fp32", seed=0):
    return build_arm(SUITE, SUITE.data, PRECISIONS[precision], CPU, seed=seed, steps=12)


def train(arm, first, last):
    chance = torch.Generator().manual_seed(1)
    data = [(torch.randn(8, 6, generator=chance), torch.randint(0, 3, (8,), generator=chance)) for _ in range(last)]
    for inputs, targets in data[first:]:
        training_step(arm, inputs, targets)


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def epoch(number=1):
    return EpochResult(**{**dict.fromkeys(EpochResult.__dataclass_fields__), "epoch": number, "train_loss": 1.5})


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_training_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path, precision):
    arm = make(precision)
    train(arm, 0, 4)
    if arm.scaler.is_enabled():
        arm.scaler.update(2.0**15)  # as after a step that overflowed
    Checkpoint.of(arm, "abc", [epoch()]).write(tmp_path / "deep" / "a.pt")
    train(arm, 4, 8)
    other = make(precision, seed=5)
    kept = read_checkpoint(tmp_path / "deep" / "a.pt")
    kept.restore(other)
    assert (kept.config, kept.epochs) == ("abc", (epoch(),))
    assert other.scaler.get_scale() == (2.0**15 if precision == "amp-fp16" else 1.0)
    train(other, 4, 8)
    assert same(arm.model.state_dict(), other.model.state_dict())
    assert arm.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"] < 0.1


def test_what_a_suite_draws_from_python_and_numpy_is_seeded_and_goes_on(tmp_path):
    def drawn():
        return random.random(), random.gauss(), np.random.rand(), np.random.standard_normal()

    arm = make(seed=3)
    first = drawn()  # a generator of normal values keeps the second of a pair
    Checkpoint.of(arm, "abc", []).write(tmp_path / "a.pt")
    after = drawn()
    other = make("amp-bf16", seed=3)
    assert drawn() == first
    read_checkpoint(tmp_path / "a.pt").restore(other)
    assert drawn() == after


def test_a_checkpoint_of_mixed_precision_goes_on_without_it(tmp_path):
    arm = make("amp-fp16")
    train(arm, 0, 4)
    Checkpoint.of(arm, "abc", []).write(tmp_path / "a.pt")
    saved = {name: value.clone() for name, value in arm.model.state_dict().items()}
    train(arm, 4, 8)
    plain = make("fp32", seed=5)
    read_checkpoint(tmp_path / "a.pt").restore(plain)
    assert same(saved, plain.model.state_dict())
    assert not plain.scaler.is_enabled()
    train(plain, 4, 8)
    one, other = arm.model.state_dict(), plain.model.state_dict()
    assert not same(one, other)
    assert all(torch.allclose(one[name], other[name], atol=0.01) for name in one)


def test_a_checkpoint_without_mixed_precision_goes_on_with_a_new_scaler(tmp_path):
    arm = make("fp32")
    train(arm, 0, 4)
    Checkpoint.of(arm, "abc", []).write(tmp_path / "a.pt")
    mixed = make("amp-fp16", seed=5)
    kept = read_checkpoint(tmp_path / "a.pt")
    assert kept.scaler == {}
    kept.restore(mixed)
    assert mixed.scaler.get_scale() == 2.0**16
    assert same(arm.model.state_dict(), mixed.model.state_dict())
    train(mixed, 4, 8)
    assert mixed.taken.count == 4
    assert all(value.isfinite().all() for value in mixed.model.state_dict().values())


def test_a_checkpoint_that_is_cut_short_leaves_the_one_before(tmp_path, monkeypatch):
    arm, path = make(), tmp_path / "a.pt"
    Checkpoint.of(arm, "first", [epoch(1)]).write(path)

    def cut(state, file):
        file.write(b"PK half a file")
        raise KeyboardInterrupt

    second = Checkpoint.of(arm, "second", [epoch(1), epoch(2)])
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", cut)
        with pytest.raises(KeyboardInterrupt):
            second.write(path)
    assert read_checkpoint(path).config == "first"
    second.write(path)
    assert len(read_checkpoint(path).epochs) == 2
    assert list(tmp_path.iterdir()) == [path]


class Loud:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_what_is_damaged_or_holds_code_is_not_loaded(tmp_path):
    path, trace = tmp_path / "a.pt", tmp_path / "trace"
    assert read_checkpoint(path) is None
    Checkpoint.of(make(), "abc", []).write(path)
    path.write_bytes(path.read_bytes()[:-200])
    assert read_checkpoint(path) is None
    torch.save({"config": Loud(str(trace)), "epochs": []}, path)
    assert read_checkpoint(path) is None
    assert not trace.exists()


def test_16_bits_halve_what_weights_take_and_leave_whole_numbers_alone():
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300))
    full, half = stored_bytes(model), stored_bytes(model, torch.float16)
    weights = 4 * (300 * 300 + 300 + 4 * 300)
    assert weights < full < weights + 5000
    assert full - half == pytest.approx(weights / 2, abs=500)
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32, torch.int64}


@pytest.fixture
def deadly(tiny_trial, tmp_path):
    """A training of three epochs whose process is killed in the second, unless the marker is there."""
    (tmp_path / "killed.py").write_text(KILLED)
    marker = tmp_path / "marker"
    suite = SuiteRef(name="killed", file=str(tmp_path / "killed.py"), parameters=(("marker", str(marker)),))
    cell = replace(tiny_trial.cell, suite=suite, data=paint(tmp_path))
    return replace(tiny_trial, phase="train", epochs=3, cell=cell), marker


def launch(trial, cpu, workspace):
    launcher, messages = LocalLauncher(), []
    launcher.workspace = workspace
    ending = launcher.run(trial, cpu, messages.append)
    return ending, [message for message in messages if isinstance(message, EpochResult | TrialResult)]


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_training_whose_process_was_killed_goes_on_to_the_same_weights(deadly, cpu, tmp_path, precision):
    trial, marker = replace(deadly[0], arms=arms(precision)), deadly[1]
    ending, (first,) = launch(trial, cpu, tmp_path / "killed")
    assert (ending.kind, "signal 9" in ending.text, first.epoch) == ("died", True, 1)
    assert marker.exists()
    ending, (again, *resumed, result) = launch(trial, cpu, tmp_path / "killed")
    assert ending.kind == "done"
    assert again == first  # the time it took included: it was not trained again
    _, (*whole, _) = launch(trial, cpu, tmp_path / "whole")
    losses = [row.train_loss for row in whole]
    assert [first.train_loss, *(row.train_loss for row in resumed)] == losses
    assert len(set(losses)) == 3
    assert result.training.epochs == 3
    assert resumed[-1].elapsed_s == pytest.approx(sum(row.train_s for row in (first, *resumed)))
    one, other = (read_checkpoint(tmp_path / name / trial.checkpoint) for name in ("killed", "whole"))
    assert same(one.model, other.model)


def test_a_killed_run_goes_on_with_no_epoch_lost_or_doubled_and_leaves_no_checkpoint(deadly, cpu, tmp_path):
    trial, folder = deadly[0], tmp_path / "run"
    plan = Plan(trials=(trial,), seconds=(None,))
    kept = []
    for attempt in range(3):
        if attempt == 2:  # as if killed after the result was stored and before the checkpoint was removed
            (folder / "checkpoints").mkdir()
            (folder / trial.checkpoint).touch()
        launcher = LocalLauncher()
        launcher.workspace = folder
        with Store(folder) as store:
            store.write_run({})
            parts = {"launcher": launcher, "sampler": Sampler(()), "display": Display()}
            Execution(store=store, devices={"cpu": cpu}, **parts).run(plan)
        kept.append((folder / trial.checkpoint).exists())
    assert kept == [True, False, False]
    assert not (folder / "checkpoints").exists()
    assert [row["status"] for row in rows(folder, "trials.csv")] == ["failed", "ok"]
    assert list(load([folder]).epochs["epoch"]) == [1, 2, 3]


def test_a_checkpoint_stays_within_the_runs_folder_whatever_the_trial_is_called(deadly):
    trial = deadly[0]
    assert "/" in trial.id
    assert len(trial.checkpoint.parts) == 2
    assert ".." not in trial.checkpoint.parts
