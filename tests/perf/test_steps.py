"""Steps beside the harness's, on a clock of the test's own: who is built when, what is divided by what."""

import importlib
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.measure.quads import compare
from bench.measure.warmup import prepare
from bench.stats import process_interval
from perf import arms, peers, steps

CPU = torch.device("cpu")
MS = {"harness": 2.0, "timm": 5.0, "by hand": 3.0, "called": 4.0}
QUESTION = arms.Question(
    suite="resnet50", parameters={}, precision="fp32", device="cpu", batch_size=8, budget_s=0.2, own_first=True
)


class Clock:
    """Time that passes only where an arm takes steps, or the clock is read."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 10
        return self.now


class Arm:
    """An arm whose steps take as long as it says."""

    asynchronous = False

    def __init__(self, name, clock, ms):
        self.name, self.clock, self.ms, self.taken = name, clock, ms, 0

    def activate(self):
        pass

    def run(self, count):
        self.clock.now += int(count * self.ms * 1e6)
        self.taken += count

    def synchronize(self):
        pass

    def fingerprint(self):
        return None

    def taken_steps(self):
        return self.taken


@pytest.fixture
def built(monkeypatch):
    """Replace the arms by those on a clock; lists what is built, in its order."""
    clock, order = Clock(), []
    ms = dict(MS)

    def build(name):
        order.append(name)
        return Arm(name, clock, ms[name])

    monkeypatch.setattr(arms, "prepare", lambda runners, budget_s: prepare(runners, budget_s, clock=clock))
    monkeypatch.setattr(
        arms,
        "compare",
        lambda runners, sizes, protocol, seed: compare(runners, sizes, protocol, seed=seed, clock=clock),
    )
    monkeypatch.setattr(arms, "called", lambda *_what: build("called"))
    monkeypatch.setattr(arms, "harness", lambda *_what: build("harness"))
    monkeypatch.setattr(arms, "by_hand", lambda *what: build("by hand" if len(what) == 4 else "timm"))
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=lambda *_words, **_named: nn.ReLU()))
    return SimpleNamespace(order=order, ms=ms)


@pytest.mark.parametrize("own_first", [True, False])
def test_a_peers_time_is_divided_by_the_harnesss_whichever_is_built_first(built, own_first):
    found = steps.over_harness(replace(QUESTION, own_first=own_first))
    order = ["harness", "timm", "by hand"]
    assert built.order == (order if own_first else order[::-1])
    assert {name: math.exp(log) for name, log in found.items()} == pytest.approx(
        {steps.TIMM: 5 / 2, steps.USUAL: 3 / 2}, rel=1e-3
    )


@pytest.mark.parametrize("own_first", [True, False])
def test_overhead_is_the_harnesss_time_over_that_by_hand(built, own_first):
    found = arms.over_by_hand(replace(QUESTION, own_first=own_first))
    assert built.order == (["harness", "by hand"] if own_first else ["by hand", "harness"])
    assert {name: math.exp(log) for name, log in found.items()} == pytest.approx({"harness": 2 / 3}, rel=1e-3)


def test_references_are_timed_beside_in_the_same_process(built):
    found = arms.over_by_hand(replace(QUESTION, references=True))
    assert built.order == ["harness", "by hand", "by hand", "called"]
    assert {name: math.exp(log) for name, log in found.items()} == pytest.approx(
        {"harness": 2 / 3, arms.AGAIN: 1.0, arms.CALLED: 4 / 3}, rel=1e-3
    )


def test_a_step_in_a_function_trains_as_the_loop_does():
    suite = arms.open_suite("mlp", width=8)
    plain, called = (build(suite, "fp32", CPU, 4) for build in (arms.by_hand, arms.called))
    for arm in (plain, called):
        arm.run(3)
        arm.run(4)
    assert called.taken_steps() == 7
    assert torch.equal(plain.last, called.last)
    assert all(
        torch.equal(one, other) for one, other in zip(plain.model.parameters(), called.model.parameters(), strict=True)
    )


def test_arms_are_warmed_up_in_the_order_in_which_they_were_built(built, monkeypatch):
    warmed, real = [], arms.prepare

    def noted(runners, budget_s):
        warmed.append([runner.name for runner in runners])
        return real(runners, budget_s)

    monkeypatch.setattr(arms, "prepare", noted)
    steps.over_harness(replace(QUESTION, own_first=False))
    assert warmed == [built.order]


def test_arms_of_which_no_quad_counts_are_an_error(built, monkeypatch):
    nothing = SimpleNamespace(logs=(None, None, None))
    monkeypatch.setattr(arms, "compare", lambda *_words, **_named: nothing)
    with pytest.raises(RuntimeError, match="no quad of harness and timm and the usual loop"):
        steps.over_harness(QUESTION)


class Launcher:
    """Calls in this process what would be called in fresh ones, in each of which timm's model takes longer."""

    def __init__(self, built):
        self.built, self.asked = built, []

    def call(self, target, asked):
        module, name = target.split(":")
        self.built.ms["timm"] = MS["timm"] + len(self.asked)
        self.asked.append(asked)
        return getattr(importlib.import_module(module), name)(asked)


def options(*words):
    return peers.parse(["--device", "cpu", *words])


def test_the_interval_is_over_processes_in_every_other_of_which_the_harness_is_built_last(built):
    launcher, notes = Launcher(built), []
    found = steps.steps(options("--processes", "4", "--budget", "2"), launcher, "fp32", notes)
    assert [one.suite for one in launcher.asked] == ["resnet50"] * 4 + ["vit_b_16"] * 4
    assert [one.own_first for one in launcher.asked] == [True, False] * 4
    assert {(one.budget_s, one.precision, one.device) for one in launcher.asked} == {(0.5, "fp32", "cpu")}
    assert [(row.name, row.least, row.doubtful) for row in found] == [
        (f"step of {what}, fp32: {peer} ÷ harness", 1.0, True)
        for what in ("resnet50, batch 8", "vit_b_16, batch 2")
        for peer in ("timm", "the usual loop, same model,")
    ]
    wanted = process_interval([math.log(ms / MS["harness"]) for ms in (5, 6, 7, 8)]).exp()
    here = found[0].found
    assert (here.center, here.low, here.high) == pytest.approx((wanted.center, wanted.low, wanted.high), rel=1e-3)
    assert here.n == 4
    assert found[1].found.center == pytest.approx(3 / 2, rel=1e-3)
    assert notes == []


def test_without_timm_its_row_is_left_out_and_the_usual_loops_stays(built, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    notes = []
    found = steps.steps(options("--quick"), Launcher(built), "fp32", notes)
    assert [row.name for row in found] == ["step of resnet50, batch 8, fp32: the usual loop, same model, ÷ harness"]
    assert notes == ["timm is left out: it is not installed."]
    assert set(built.order) == {"harness", "by hand"}


def test_timms_model_has_the_suites_classes_and_for_small_images_its_stem(monkeypatch):
    asked = []

    def create_model(name, num_classes):
        asked.append((name, num_classes))
        model = nn.Module()
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 7, stride=2), nn.MaxPool2d(3)
        return model

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    small, large = (steps.timm_model(arms.open_suite(name)) for name in steps.MODELS)
    assert asked == [("resnet50", 10), ("vit_base_patch16_224", 10)]
    assert (small.conv1.stride, type(small.maxpool)) == ((1, 1), nn.Identity)
    assert (large.conv1.stride, type(large.maxpool)) == ((2, 2), nn.MaxPool2d)


def test_all_arms_train_on_the_same_batches_of_the_same_layout():
    suite = arms.open_suite("resnet20")
    own = arms.harness(suite, "fp32", CPU, 2)
    other = arms.by_hand(suite, "fp32", CPU, 2, nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)))
    assert len(own.batches) == len(other.batches) > 1
    for ours, theirs in zip(own.batches, other.batches, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            assert torch.equal(mine, its)
            assert (mine.dtype, mine.stride()) == (its.dtype, its.stride())


@pytest.mark.parametrize(
    ("words", "wanted"), [([], (6, 24.0)), (["--quick"], (2, 4.0)), (["--processes", "3"], (3, 24))]
)
def test_how_many_processes_and_how_long(words, wanted):
    given = options(*words)
    assert (given.processes, given.budget) == wanted


def test_steps_are_timed_before_this_process_takes_any_of_the_devices_memory(monkeypatch):
    done = []
    survey = SimpleNamespace(devices=[SimpleNamespace()])
    monkeypatch.setattr(peers, "LocalLauncher", lambda: SimpleNamespace(survey=lambda _names: survey))
    monkeypatch.setattr(arms, "why_not", lambda _device, _precision: None)
    monkeypatch.setattr(steps, "steps", lambda _given, _launcher, precision, _notes: done.append(precision) or [])
    monkeypatch.setattr(peers, "pipelines", lambda _given: done.append("pipelines") or [])
    monkeypatch.setattr(peers, "epochs", lambda _given, name, precision, _notes: done.append((name, precision)) or [])
    monkeypatch.setattr(sys, "argv", ["peers.py", "--device", "cpu", "--quick"])
    assert peers.main() == 0
    assert done == ["fp32", "amp-bf16", "pipelines", ("resnet20", "fp32"), ("resnet20", "amp-bf16")]
