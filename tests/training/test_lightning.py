"""Lightning's Trainer against the plain loop: the same weights, the same records, the same switches."""

import importlib.util
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.cli.parser import parse
from bench.data import Shard, random_batches
from bench.launch.local import LocalLauncher
from bench.run import prepare
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Data
from bench.spec.trial import Cell, DataSource, Placement, SuiteRef, Trial
from bench.training.amp import apply, read_back
from bench.training.lightning import accelerator_of, open_lightning
from bench.training.step import train_epoch
from suites._schedule import cosine
from tests.arms import arms
from tests.training import conftest
from tests.training.conftest import CPU, same

DATA = Data(input_shape=(6,), classes=3)
needs_lightning = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed")

TWINS = """
from bench.spec import Data, Suite


def suite(trainer: str = "both", devices: int = 1, fail: str = "") -> Suite:
    from torch import nn, optim

    def model(data):
        if fail:
            raise RuntimeError("the model broke")
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, data.classes))

    return Suite(
        name="twins",
        title="",
        data=Data(input_shape=(3, 2, 2), classes=2, steps_per_epoch=4),
        model=model,
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.1),
        batch_size=8,
        trainer="lightning" if trainer == "lightning" else "plain",
        devices=devices if trainer == "lightning" else 1,
        variants=({"trainer": "plain"}, {"trainer": "lightning"}) if trainer == "both" else (),
    )
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    apply(PRECISIONS["fp32"])


@pytest.fixture
def twins(tmp_path):
    path = tmp_path / "twins.py"
    path.write_text(TWINS)
    return path


def make(precision, **given):
    return conftest.make(
        precision,
        data=DATA,
        model=lambda data: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-4),  # 1e-8 is 0 in fp16
        schedule=lambda optimizer, steps: cosine(optimizer, steps, 0.1),
        steps=20,
        **given,
    )


def trial(file, **parameters):
    return Trial(
        cell=Cell(
            suite=SuiteRef(name="twins", file=str(file), parameters=tuple(sorted(parameters.items()))),
            placement=Placement(name="cpu"),
            batch_size=8,
            data=DataSource(kind="synthetic"),
        ),
        phase="train",
        arms=arms("amp-bf16"),
        epochs=2,
    )


@needs_lightning
@pytest.mark.parametrize("precision", [name for name, precision in PRECISIONS.items() if not precision.package])
def test_lightning_trains_to_the_same_bits_as_the_plain_loop(precision):
    plain, other = make(precision, clip_grad=0.5), make(precision, clip_grad=0.5)
    train_by_lightning = open_lightning(other, 10, Shard())
    data = random_batches(DATA, batch_size=8, count=10, device=CPU, seed=1)
    for _ in range(2):
        apply(PRECISIONS[precision])
        expected, epoch = train_epoch(plain, iter(data)), train_by_lightning(iter(data))
        assert epoch.seconds > epoch.wait_seconds > 0
        assert replace(epoch, seconds=0, wait_seconds=0) == replace(expected, seconds=0, wait_seconds=0)
        switches = read_back(PRECISIONS[precision], CPU)
        assert switches.fp32_matmul == ("tf32" if precision == "tf32" else "ieee")
    assert same(plain.model.parameters(), other.model.parameters())
    assert plain.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"]
    assert plain.scaler.get_scale() == other.scaler.get_scale()


@needs_lightning
def test_lightning_does_not_empty_a_gpus_memory_before_each_epoch(monkeypatch):
    from lightning.pytorch.accelerators import cuda

    emptied, trainer = [], SimpleNamespace(local_rank=0)
    monkeypatch.setattr(cuda, "_clear_cuda_memory", lambda: emptied.append(True))
    cuda.CUDAAccelerator().setup(trainer)
    accelerator_of(torch.device("cuda", 0)).setup(trainer)
    assert emptied == [True]  # by Lightning's own


@needs_lightning
def test_lightning_counts_the_steps_that_the_scaler_skips():
    arm = make("amp-fp16")
    data = random_batches(DATA, batch_size=8, count=10, device=CPU, seed=1)
    data[3] = (data[3][0] * 1e30, data[3][1])
    epoch = open_lightning(arm, 10, Shard())(iter(data))
    assert epoch.skipped_steps == 1
    assert arm.scaler.get_scale() == 2**15


@needs_lightning
@pytest.mark.slow
def test_two_processes_train_as_one_does(twins, cpu):
    sent = {1: [], 2: []}
    launcher = LocalLauncher()
    for devices, messages in sent.items():
        assert launcher.run(trial(twins, trainer="lightning", devices=devices), cpu, messages.append).kind == "done"
    single, two = ([row for row in sent[count] if hasattr(row, "epoch")] for count in (1, 2))
    assert [row.samples for row in single] == [row.samples for row in two] == [32, 32]
    assert [row.train_loss for row in two] == pytest.approx([row.train_loss for row in single], rel=0.01)
    assert sent[2][-1].switches.autocast == "bfloat16"


@needs_lightning
@pytest.mark.slow
def test_a_process_that_fails_ends_all_and_says_why(twins, cpu):
    ending = LocalLauncher().run(trial(twins, trainer="lightning", devices=2, fail="yes"), cpu, lambda _row: None)
    assert ending.kind == "error"
    assert re.match(r"device [12] of 2 \(CPU\): RuntimeError: the model broke", ending.text)


def test_devices_that_are_not_there_are_refused(twins, cpu):
    placed = trial(twins, trainer="lightning", devices=2)
    placed = replace(placed, cell=replace(placed.cell, placement=Placement(name=str(torch.cuda.device_count()))))
    ending = LocalLauncher().run(placed, cpu, lambda _row: None)
    assert ending.kind == "usage"
    assert re.match(r"Training on 2 devices from GPU .* and there are", ending.text)


class Machine:
    """A launcher whose processes find a CPU, no images to look at, and count no FLOPs."""

    def __init__(self, environment):
        self.environment = environment

    def survey(self, gpus):
        return self.environment

    def call(self, target, *arguments):
        return 1.0


def test_both_trainers_are_planned_and_only_the_plain_one_is_timed_step_by_step(twins, machine, monkeypatch):
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda _name: object())
    command = parse(["--suite", str(twins), "--gpus", "cpu", "--precisions", "fp32", "--phases", "memory,train"])
    prepared = prepare.prepare(command, Machine(machine))
    planned = [(dict(trial.cell.suite.parameters)["trainer"], trial.phase) for trial in prepared.plan.trials]
    assert planned == [("plain", "memory"), ("plain", "train"), ("lightning", "train")]
    assert len({trial.id for trial in prepared.plan.trials}) == len(prepared.plan.seconds) == 3


def refuse(machine, twins, *words):
    with pytest.raises(UsageError) as raised:
        prepare.prepare(parse(["--suite", str(twins), *words]), Machine(machine))
    return str(raised.value)


def test_lightning_is_asked_for_where_it_is_not_installed(twins, machine, monkeypatch):
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda _name: None)
    message = refuse(machine, twins, "--gpus", "cpu")
    assert "pip install 'ampmeter[lightning]', or --set trainer=plain" in message


@pytest.mark.parametrize("settings", [("trainer=lightning", "devices=2"), ("trainer=plain",)])
def test_batches_that_cannot_be_divided_are_refused_before_anything_runs(twins, machine, monkeypatch, settings):
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda _name: object())
    placement = "cpu" if len(settings) == 2 else "cpu+cpu"
    machine = replace(machine, devices=(replace(machine.devices[0], placement=placement),))
    words = [word for setting in settings for word in ("--set", setting)]
    message = refuse(machine, twins, "--gpus", placement, "--batch-sizes", "7", *words)
    assert message.startswith("The batch size 7 cannot be divided among 2 devices.")


def test_lightning_takes_one_device_and_a_number_and_not_several(twins, machine, monkeypatch):
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda _name: object())
    machine = replace(machine, devices=(replace(machine.devices[0], placement="cpu+cpu"),))
    words = ("--gpus", "cpu+cpu", "--batch-sizes", "8", "--phases", "train", "--set", "trainer=lightning")
    assert "name one device, not cpu+cpu, and --set devices=2." in refuse(machine, twins, *words)


def test_lightning_trains_a_master_copy_on_one_device_only():
    with pytest.raises(UsageError, match="fp16-master trains on one device only"):
        open_lightning(make("fp16-master"), 1, Shard(rank=0, ranks=2))
