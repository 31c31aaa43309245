"""Several devices that train together: names, refusals, and gradients equal to one device's with the whole batch."""

from __future__ import annotations

import itertools
import math
import os
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import multiprocessing, nn

from bench.data import random_batches
from bench.doctor.probes import SLEPT, busy_wait
from bench.measure.warmup import prepare
from bench.phases.arms import BATCHES, TrainingRunner
from bench.phases.speed import communication_pct
from bench.planning import suite_registry
from bench.planning.plan import Plan, refusal_reason
from bench.results.records import MemoryPeak
from bench.run.prepare import warn_of_refusals
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from bench.spec.techniques import Techniques
from bench.spec.trial import Placement
from bench.training import distributed
from bench.training.step import build_arm
from tests.conftest import call
from tests.results.test_store import rows

CPU = torch.device("cpu")
BATCH = 8
LATE_S = 0.2


@pytest.mark.parametrize(
    "name",
    ["0+0", "0+00", "cpu+0", "0+", "+1", "a+b", "0+V100", "0+1@", "0+1@1", "0+1@x", "@2", "0+0@2", "0+1@2@2", "cpu@-1"],
)
def test_odd_placements_are_refused(name):
    with pytest.raises(UsageError, match="--gpus"):
        Placement(name=name)


def test_members_are_the_devices_in_order():
    assert Placement(name="1+0").members == ("1", "0")
    assert [Placement(name="1+0").device_of(rank) for rank in (0, 1)] == [1, 0]
    assert Placement(name="cpu+cpu").index is None
    assert Placement(name="3").device_of(1) == 3


def test_members_on_two_nodes_are_those_of_one_after_the_other():
    place = Placement(name="2+3@2")
    assert (place.local, place.nodes, place.index) == ("2+3", 2, 2)
    assert [place.device_of(rank) for rank in range(4)] == [2, 3, 2, 3]
    assert Placement(name="cpu@2").members == ("cpu", "cpu")


def test_one_process_agrees_with_itself():
    assert (distributed.ranks(), distributed.rank(), distributed.part(8)) == (1, 0, 8)
    assert distributed.gathered("a") == ("a",)
    assert distributed.mean(3.0) == 3.0


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 6, generator=generator), torch.randint(3, (BATCH,), generator=generator)


def train_part(rank, port, folder):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    distributed.join(torch.device("cpu"))
    mine, (inputs, targets) = model(), batch()
    if rank == 1:
        with torch.no_grad():
            mine[0].weight.zero_()  # every process starts from the first one's weights
    part = slice(rank * distributed.part(BATCH), (rank + 1) * distributed.part(BATCH))
    forward = distributed.parallel(mine, torch.device("cpu"), Techniques())
    nn.functional.cross_entropy(forward(inputs[part]), targets[part]).backward()
    compressed = model()
    send = distributed.parallel(compressed, torch.device("cpu"), Techniques(bf16_allreduce=True))
    nn.functional.cross_entropy(send(inputs[part]), targets[part]).backward()
    readings = [distributed.clock()() for _ in range(2)]
    read = distributed.clock()
    start = read()
    time.sleep(LATE_S if rank == 1 else 0.0)
    took_ns = read() - start
    seen = {
        "gradients": [parameter.grad for parameter in mine.parameters()],
        "compressed": [parameter.grad for parameter in compressed.parameters()],
        "gathered": distributed.gathered(rank),
        "mean": distributed.mean(float(rank)),
        "same clock": len(set(distributed.gathered(readings[0]))) == 1,
        "clock advances": readings[0] > 0,
        "took": took_ns / 1e9,
    }
    torch.save(seen, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_gradients_of_one_with_the_whole_batch(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    multiprocessing.start_processes(train_part, (port, str(tmp_path)), nprocs=2, start_method="spawn")
    alone = model()
    nn.functional.cross_entropy(alone(batch()[0]), batch()[1]).backward()
    for rank in (0, 1):
        seen = torch.load(tmp_path / f"{rank}.pt")
        for own, sent, whole in zip(seen["gradients"], seen["compressed"], alone.parameters(), strict=True):
            torch.testing.assert_close(own, whole.grad)
            torch.testing.assert_close(sent, whole.grad, rtol=0.02, atol=1e-3)
        assert any(not torch.equal(own, sent) for own, sent in zip(seen["gradients"], seen["compressed"], strict=True))
        assert (seen["gathered"], seen["mean"]) == ((0, 1), 0.5)
        assert seen["same clock"]
        assert seen["clock advances"]
        assert seen["took"] >= LATE_S  # a block takes as long as it took the slowest, in the eyes of all


class Talks(nn.Module):
    """A model whose steps wait, and three times as long where gradients are sent, as DistributedDataParallel's do."""

    def __init__(self, inner, wait):
        super().__init__()
        self.inner, self.wait, self.talks = inner, wait, True

    def forward(self, inputs):
        for _ in range(3 if self.talks else 1):
            self.wait()
        return self.inner(inputs)

    @contextmanager
    def no_sync(self):
        self.talks = False
        yield
        self.talks = True


def test_communication_is_the_share_of_a_step_that_sending_takes(tiny_trial, monkeypatch):
    suite = suite_registry.load(suite_registry.refer("mlp", {"width": "4", "depth": "1"}))
    arm = build_arm(suite, suite.data, PRECISIONS["fp32"], CPU, seed=0)
    arm = replace(arm, forward=Talks(arm.model, busy_wait(10e6, SLEPT)))
    batches = random_batches(suite.data, batch_size=2, count=BATCHES, device=CPU, seed=0)
    runner = TrainingRunner("fp32", arm, itertools.cycle(batches))
    (cut,) = prepare([runner], 1.0)
    assert communication_pct(runner, cut, time.perf_counter_ns, tiny_trial) is None  # it trains alone
    monkeypatch.setattr(distributed, "ranks", lambda: 2)
    monkeypatch.setattr(distributed, "gathered", lambda own: (own,))
    found = communication_pct(runner, cut, time.perf_counter_ns, tiny_trial)
    assert found == pytest.approx(100 * 2 / 3, abs=15)


def test_memory_is_the_largest_devices_and_the_sum():
    found = MemoryPeak.of_all([MemoryPeak(peak_allocated_bytes=10, model_bytes=3), MemoryPeak(peak_allocated_bytes=14)])
    assert (found.peak_allocated_bytes, found.model_bytes, found.all_devices_bytes) == (14, 3, 24)
    nodes = [MemoryPeak(peak_resident_bytes=9, all_devices_bytes=17), MemoryPeak(peak_resident_bytes=8)]
    assert MemoryPeak.of_all(nodes) == MemoryPeak(peak_resident_bytes=9, all_devices_bytes=25)
    assert MemoryPeak.of_all([*nodes, MemoryPeak()]).all_devices_bytes is None


def test_what_is_measured_on_one_device_alone_is_unsupported_on_several_which_is_told_before(tiny_trial, cpu, machine):
    both = replace(tiny_trial, cell=replace(tiny_trial.cell, placement=Placement(name="cpu+cpu")))
    assert refusal_reason(both, cpu) is None
    reason = refusal_reason(replace(both, phase="numerics"), cpu)
    assert reason == "it is not measured on devices that train together"
    trials = tuple(replace(both, phase=phase) for phase in ("memory", "numerics", "inference"))
    here = replace(machine, devices=(replace(cpu, placement="cpu+cpu"),))
    (said,) = warn_of_refusals(Plan(trials=trials, seconds=(None,) * 3), here)
    assert said == f"On cpu+cpu, numerics, inference will be unsupported: {reason}."
    alone = replace(tiny_trial, cell=replace(tiny_trial.cell, techniques=("bf16-allreduce",)))
    assert "train together" in refusal_reason(alone, cpu)


@pytest.mark.parametrize("name", ["compile", "cuda-graphs", "grad-accumulation=2", "checkpointing"])
def test_techniques_that_do_not_go_together_are_refused_before_a_process_starts(tiny_trial, cpu, name):
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"), techniques=("channels-last", name))
    reason = refusal_reason(replace(tiny_trial, cell=cell), cpu)
    assert reason == f"{name.partition('=')[0]} is not offered on devices that train together"


@pytest.mark.slow
def test_both_placements_are_measured_and_scaling_is_told(tmp_path, tiny_file):
    words = ["--suite", tiny_file, "--gpus", "cpu,cpu+cpu", "--precisions", "fp32", "--quick", "--epochs", "1"]
    found = call(*words, "--batch-sizes", "4", "--time-budget", "0.2s", cwd=tmp_path)
    assert found.returncode in (0, 1), found.stderr
    (folder,) = (tmp_path / "results").iterdir()
    done = {(row["placement"], row["phase"]): row for row in rows(folder, "trials.csv")}
    assert {phase for placement, phase in done if placement == "cpu+cpu"} == {"memory", "speed", "train"}
    assert done["cpu+cpu", "speed"]["communication_pct"] != ""
    for figure in ("compute_dtypes", "flops_per_step"):  # of all parts of a batch, which is as large
        assert done["cpu+cpu", "speed"][figure] == done["cpu", "speed"][figure] != ""
    assert float(done["cpu+cpu", "speed"]["peak_tflops"]) > 0
    assert done["cpu+cpu", "memory"]["all_devices_bytes"] != ""
    losses = [float(done[placement, "train"]["train_loss"]) for placement in ("cpu", "cpu+cpu")]
    assert math.isclose(*losses, rel_tol=1e-3)
    (page,) = (tmp_path / "reports").glob("*/report.md")
    assert "### Scaling" in page.read_text()


def test_a_batch_that_cannot_be_divided_is_refused(tmp_path, tiny_file):
    found = call("--suite", tiny_file, "--gpus", "cpu+cpu", "--batch-sizes", "5", cwd=tmp_path)
    assert found.returncode == 2
    assert "multiples of 2" in found.stderr
