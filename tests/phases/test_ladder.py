"""The ladder phase on the CPU: each rung's own way of a batch to the step, and its row."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import catalog
from bench.data.workers import DEPTH, Turns
from bench.measure.timing import Sizes
from bench.measure.warmup import Cut, SwitchProfile, WarmUp
from bench.phases import ladder, rung_memory
from bench.phases.climbing import RungRunner, on_device
from bench.phases.ladder import _settled
from bench.precision_names import precision
from bench.records import Block, TrialResult
from bench.rungs import build_ladder, parse_rung
from bench.spec import Data
from bench.technique_names import UnsupportedError
from bench.train import build_arm
from bench.trial import Protocol

RUNGS = tuple(rung.name for rung in build_ladder("amp-fp16", "cpu").rungs)
IMAGES = Data(input_shape=(3, 8, 8), classes=2)


def test_every_rung_is_timed_and_its_blocks_are_sent(tiny_trial, cpu):
    quick = Protocol(time_budget_s=0.05, replicates=1)
    sent = []
    ladder.run(replace(tiny_trial, phase="ladder", precisions=RUNGS, protocol=quick), cpu, sent.append)
    results = [message for message in sent if isinstance(message, TrialResult)]
    blocks = {message.precision for message in sent if isinstance(message, Block)}
    assert tuple(result.precision for result in results) == RUNGS
    assert blocks == set(RUNGS)
    assert [result.climb.rung for result in results] == [0, 1, 2, 3]
    assert [result.speed.speedup is None for result in results] == [True, False, False, False]
    assert all(0 < result.climb.wait_pct < 100 and result.climb.loader_ms > 0 for result in results)
    assert {result.status for result in results} <= {"ok", "unconverged"}
    assert results[0].switches.fp32_matmul == "ieee"


def climb(trial, cpu, rungs):
    sent = []
    quick = Protocol(time_budget_s=0.05, replicates=1)
    ladder.run(replace(trial, phase="ladder", precisions=rungs, protocol=quick), cpu, sent.append)
    return {message.precision: message for message in sent if isinstance(message, TrialResult)}


def test_a_technique_that_the_model_refuses_is_its_rung_alone(tiny_trial, cpu):
    planned = ("fp32", "fp32+fused-optimizer", "fp32+fused-optimizer+grad-accumulation=2")
    suite = Path(tiny_trial.cell.suite.file)
    suite.write_text(suite.read_text().replace("optim.SGD", "optim.RMSprop"))  # which has no fused kernel
    found = climb(tiny_trial, cpu, planned)
    assert list(found) == ["fp32+fused-optimizer", "fp32", "fp32+grad-accumulation=2"]
    refused = found["fp32+fused-optimizer"]
    assert (refused.status, refused.climb) == ("unsupported", None)
    assert "which RMSprop lacks" in refused.detail
    top = found["fp32+grad-accumulation=2"]
    assert top.status in ("ok", "unconverged")
    assert (top.climb.rung, top.speed.paired) == (1, True)


def test_a_rung_alone_has_its_number_and_no_speedup(tiny_trial, cpu):
    (result,) = climb(tiny_trial, cpu, RUNGS[-1:]).values()
    assert (result.climb.rung, result.speed.paired, result.speed.speedup) == (3, False, None)


def test_where_no_rung_can_be_built_the_trial_is_refused_with_a_row_each(tiny_trial, cpu, monkeypatch):
    def refuse(*_):
        raise UnsupportedError("not here")

    monkeypatch.setattr(ladder, "build_rung", refuse)
    sent = []
    with pytest.raises(UnsupportedError, match="not here"):
        ladder.run(replace(tiny_trial, phase="ladder", precisions=RUNGS), cpu, sent.append)
    results = [message for message in sent if isinstance(message, TrialResult)]
    assert [one.precision for one in results] == ["fp32", "amp-fp16", "amp-fp16+set-to-none", "amp-fp16+prefetcher"]
    assert {(one.status, one.detail) for one in results} == {("unsupported", "not here")}


def test_running_out_of_memory_is_no_refusal(tiny_trial, cpu, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ladder, "build_rung", fail)
    with pytest.raises(torch.OutOfMemoryError):
        climb(tiny_trial, cpu, RUNGS)


class OneAtATime:
    """Batches of which two may not be asked for at once, as of a loader's iterator."""

    def __init__(self):
        self.busy, self.given, self.clashes = False, 0, 0

    def __next__(self):
        self.clashes += self.busy
        self.busy = True
        time.sleep(0.001)
        self.busy = False
        self.given += 1
        if self.given > 60:
            raise StopIteration
        return self.given


def test_threads_that_share_a_loader_take_turns():
    loader, taken = OneAtATime(), []
    shared = Turns(loader)
    threads = [threading.Thread(target=lambda: taken.extend(shared)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loader.clashes == 0
    assert sorted(taken) == list(range(1, 61))


def test_a_rungs_memory_is_measured_alone(tiny_trial, cpu):
    sent = []
    trial = replace(tiny_trial, phase="ladder_memory", precisions=RUNGS[-1:])
    rung_memory.run(trial, cpu, sent.append)
    (result,) = [message for message in sent if isinstance(message, TrialResult)]
    assert (result.precision, result.status) == (RUNGS[-1], "ok")
    assert result.memory.peak_resident_bytes is not None


@pytest.fixture
def tiny_suite(tiny_trial):
    return catalog.load(tiny_trial.cell.suite)


def arm(tiny_suite, name):
    rung = parse_rung(name)
    cpu = torch.device("cpu")
    return build_arm(tiny_suite, tiny_suite.data, precision(rung.precision), cpu, seed=0, techniques=rung.chosen)


@pytest.mark.parametrize("name", ["fp32", "fp32+set-to-none+prefetcher"])
def test_pixels_become_normalised_floats_on_the_way(tiny_suite, name):
    pixels = torch.full((2, 3, 8, 8), 255, dtype=torch.uint8)
    batches = on_device(arm(tiny_suite, name), IMAGES, iter([(pixels, torch.tensor([0, 1]))]))
    inputs, targets = next(batches)
    assert inputs[0, :, 0, 0].tolist() == pytest.approx(
        [(1 - mean) / std for mean, std in zip(IMAGES.mean, IMAGES.std, strict=True)]
    )
    assert targets.tolist() == [0, 1]


def test_waiting_for_batches_is_told_apart(tiny_suite):
    ready = torch.zeros(2, *tiny_suite.data.input_shape), torch.zeros(2, dtype=torch.int64)
    trained = arm(tiny_suite, "fp32")
    runner = RungRunner(name="fp32", arm=trained, batches=iter([ready] * 3), asynchronous=False)
    runner.run(3)
    assert 0 < runner.wait_ns < runner.run_ns
    assert runner.taken_steps() == 3
    with pytest.raises(StopIteration):
        runner.run(1)


def test_a_rung_that_the_loader_limits_uses_up_what_was_ready_before_it_is_timed():
    sizes = Sizes(settle=1, steps=3)
    cut = Cut(
        warm=WarmUp(steady=True, steps=12, step_ns=10e6),
        profile=SwitchProfile(relative=(), settle=1),
        sizes=sizes,
        empty_ns=1.0,
    )
    assert _settled(cut, loader_ms=7.9).sizes == sizes
    assert _settled(cut, loader_ms=8.1).sizes == Sizes(settle=DEPTH, steps=3)
