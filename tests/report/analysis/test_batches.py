"""Speedup at one batch and at each precision's best, and what fits."""

import math

import numpy as np
from scipy import stats as scipy_stats

from bench.phases.fit import Fit
from tests.report.builders import RunBuilder
from tests.report.tables.lines import titled

GIB = 2**30


def rows(run: RunBuilder, title: str) -> list[list[str]]:
    table = titled(run.folder, title)
    return table.rows if table else []


def test_each_precision_is_compared_at_its_own_best_batch_with_welchs_interval(run):
    """fp32 fits at 128, where amp-bf16 is twice as fast; amp-bf16 also at 512, alone, at three times the pace."""
    run.speed(speedups=[1.9, 2.0, 2.1], batch=128)
    run.alone("amp-bf16", [10.0 / 3 * 4 * factor for factor in (1.0, 1.1, 0.9)], batch=512)
    fp32, row = rows(run, "Best batch")
    paces = np.log([512 / (40.0 / 3 * factor) for factor in (1.0, 1.1, 0.9)])
    baseline = np.log([12.8] * 3)
    bounds = scipy_stats.ttest_ind(paces, baseline, equal_var=False).confidence_interval(0.95)
    center = math.exp(paces.mean() - baseline.mean())
    assert (fp32[1:3], row[1:3]) == (["fp32", "128"], ["amp-bf16", "512"])
    assert row[4] == f"{center:.2f} [{math.exp(bounds.low):.2f}, {math.exp(bounds.high):.2f}]"


def test_largest_batches_stand_next_to_fp32s(run, tmp_path):
    for name, size in (("fp32", 96), ("amp-bf16", 168)):
        fit = Fit(fit_bound="memory", fit_peak_bytes=70 * GIB, fit_free_bytes=79 * GIB)
        run.result("fit", name, batch=size, row=fit)
    run.lost("fit", "fp16", "oom", "too big", batch=1)
    assert rows(run, "Largest batch") == [
        ["NVIDIA Test 1", "fp32", "96", "1.00", "memory", "70.0", "79.0"],
        ["NVIDIA Test 1", "amp-bf16", "168", "1.75", "memory", "70.0", "79.0"],
        ["NVIDIA Test 1", "fp16", "oom", "–", "–", "–", "–"],
    ]
    assert rows(RunBuilder(tmp_path / "other").speed(), "Largest batch") == []
