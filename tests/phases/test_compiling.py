"""Compiling is done before anything is watched or timed, and told apart, in every phase that times."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import pytest
import torch

from bench.measure import energy as measuring
from bench.phases import energy, fit, paired
from bench.results.records import Progress
from bench.spec.errors import UnsupportedError
from bench.spec.techniques import Techniques
from bench.training import techniques
from tests.devices.fake_nvml import FakeDriver, FakeGpu
from tests.phases.run_phase import result_of, run_phase
from tests.training.conftest import make

COMPILING_S = 0.2


@pytest.fixture
def count(monkeypatch):
    """A number of compilations, as torch would count them."""
    known = [0]
    for module in ("arms", "paired"):
        monkeypatch.setattr(f"bench.phases.{module}.compilations", lambda: known[0])
    return known


@pytest.fixture
def run(monkeypatch, tiny_trial, cpu):
    """Run a phase quickly, energy beside a GPU whose clock is the real one; return all that it sent."""
    for name in ("WINDOW_S", "IDLE_S", "LEAD_IN_S"):
        monkeypatch.setattr(measuring, name, getattr(measuring, name) / 20)
    monkeypatch.setattr(energy, "WARM_UP_S", 0.1)

    def go(phase, names, sent):
        start = time.monotonic()
        gpu = FakeGpu("GPU-a", power_w=100.0, energy_tick_s=0.01)
        FakeDriver((gpu,), clock=lambda: time.monotonic() - start).install(monkeypatch)
        return result_of(run_phase(tiny_trial, replace(cpu, uuid="GPU-a"), phase, techniques=names, sent=sent))

    return go


@pytest.fixture
def compiler(monkeypatch, count):
    """A compiler that takes its time at each new shape; keeps when it was called."""
    monkeypatch.setattr(techniques, "require_compiler", lambda kind: None)
    sent, during = [], []

    def compiled(model):
        seen = set()

        def forward(inputs):
            if inputs.shape not in seen:
                seen.add(inputs.shape)
                count[0] += 1
                during.append([message.text for message in sent if isinstance(message, Progress)][-1])
                time.sleep(COMPILING_S)
            return model(inputs)

        return forward

    monkeypatch.setattr("bench.training.step.compiled", compiled)
    return sent, during


@pytest.mark.parametrize(("phase", "shapes"), [("speed", 1), ("energy", 1), ("train", 1), ("inference", 2)])
def test_all_that_is_compiled_is_compiled_first_and_told_apart(run, compiler, phase, shapes):
    sent, during = compiler
    result = run(phase, ("compile",), sent)
    assert result.status in ("ok", "unconverged", "invalid")
    assert result.detail.find("recompiled") == -1
    assert during == ["fp32: compiling"] * shapes
    assert result.compile_s > 0.8 * shapes * COMPILING_S


def test_the_search_for_the_largest_batch_compiles_before_it_times(run, compiler, monkeypatch):
    sent, during = compiler
    observe = fit.observe
    monkeypatch.setattr(fit, "observe", lambda step: during.append("watched") or observe(step))
    run("fit", ("compile",), sent)
    assert during == ["fp32: does a batch of 4 fit?", "watched"]


@pytest.mark.parametrize(
    ("phase", "said"),
    [("inference", "every round was disturbed: recompiled"), ("energy", "recompiled while energy was measured")],
)
def test_what_is_compiled_while_timing_makes_the_figures_void(run, monkeypatch, phase, said):
    looks = iter(range(100_000))
    monkeypatch.setattr(paired, "compilations", lambda: next(looks))
    result = run(phase, (), [])
    assert result.status == "invalid"
    assert result.detail.startswith(said)
    assert result.compile_s is None


def test_a_compiler_that_is_missing_is_the_reason(monkeypatch):
    asked = []

    def broken(function):
        asked.append(function)
        raise RuntimeError("no working C++ compiler found\nand more") from None

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(techniques, "_broken_compiler", cache(techniques._broken_compiler.__wrapped__))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"compile does not work here: no working C\+\+ compiler found$"):
            make(techniques=Techniques(compile=True))
    assert len(asked) == 1


def test_the_time_that_inference_took_to_compile_is_the_arms_own_and_not_fp32s(compiler, monkeypatch, tiny_trial, cpu):
    sent, during = compiler
    taken = {"fp32": 1.0, "amp-fp16": 7.0}

    def until_compiled(step, device):
        step()
        return taken[during[-1].partition(":")[0]]

    monkeypatch.setattr("bench.phases.inference.until_compiled", until_compiled)
    result = result_of(run_phase(tiny_trial, cpu, "inference", "amp-fp16", techniques=("compile",), sent=sent))
    assert result.compile_s == 2 * 7.0  # for batches, and for single samples
