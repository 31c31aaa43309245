"""The ladder's phases on the CPU: each step's own input pipeline, and its row."""

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
from bench.devices import backend
from bench.phases.ladder import measure as ladder
from bench.phases.ladder.measure import LoaderRunner
from bench.phases.ladder.plan import build_ablation
from bench.planning import suite_registry
from bench.results.records import Block, TrialResult
from bench.results.store import arm_name
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import parse_precision
from bench.spec.suite import Data
from bench.training import pipeline
from bench.training.arms import open_context
from bench.training.pipeline import InputPipeline, LoaderKind
from bench.training.step import build_arm
from tests.arms import arm, arms
from tests.conftest import call
from tests.phases.conftest import of_kind, result_of, run_phase
from tests.rows import trial_rows

STEPS = tuple(step.name for step in build_ablation("amp-fp16", "cpu")[0])
IMAGES = Data(input_shape=(3, 8, 8), classes=2)


@pytest.fixture
def climb(tiny_trial, cpu):
    """Run a ladder for a moment; return its results by name, and put all messages into ``sent`` if given."""

    def go(names=STEPS, sent=None):
        sent = run_phase(tiny_trial, cpu, "ladder", *names, sent=sent)
        return {result.precision: result for result in of_kind(TrialResult, sent)}

    return go


def test_every_step_is_timed_and_its_blocks_are_sent(climb):
    sent = []
    results = climb(sent=sent)
    blocks = of_kind(Block, sent)
    assert tuple(results) == STEPS
    assert {block.precision for block in blocks} == {*STEPS}
    results = list(results.values())
    assert [result.row.ablation_step for result in results] == [0, 1, 2, 3]
    assert [result.row.speedup is None for result in results] == [True, False, False, False]
    assert all(0 < result.row.wait_pct < 100 and result.row.loader_ms > 0 for result in results)
    assert {result.status for result in results} <= {"ok", "unconverged"}
    assert results[0].switches.fp32_matmul == "ieee"


def test_a_technique_that_the_model_refuses_fails_its_step_alone(climb, tiny_trial):
    suite = Path(tiny_trial.cell.suite.file)
    suite.write_text(suite.read_text().replace("optim.SGD", "optim.RMSprop"))  # which has no fused kernel
    results = climb(("fp32", "fp32+fused-optimizer", "fp32+fused-optimizer+grad-accumulation=2"))
    assert list(results) == ["fp32+fused-optimizer", "fp32", "fp32+grad-accumulation=2"]
    refused = results["fp32+fused-optimizer"]
    assert (refused.status, refused.row) == ("unsupported", None)
    assert "which RMSprop lacks" in refused.detail
    top = results["fp32+grad-accumulation=2"]
    assert top.status in ("ok", "unconverged")
    assert (top.row.ablation_step, top.row.paired) == (1, True)


def test_blocks_name_the_trial_that_was_planned_where_one_step_alone_works(climb, tiny_trial, monkeypatch):
    def fp32_alone(*given, techniques, **more):
        if techniques.set_to_none:
            raise UnsupportedError("not here")
        return build_arm(*given, techniques=techniques, **more)

    sent = []
    monkeypatch.setattr("bench.training.arms.build_arm", fp32_alone)
    climb(("fp32", "fp32+set-to-none"), sent)
    planned = replace(tiny_trial, phase="ladder", arms=arms("fp32", "fp32+set-to-none"))
    assert {block.trial for block in of_kind(Block, sent)} == {planned.id}


def test_where_no_step_can_be_built_the_trial_is_refused_with_a_row_each(climb, monkeypatch):
    def refuse(*_, **__):
        raise UnsupportedError("not here")

    monkeypatch.setattr("bench.training.arms.build_arm", refuse)
    sent = []
    with pytest.raises(UnsupportedError, match="not here"):
        climb(sent=sent)
    results = of_kind(TrialResult, sent)
    planned = ["fp32", "amp-fp16", "amp-fp16+set-to-none", "amp-fp16+prefetcher"]
    assert [result.precision for result in results] == planned
    assert {(result.status, result.detail) for result in results} == {("unsupported", "not here")}


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


@pytest.mark.parametrize(("name", "dtype"), [(STEPS[-1], torch.uint8), (STEPS[0], torch.float32)])
def test_a_steps_memory_is_measured_alone_on_batches_of_its_loaders_type(tiny_trial, cpu, monkeypatch, name, dtype):
    brought = []

    def to_device(batch, *_):
        brought.append(batch[0].dtype)
        return batch

    monkeypatch.setattr(pipeline, "to_device", to_device)
    result = result_of(run_phase(tiny_trial, cpu, "ladder_memory", name))
    assert (result.precision, result.status) == (name, "ok")
    assert result.row.peak_resident_bytes is not None
    normalize = LoaderKind.of(arm(name)).normalize
    samples = workers.open_samples(IMAGES, tiny_trial.cell.data, normalize=normalize, seed=0)
    assert set(brought) == {dtype} == {samples[0][0].dtype}


@pytest.fixture
def tiny_suite(tiny_trial):
    return suite_registry.load(tiny_trial.cell.suite)


def build(tiny_suite, name):
    step, cpu = arm(name), torch.device("cpu")
    precision = parse_precision(step.precision)
    return build_arm(tiny_suite, tiny_suite.data, precision, cpu, seed=0, techniques=step.settings)


@pytest.mark.parametrize("name", ["fp32", "fp32+set-to-none+prefetcher"])
def test_pixels_become_normalised_floats_on_the_way(tiny_suite, name):
    pixels = torch.full((2, 3, 8, 8), 255, dtype=torch.uint8)
    inputs, targets = next(InputPipeline(build(tiny_suite, name), IMAGES, iter([(pixels, torch.tensor([0, 1]))])))
    normal = [(1 - mean) / std for mean, std in zip(IMAGES.mean, IMAGES.std, strict=True)]
    assert inputs[0, :, 0, 0].tolist() == pytest.approx(normal)
    assert targets.tolist() == [0, 1]


class Clock:
    """Time in milliseconds that passes only where a test says so."""

    def __init__(self, monkeypatch):
        self.ms = 0
        fake = SimpleNamespace(perf_counter_ns=lambda: self.ms * 10**6, sleep=lambda _seconds: None)
        for module in (ladder, pipeline):
            monkeypatch.setattr(module, "time", fake)

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


@pytest.mark.parametrize(("made_ms", "share"), [(12, (12 - 3) / (12 + 2 + 6)), (2, 0.0)])
def test_the_steady_wait_is_for_batches_not_made_yet_without_copies_and_the_taking_of_ready_ones(
    tiny_suite, monkeypatch, made_ms, share
):
    """Copies take 2 ms and steps 6; a ready batch takes 3 from the loader, any other ``made_ms``."""
    clock = Clock(monkeypatch)
    batch = torch.zeros(2, *tiny_suite.data.input_shape), torch.zeros(2, dtype=torch.int64)
    monkeypatch.setattr(pipeline, "to_device", clock.takes(2, batch))
    built = replace(build(tiny_suite, "fp32"), step=clock.takes(6, torch.tensor(1.0)))
    loaded = clock.loader(batch, handed_ms=3, made_ms=made_ms, ready=4)
    runner = LoaderRunner("fp32", built, InputPipeline(built, tiny_suite.data, loaded), step=arm("fp32"))
    assert runner.steady_wait(rest_s=0.5) == pytest.approx(share)


def test_the_prefetchers_thread_is_waited_for_and_not_its_loader(tiny_suite):
    ready = torch.zeros(2, *tiny_suite.data.input_shape), torch.zeros(2, dtype=torch.int64)
    asked = threading.Event()

    def slow():
        for _ in range(2):
            asked.set()
            time.sleep(0.05)
            yield ready

    pipeline = InputPipeline(build(tiny_suite, "fp32+set-to-none+prefetcher"), tiny_suite.data, slow())
    asked.wait()
    assert pipeline.waited_ns == 0
    next(pipeline)
    assert pipeline.waited_ns > 0
    pipeline.close()


def test_an_arm_is_limited_by_the_loader_if_it_waits_for_it_in_a_continuous_run(climb, monkeypatch):
    shares = {STEPS[0]: 0.6, STEPS[1]: 0.01, STEPS[2]: 0.1}
    monkeypatch.setattr(LoaderRunner, "steady_wait", lambda self, rest_s: shares[self.name] if rest_s > 0 else 0.0)
    results = climb(STEPS[:3])
    assert [result.row.loader_limited for result in results.values()] == [True, False, True]
    assert all(result.row.switch_warmup_steps >= DEPTH for result in results.values())
    assert all(result.row.block_steps >= DEPTH for result in results.values() if result.row.loader_limited)


def test_the_device_is_set_before_a_loader_pins_and_makes_a_context(tiny_trial, monkeypatch):
    order = []

    class Loader:
        def __init__(self, _samples, *, pinned, **_):
            order.append(pinned)

        def __iter__(self):
            return self

        def __next__(self):
            raise AssertionError

        def _shutdown_workers(self):
            order.append("shut down")

    monkeypatch.setattr(torch.cuda, "set_device", order.append)
    monkeypatch.setattr(ladder, "open_loader", Loader)
    monkeypatch.setattr(ladder, "Turns", lambda batches: batches)
    second = torch.device("cuda", 1)
    steps = arms("fp32", "fp32+non-blocking")
    backend.backend_of.cache_clear()
    with ladder.open_loaders(replace(open_context(tiny_trial), device=second), steps):
        assert order == [second, False, True]
    assert order[3:] == ["shut down"] * 2


# From the command line.


GREEDY = """
    def model(data):
        from torch import nn

        built.append(data)
        if len(built) > 2:  # what measuring the memory of one step builds
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
"""


@pytest.mark.slow
def test_steps_that_do_not_fit_together_are_measured_apart_and_one_that_is_refused_is_left_out(tmp_path, tiny_file):
    text = tiny_file.read_text().replace("optim.SGD", "optim.RMSprop")  # which has no fused kernel
    text = text.replace("    def model(data):\n        from torch import nn\n", GREEDY, 1)
    tiny_file.write_text(text.replace("def suite", "built = []\n\n\ndef suite", 1))
    words = ("--suite", "tiny.py", "--gpus", "cpu", "--ladder", "--precisions", "fp32", "--batch-sizes", "4")
    more = ("--techniques", "fused-optimizer,grad-accumulation=2", "--time-budget", "0.1", "--out", "run")
    done = call(*words, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the steps do not fit together; each is measured on its own, unpaired" in done.stdout
    assert "Ladder of tiny on " in done.stdout
    results = trial_rows(tmp_path / "run")
    refused = [arm_name("ladder.csv", row) for row in results if "RMSprop lacks" in row["detail"]]
    assert refused == ["fp32+set-to-none+prefetcher+fused-optimizer"]
    apart = [row for row in results if row["phase"] == "ladder" and row["paired"] == "no"]
    steps = ["fp32", "fp32+set-to-none", "fp32+set-to-none+prefetcher"]
    steps.append("fp32+set-to-none+prefetcher+grad-accumulation=2")
    assert [(arm_name("ladder.csv", row), row["ablation_step"]) for row in apart] == [
        (name, str(at)) for at, name in enumerate(steps)
    ] * 3
    page = (tmp_path / "reports" / "run" / "details.md").read_text()
    top = next(line for line in page.splitlines() if line.startswith("| + grad-accumulation=2 |")).split(" | ")
    assert top[1] == "+ prefetcher"
    assert top[4].endswith("]")
    assert top[6] == "3 processes apart"
    assert "planned trials are missing" not in page


def test_a_kept_module_called_compile_is_not_compiled():
    step = build_ablation("amp-bf16:keep=compile+head", "cpu", ("checkpointing",))[0][-1]
    assert parse_precision(step.precision).keep == "compile+head"
    assert "compile" not in step.techniques
