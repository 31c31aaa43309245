"""The bars of a step: each class where it belongs, on one axis, with the marks."""

import itertools
from dataclasses import replace

import pytest

from bench.phases.explain.reasons import CLASSES
from bench.phases.explain.report import stacked
from bench.report.figures.chart import WORK, Bar, Line
from tests.phases.test_explain_reasons import plain

BASE = {work: float(place + 1) for place, work in enumerate(CLASSES)}
ARM = BASE | {"other products": 0.5, "casts and layout": 9.0}


def explained(batch=64, precision="amp-bf16"):
    result = plain(base=BASE, arm=ARM)
    return replace(result, cell=dict(result.cell) | {"batch_size": batch}, arm=replace(result.arm, precision=precision))


def chart(*result):
    return stacked("mlp-why", result)


def test_bars_are_stacked_without_gaps_and_in_one_order():
    (panel,) = chart(explained(), explained(precision="amp-fp16")).panels
    bars = [mark for mark in panel.marks if isinstance(mark, Bar)]
    assert [bar.tint for bar in bars] == 3 * list(WORK.values())
    for row, ms in enumerate((BASE, ARM, ARM)):
        stack = bars[row * len(WORK) : (row + 1) * len(WORK)]
        assert stack[0].x[0] == 0
        assert all(left.x[1] == right.x[0] for left, right in itertools.pairwise(stack))
        assert stack[-1].x[1] == pytest.approx(sum(ms.values()), rel=0.02)
    assert panel.x.high > max(bar.x[1] for bar in bars)
    assert [text for _, text in panel.y.ticks] == ["fp32", "amp-bf16", "amp-fp16"]


def test_what_was_reached_is_marked():
    result = explained()
    (panel,) = chart(result).panels
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    assert [line.points[0][0] for line in lines] == [result.baseline.timed_ms, result.arm.timed_ms]
