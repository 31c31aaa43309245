"""Speedup at one batch and at each precision's best, and what fits."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.report.analysis.summary import best_rows, best_speedups, over
from bench.report.analysis.verdict import answers
from bench.report.format import records
from bench.report.page import compose
from bench.report.reading.load import load
from bench.report.tables.table import Table
from bench.results.records import Fit, TrialResult
from tests.report.builders import RunBuilder

GIB = 2**30


def titled(run: RunBuilder, title: str) -> list[list[str]]:
    made = table_of(run, title)
    return made.rows if made else []


def table_of(run: RunBuilder, title: str) -> Table | None:
    sections = compose(load([run.folder]), run.folder.parent, figures="none").sections
    return next((made for section in sections for made in section.tables if made.title == title), None)


@pytest.fixture
def two_sizes(tmp_path: Path) -> RunBuilder:
    """fp32 fits at 128, where amp-bf16 is twice as fast; amp-bf16 also at 512, alone, at three times the pace."""
    run = RunBuilder(tmp_path / "run").speed(speedups=[1.9, 2.0, 2.1], batch=128)
    pace = [10.0 / 3 * 4 * factor for factor in (1.0, 1.1, 0.9)]
    return run.alone("amp-bf16", pace, batch=512)


def test_each_precision_is_compared_at_its_own_best_batch_with_welchs_interval(two_sizes: RunBuilder) -> None:
    fp32, row = titled(two_sizes, "Best batch")
    paces = np.log([512 / (40.0 / 3 * factor) for factor in (1.0, 1.1, 0.9)])
    baseline = np.log([12.8] * 3)
    bounds = scipy_stats.ttest_ind(paces, baseline, equal_var=False).confidence_interval(0.95)
    center = math.exp(paces.mean() - baseline.mean())
    assert (fp32[1:3], row[1:3]) == (["fp32", "128"], ["amp-bf16", "512"])
    assert row[4] == f"{center:.2f} [{math.exp(bounds.low):.2f}, {math.exp(bounds.high):.2f}]"


def test_at_one_batch_size_the_ratio_is_paired_and_turned_round_it_is_one_over(tmp_path: Path) -> None:
    gains = {"amp-fp16": (2.22, 2.23, 2.21), "amp-bf16": (2.0, 2.01, 1.99)}
    run = RunBuilder(tmp_path / "run").together(gains).together(gains, batch=256, step_ms=18.0)
    rows = {row["precision"]: row for row in records(best_rows(run.summary()))}
    ratio, back = over(rows["amp-fp16"], rows["amp-bf16"]), over(rows["amp-bf16"], rows["amp-fp16"])
    logs = np.log(np.array(gains["amp-fp16"]) / np.array(gains["amp-bf16"]))
    paired = scipy_stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(paired.low), math.exp(paired.high)))
    assert (back.center, back.low, back.high) == pytest.approx((1 / ratio.center, 1 / ratio.high, 1 / ratio.low))


def test_fp32_over_another_is_one_over_the_speedup(tmp_path: Path) -> None:
    rows = {row["precision"]: row for row in records(RunBuilder(tmp_path / "run").speed(speedups=[2.0]).summary())}
    back, speedup = over(rows["fp32"], rows["amp-bf16"]), rows["amp-bf16"]
    expected = (1 / speedup["speedup"], 1 / speedup["high"], 1 / speedup["low"])
    assert (back.center, back.low, back.high) == pytest.approx(expected)


def test_the_verdict_says_both(two_sizes: RunBuilder) -> None:
    (answer,) = answers(two_sizes.summary())
    assert "2.00× as fast as fp32 [1.7" in answer.evidence
    assert "3.01× [" in answer.evidence
    assert "with each at its best batch (fp32 128, amp-bf16 512)" in answer.evidence


def test_where_the_same_batch_is_the_best_for_both_it_is_said_once(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed(batch=128)
    assert best_speedups(run.summary()) == {}
    run.alone("amp-bf16", [30.0], batch=64).alone("fp32", [40.0], batch=64)  # both slower a sample
    assert "best batch" not in answers(run.summary())[0].evidence
    assert best_speedups(run.summary())["amp-bf16"][:2] == (128, 128)


def test_without_fp32_there_is_no_best_batch_speedup(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").alone("amp-bf16", [3.0], batch=128).alone("amp-bf16", [3.0], batch=256)
    assert best_speedups(run.summary()) == {}


def test_largest_batches_stand_beside_fp32s(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    for name, size in (("fp32", 96), ("amp-bf16", 168)):
        fit = Fit(fit_bound="memory", fit_peak_bytes=70 * GIB, fit_free_bytes=79 * GIB)
        run.add(run.trial("fit", [name], size), TrialResult(precision=name, status="ok", fit=fit))
    run.lost("fit", "fp16", "oom", "too big", batch=1)
    assert titled(run, "Largest batch") == [
        ["NVIDIA Test 1", "fp32", "96", "1.00", "memory", "70.0", "79.0"],
        ["NVIDIA Test 1", "amp-bf16", "168", "1.75", "memory", "70.0", "79.0"],
        ["NVIDIA Test 1", "fp16", "oom", "–", "–", "–", "–"],
    ]
    assert titled(RunBuilder(tmp_path / "other").speed(), "Largest batch") == []


def test_where_the_data_were_stands_beside_the_waiting(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0], data_storage="file", data_wait_pct=12.0)
    cost = table_of(run, "Training: time, storage and energy")
    assert cost is not None
    cells = dict(zip(cost.headers, cost.rows[0], strict=True))
    assert (cells["data from"], cells["waiting for data (%)"]) == ("disk", "12")
