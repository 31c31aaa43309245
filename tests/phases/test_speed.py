"""The speed phase: orders of its own in each process, longer blocks where short ones mislead, and what counts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import nn

from bench.measure.rounds import Comparison, LongBlocks, Sizes, TimedBlock
from bench.measure.warmup import Cut, SwitchProfile, WarmUp
from bench.phases import paired, speed
from bench.phases.paired import Paired
from bench.planning import suite_registry
from bench.results.records import Block, TrialResult
from bench.spec.precisions import PRECISIONS
from bench.spec.trial import Protocol
from bench.stats import Interval
from bench.training import amp
from tests.arms import arms
from tests.phases.run_phase import result_of, run_phase

ARMS = ("fp32", "amp-fp16")
MS = 1_000_000


@pytest.fixture
def run(tiny_trial, cpu, monkeypatch):
    """Time fp32 against amp-fp16 for a moment; return the blocks and the results."""
    monkeypatch.setattr(speed, "CEILING_S", 0.01)

    def go(replicate=0, names=ARMS):
        quick = Protocol(time_budget_s=0.1, replicates=2)
        sent = run_phase(tiny_trial, cpu, "speed", *names, replicate=replicate, protocol=quick)
        return [[message for message in sent if isinstance(message, kind)] for kind in (Block, TrialResult)]

    return go


def test_each_process_takes_the_arms_in_an_order_of_its_own(run):
    one, other = ([block.precision for block in run(replicate)[0]] for replicate in (0, 1))
    shared = min(len(one), len(other))
    assert shared >= 4 * 5  # the fewest quads
    assert one[:shared] != other[:shared]


def test_where_longer_blocks_disagree_the_arms_are_timed_again_with_those(run, monkeypatch):
    cuts = []

    def disagree(runners, sizes, found, *_, **__):
        cuts.append(sizes)
        return [None, LongBlocks(difference=0.1, agree=False)]

    monkeypatch.setattr(paired, "check_long_blocks", disagree)
    blocks, results = run()
    short, long = cuts
    assert [(size.switch_warmup, size.steps) for size in long] == [
        (4 * size.switch_warmup, 4 * size.steps) for size in short
    ]
    assert {block.steps for block in blocks if block.precision == "fp32"} == {long[0].steps}
    assert [result.speed.block_steps for result in results] == [size.steps for size in long]
    assert results[1].status == "invalid"
    assert results[1].detail.startswith("switching: ")


def test_a_model_that_turns_tf32_on_by_itself_is_not_counted_as_fp32(run, monkeypatch):
    class Turns(nn.Linear):
        def forward(self, inputs):
            amp.apply(PRECISIONS["tf32"])
            return super().forward(inputs)

    def model(data):
        return nn.Sequential(nn.Flatten(), Turns(192, data.classes))

    load = suite_registry.load
    monkeypatch.setattr(suite_registry, "load", lambda ref: replace(load(ref), model=model))
    try:
        _, (result,) = run(names=("fp32",))
    finally:
        amp.apply(PRECISIONS["fp32"])
    assert result.status == "invalid"
    assert "changed the fp32 switches from matmul ieee" in result.detail


def compared(counted: int) -> Comparison:
    """Two arms of 2 ms a step in the quads that are counted, and of 90 ms in three that were disturbed."""
    blocks = [
        TimedBlock(
            arm=arm,
            round=number,
            position=arm,
            steps=5,
            time_ns=5 * (90 if number < 3 else 2) * MS,
            start_s=0.0,
            skipped_steps=0,
            invalid="hot" if number < 3 else "",
        )
        for number in range(3 + counted)
        for arm in (0, 1)
    ]
    log = Interval(center=0.0, low=-0.001, high=0.001, n=counted)
    return Comparison(
        blocks=tuple(blocks),
        logs=(log, log),
        converged=(True, True),
        outliers=(0, 0),
        rounds=counted,
        invalid=("hot",) * 3,
    )


CUT = Cut(
    warm=WarmUp(steady=True, steps=12, step_ns=2.0 * MS),
    profile=SwitchProfile(relative=(), switch_warmup=1),
    sizes=Sizes(switch_warmup=1, steps=5),
    empty_ns=0.0,
)


def test_the_time_of_a_step_is_that_of_quads_that_count_unless_none_does(tiny_trial):
    trial = replace(tiny_trial, phase="speed", arms=arms(*ARMS))
    runners = [SimpleNamespace(name=name) for name in ARMS]
    known = {"trial": trial, "runners": runners, "cuts": (CUT, CUT), "checks": (None, None), "foreign_load_pct": None}
    found, none = (Paired(comparison=compared(counted), **known).speed(1) for counted in (2, 0))
    assert (found.step_ms, found.samples_per_s) == (2.0, 2000.0)
    assert (found.rounds, found.discarded_rounds) == (2, 3)
    assert none.step_ms == 90.0


def test_the_pace_of_inference_is_that_of_quads_that_count(tiny_trial, cpu, monkeypatch):
    monkeypatch.setattr(paired, "compare", lambda *_, **__: compared(2))
    result = result_of(run_phase(tiny_trial, cpu, "inference", "amp-fp16"))
    assert result.inference.inference_samples_per_s == pytest.approx(2000.0)
