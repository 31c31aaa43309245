"""The ladder phase on the CPU: each rung's own way of a batch to the step, and its row."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench.data import loader as workers
from bench.data.loader import DEPTH, Turns
from bench.measure.timing import Sizes, time_block
from bench.measure.warmup import Cut, SwitchProfile, WarmUp
from bench.phases import climbing, feeding, ladder, ladder_memory
from bench.phases.climbing import RungRunner, Waiting
from bench.phases.context import open_setting
from bench.phases.feeding import kind_of, on_device
from bench.phases.ladder import _paced
from bench.planning import suite_registry
from bench.results.records import Block, TrialResult
from bench.spec.ablation import build_ablation, parse_step
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import parse_precision
from bench.spec.suite import Data
from bench.spec.trial import Protocol
from bench.training.step import build_arm
from tests.arms import arms

RUNGS = tuple(rung.name for rung in build_ablation("amp-fp16", "cpu").steps)
IMAGES = Data(input_shape=(3, 8, 8), classes=2)


def test_every_rung_is_timed_and_its_blocks_are_sent(tiny_trial, cpu):
    quick = Protocol(time_budget_s=0.05, replicates=1)
    sent = []
    ladder.run(replace(tiny_trial, phase="ladder", arms=arms(*RUNGS), protocol=quick), cpu, sent.append)
    results = [message for message in sent if isinstance(message, TrialResult)]
    blocks = {message.precision for message in sent if isinstance(message, Block)}
    assert tuple(result.precision for result in results) == RUNGS
    assert blocks == set(RUNGS)
    assert [result.ablation.ablation_step for result in results] == [0, 1, 2, 3]
    assert [result.speed.speedup is None for result in results] == [True, False, False, False]
    assert all(0 < result.ablation.wait_pct < 100 and result.ablation.loader_ms > 0 for result in results)
    assert {result.status for result in results} <= {"ok", "unconverged"}
    assert results[0].switches.fp32_matmul == "ieee"


def climb(trial, cpu, rungs):
    sent = []
    quick = Protocol(time_budget_s=0.05, replicates=1)
    ladder.run(replace(trial, phase="ladder", arms=arms(*rungs), protocol=quick), cpu, sent.append)
    return {message.precision: message for message in sent if isinstance(message, TrialResult)}


def test_a_technique_that_the_model_refuses_is_its_rung_alone(tiny_trial, cpu):
    planned = ("fp32", "fp32+fused-optimizer", "fp32+fused-optimizer+grad-accumulation=2")
    suite = Path(tiny_trial.cell.suite.file)
    suite.write_text(suite.read_text().replace("optim.SGD", "optim.RMSprop"))  # which has no fused kernel
    found = climb(tiny_trial, cpu, planned)
    assert list(found) == ["fp32+fused-optimizer", "fp32", "fp32+grad-accumulation=2"]
    refused = found["fp32+fused-optimizer"]
    assert (refused.status, refused.ablation) == ("unsupported", None)
    assert "which RMSprop lacks" in refused.detail
    top = found["fp32+grad-accumulation=2"]
    assert top.status in ("ok", "unconverged")
    assert (top.ablation.ablation_step, top.speed.paired) == (1, True)


def test_a_rung_alone_has_its_number_and_no_speedup(tiny_trial, cpu):
    (result,) = climb(tiny_trial, cpu, RUNGS[-1:]).values()
    assert (result.ablation.ablation_step, result.speed.paired, result.speed.speedup) == (3, False, None)


def test_where_no_rung_can_be_built_the_trial_is_refused_with_a_row_each(tiny_trial, cpu, monkeypatch):
    def refuse(*_):
        raise UnsupportedError("not here")

    monkeypatch.setattr(ladder, "build_rung", refuse)
    sent = []
    with pytest.raises(UnsupportedError, match="not here"):
        ladder.run(replace(tiny_trial, phase="ladder", arms=arms(*RUNGS)), cpu, sent.append)
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
    trial = replace(tiny_trial, phase="ladder_memory", arms=arms(*RUNGS[-1:]))
    ladder_memory.run(trial, cpu, sent.append)
    (result,) = [message for message in sent if isinstance(message, TrialResult)]
    assert (result.precision, result.status) == (RUNGS[-1], "ok")
    assert result.memory.peak_resident_bytes is not None


@pytest.mark.parametrize(("name", "dtype"), [(RUNGS[-1], torch.uint8), (RUNGS[0], torch.float32)])
def test_a_rungs_memory_is_of_batches_of_the_type_that_its_loader_gives(tiny_trial, cpu, monkeypatch, name, dtype):
    brought = []

    def to_device(batch, *_):
        brought.append(batch[0].dtype)
        return batch

    monkeypatch.setattr(feeding, "to_device", to_device)
    sent = []
    ladder_memory.run(replace(tiny_trial, phase="ladder_memory", arms=arms(name)), cpu, sent.append)
    assert [message.status for message in sent if isinstance(message, TrialResult)] == ["ok"]
    samples = workers.open_samples(IMAGES, tiny_trial.cell.data, normalize=kind_of(parse_step(name))[1], seed=0)
    assert set(brought) == {dtype} == {samples[0][0].dtype}


@pytest.fixture
def tiny_suite(tiny_trial):
    return suite_registry.load(tiny_trial.cell.suite)


def arm(tiny_suite, name):
    rung = parse_step(name)
    cpu = torch.device("cpu")
    return build_arm(
        tiny_suite, tiny_suite.data, parse_precision(rung.precision), cpu, seed=0, techniques=rung.settings
    )


@pytest.mark.parametrize("name", ["fp32", "fp32+set-to-none+prefetcher"])
def test_pixels_become_normalised_floats_on_the_way(tiny_suite, name):
    pixels = torch.full((2, 3, 8, 8), 255, dtype=torch.uint8)
    batches = on_device(arm(tiny_suite, name), IMAGES, iter([(pixels, torch.tensor([0, 1]))]))
    inputs, targets = next(batches)
    assert inputs[0, :, 0, 0].tolist() == pytest.approx(
        [(1 - mean) / std for mean, std in zip(IMAGES.mean, IMAGES.std, strict=True)]
    )
    assert targets.tolist() == [0, 1]


class Clock:
    """Time in milliseconds that passes only where a test says so."""

    def __init__(self, monkeypatch):
        self.ms, self.rested_s = 0, 0.0
        for module in (climbing, feeding):
            monkeypatch.setattr(
                module, "time", SimpleNamespace(perf_counter_ns=lambda: self.ms * 10**6, sleep=self.slept)
            )

    def slept(self, seconds):
        self.rested_s += seconds

    def takes(self, ms, result):
        def work(*_):
            self.ms += ms
            return result

        return work

    def loader(self, batch, *, handed_ms, made_ms, ready):
        """Yield batches of which a few are ready after a rest, and each later one is made while the host waits."""
        for index in itertools.count():
            self.ms += made_ms if index >= ready else handed_ms
            yield batch


@pytest.fixture
def runner(request, tiny_suite, monkeypatch):
    """A rung whose copies take 2 ms and whose steps 6; the loader hands over in 3 what is ready, and then takes 12."""
    clock = Clock(monkeypatch)
    batch = torch.zeros(2, *tiny_suite.data.input_shape), torch.zeros(2, dtype=torch.int64)
    monkeypatch.setattr(feeding, "to_device", clock.takes(2, batch))
    monkeypatch.setattr(climbing, "training_step", clock.takes(6, torch.tensor(1.0)))
    trained = arm(tiny_suite, "fp32")
    made_ms, ready = getattr(request, "param", (12, workers.WORKERS * workers.AHEAD))
    feed = on_device(trained, tiny_suite.data, clock.loader(batch, handed_ms=3, made_ms=made_ms, ready=ready))
    return RungRunner(name="fp32", arm=trained, batches=feed, asynchronous=False)


@pytest.mark.parametrize(
    ("runner", "share"),
    [
        ((12, 4), (12 - 3) / (12 + 2 + 6)),
        ((12, 2), (12 - 3) / (12 + 2 + 6)),  # other programs kept the loader from making more ready
        ((3, 4), 0.0),
        ((2, 4), 0.0),
    ],
    indirect=["runner"],
)
def test_the_share_of_waiting_is_for_batches_not_made_yet_without_copies_and_handing_over(runner, share):
    assert runner.steady_wait(rest_s=0.5) == pytest.approx(share)
    assert climbing.time.sleep.__self__.rested_s == 0.5


def test_waiting_is_that_of_timed_steps_without_settling(runner):
    time_block(runner, Sizes(settle=DEPTH + 3, steps=1))
    time_block(runner, Sizes(settle=1, steps=1))
    runner.batches.waited.batches = itertools.repeat(next(runner.batches))  # a loader that is never waited for
    time_block(runner, Sizes(settle=7, steps=2))
    runner.activate()
    assert runner.timed == Waiting(2 * 12 * 10**6, (2 * 20 + 2 * 8) * 10**6)


def test_the_prefetchers_thread_is_waited_for_and_not_its_loader(tiny_suite):
    ready = torch.zeros(2, *tiny_suite.data.input_shape), torch.zeros(2, dtype=torch.int64)
    asked = threading.Event()

    def slow():
        for _ in range(2):
            asked.set()
            time.sleep(0.05)
            yield ready

    feed = on_device(arm(tiny_suite, "fp32+set-to-none+prefetcher"), tiny_suite.data, slow())
    asked.wait()
    assert feed.waited.ns == 0
    next(feed)
    assert feed.waited.ns > 0
    feed.close()


CUT = Cut(
    warm=WarmUp(steady=True, steps=12, step_ns=10e6),
    profile=SwitchProfile(relative=(), settle=1),
    sizes=Sizes(settle=1, steps=2),
    empty_ns=1.0,
)


def test_a_rung_that_the_loader_limits_is_timed_over_several_batches_and_none_finds_its_queue_empty():
    assert [cut.sizes for cut in _paced([CUT, CUT], [False, False])] == [CUT.sizes] * 2
    paced = [Sizes(settle=DEPTH, steps=2), Sizes(settle=DEPTH, steps=DEPTH)]
    assert [cut.sizes for cut in _paced([CUT, CUT], [False, True])] == paced
    long = replace(CUT, sizes=Sizes(settle=9, steps=40))
    assert _paced([long], [True]) == [long]


def test_what_limits_a_rung_is_what_it_waits_for_in_a_continuous_run(tiny_trial, cpu, monkeypatch):
    shares = {RUNGS[0]: 0.6, RUNGS[1]: 0.01, RUNGS[2]: 0.1}
    monkeypatch.setattr(RungRunner, "steady_wait", lambda self, rest_s: shares[self.name] if rest_s > 0 else 0.0)
    found = climb(tiny_trial, cpu, RUNGS[:3])
    assert [one.ablation.loader_limited for one in found.values()] == [True, False, True]
    assert all(one.speed.switch_warmup_steps >= DEPTH for one in found.values())
    assert all(one.speed.block_steps >= DEPTH for one in found.values() if one.ablation.loader_limited)


def test_the_device_is_set_before_a_loader_pins_and_makes_a_context(tiny_trial, monkeypatch):
    order = []
    loader = SimpleNamespace(_shutdown_workers=lambda: order.append("shut down"))

    def opened(_samples, *, pinned, **_):
        order.append(pinned)
        return [loader]

    monkeypatch.setattr(torch.cuda, "set_device", order.append)
    monkeypatch.setattr(feeding, "open_loader", opened)
    monkeypatch.setattr(feeding, "Turns", lambda batches: SimpleNamespace(batches=next(batches)))
    second = torch.device("cuda", 1)
    rungs = [parse_step("fp32"), parse_step("fp32+non-blocking")]
    with feeding.open_loaders(replace(open_setting(tiny_trial), device=second), tiny_trial, rungs):
        assert order == [second, False, True]
    assert order[3:] == ["shut down"] * 2


def test_a_ladder_opens_its_samples_once_for_each_loader(tiny_trial, cpu, monkeypatch):
    opened = []

    def open_samples(*args, **kwargs):
        opened.append(kwargs["normalize"])
        return workers.open_samples(*args, **kwargs)

    monkeypatch.setattr(feeding, "open_samples", open_samples)
    climb(tiny_trial, cpu, RUNGS)
    assert opened == [True, False]


def test_waiting_is_told_of_what_is_timed_and_not_of_the_warm_up(tiny_trial, cpu, monkeypatch):
    begun, real = [], ladder.compare

    def compare(runners, *arguments, **named):
        begun.extend((runner.timed, runner.last) for runner in runners)
        return real(runners, *arguments, **named)

    monkeypatch.setattr(ladder, "compare", compare)
    climb(tiny_trial, cpu, RUNGS[:2])
    assert begun == [(Waiting(), Waiting())] * 2
