"""Steps compared with the harness's, on a simulated clock: building order, divisors, intervals."""

import importlib
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.measure.rounds import compare
from bench.measure.warmup import prepare
from bench.stats import student
from perf import arms, peers, steps
from tests.libraries import WITHOUT_TORCHAO

CPU = torch.device("cpu")
MS = {"harness": 2.0, "timm": 5.0, "by hand": 3.0}
COMPARISON = arms.Comparison(
    suite="resnet50", parameters={}, precision="fp32", device="cpu", batch_size=8, budget_s=0.2
)


class Clock:
    """Time that passes only while an arm takes steps, and when the clock is read."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 10
        return self.now


class Arm:
    """An arm whose steps take a known time."""

    asynchronous = False

    def __init__(self, name, clock, ms):
        self.name, self.clock, self.ms, self.steps = name, clock, ms, 0

    def run(self, count):
        self.clock.now += int(count * self.ms * 1e6)
        self.steps += count

    def activate(self):
        pass

    synchronize = fingerprint = activate

    def taken_steps(self):
        return self.steps


@pytest.fixture
def built(monkeypatch):
    """Replace the arms by simulated ones; lists the order in which they are built and warmed up."""
    clock = Clock()
    record = SimpleNamespace(order=[], warmed=[], ms=dict(MS))

    def build(name):
        record.order.append(name)
        return Arm(name, clock, record.ms[name])

    def warm_up(runners, budget_s):
        record.warmed += [runner.name for runner in runners]
        return prepare(runners, budget_s, clock=clock)

    def by_hand(*_arguments, model=None):
        return build("timm" if model else "by hand")

    monkeypatch.setattr(arms, "prepare", warm_up)
    monkeypatch.setattr(arms, "compare", lambda *what, **named: compare(*what, **named, clock=clock))
    monkeypatch.setattr(arms, "harness", lambda *_arguments: build("harness"))
    monkeypatch.setattr(arms, "by_hand", by_hand)
    timm = SimpleNamespace(create_model=lambda *_words, **_named: nn.ReLU(), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "timm", timm)
    return record


def ratios(logs):
    return {name: pytest.approx(math.exp(log), rel=1e-3) for name, log in logs.items()}


@pytest.mark.parametrize("own_first", [True, False])
def test_a_peers_time_is_divided_by_the_harnesss_whichever_is_built_and_warmed_up_first(built, own_first):
    logs = steps.over_harness(replace(COMPARISON, own_first=own_first))
    order = ["harness", "timm", "by hand"]
    assert built.order == built.warmed == (order if own_first else order[::-1])
    assert ratios(logs) == {steps.TIMM: 5 / 2, steps.USUAL: 3 / 2}


def test_all_loops_train_on_the_same_batches_to_the_same_losses():
    suite = arms.open_suite("mlp", width=8)
    for precision in ("fp32", "amp-bf16"):
        harness = arms.harness(suite, precision, CPU, 4)
        plain = arms.by_hand(suite, precision, CPU, 4)
        for count in (1, 3, 2):
            for arm in (harness, plain):
                arm.run(count)
            assert torch.equal(harness.loss, plain.last)
        assert plain.taken_steps() == 6


class Launcher:
    """Calls in this process what would be called in fresh ones, in each of which timm's model takes longer."""

    def __init__(self, built):
        self.built, self.comparisons = built, []

    def call(self, target, comparison):
        module, name = target.split(":")
        self.built.ms["timm"] = MS["timm"] + len(self.comparisons)
        self.comparisons.append(comparison)
        return getattr(importlib.import_module(module), name)(comparison)


def test_the_interval_is_over_processes_in_every_other_of_which_the_harness_is_built_last(built):
    launcher = Launcher(built)
    options = peers.parse(["--device", "cpu", "--processes", "4", "--budget", "2", "--models", "resnet50"])
    outcomes = steps.steps(options, launcher, "fp32", [])
    assert [comparison.own_first for comparison in launcher.comparisons] == [True, False] * 2
    assert {comparison.budget_s for comparison in launcher.comparisons} == {0.5}
    assert outcomes[0].name == "step of resnet50, batch 8, fp32: timm ÷ harness"
    wanted = student([math.log(ms / MS["harness"]) for ms in (5, 6, 7, 8)]).exp()
    assert outcomes[0].interval.ends == pytest.approx(wanted.ends, rel=1e-3)


def bring_over(theirs, ours):
    """Give a model of the suite gpt the weights of Hugging Face's, whose matrices lie the other way round."""
    body = theirs.transformer
    pairs = [(ours.tokens, body.wte), (ours.positions, body.wpe), (ours.norm, body.ln_f)]
    for block, other in zip(ours.blocks, body.h, strict=True):
        pairs += [(block.norm1, other.ln_1), (block.norm2, other.ln_2)]
        pairs += [(block.attention.qkv, other.attn.c_attn), (block.attention.projection, other.attn.c_proj)]
        pairs += [(block.expansion, other.mlp.c_fc), (block.projection, other.mlp.c_proj)]
    for block, other in pairs:
        block.weight.data.copy_(other.weight.T if type(other).__name__ == "Conv1D" else other.weight)
        if getattr(block, "bias", None) is not None:
            block.bias.data.copy_(other.bias)


@pytest.mark.skipif(bool(WITHOUT_TORCHAO), reason=f"transformers imports torchao: {WITHOUT_TORCHAO}")
def test_with_huggingfaces_weights_gpt_has_its_losses_to_fp32s_rounding_step_after_step():
    pytest.importorskip("transformers")
    suite = arms.open_suite("gpt", preset="tiny")
    theirs, ours = steps.huggingface_model(suite, "tiny"), suite.model(suite.data)
    assert theirs.model.config._attn_implementation == "sdpa"
    with torch.no_grad():  # biases begin at 0 and norms at 1, which would hide a mistake
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    bring_over(theirs.model, ours)
    assert sum(weight.numel() for weight in ours.parameters()) == sum(weight.numel() for weight in theirs.parameters())
    runners = [arms.by_hand(suite, "fp32", CPU, 2, model=model) for model in (ours, theirs)]
    for _ in range(3):
        for runner in runners:
            runner.run(1)
        loss, other = (runner.last.item() for runner in runners)
        assert loss == pytest.approx(other, rel=2e-6)
