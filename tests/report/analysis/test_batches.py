"""The largest batch that fits."""

from bench.phases.fit import Fit
from tests.report.tables.lines import titled

GIB = 2**30


def test_largest_batches_stand_next_to_fp32s(run):
    assert titled(run.speed().folder, "Largest batch") is None
    fit = Fit(
        fit_bound="memory",
        fit_peak_bytes=70 * GIB,
        fit_free_bytes=79 * GIB,
    )
    run.result("fit", "fp32", batch=96, row=fit)
    run.result("fit", "amp-bf16", batch=168, row=fit)
    run.lost("fit", "fp16", "oom", batch=1)
    assert titled(run.folder, "Largest batch").rows == [
        ["NVIDIA Test 1", "fp32", "96", "1.00", "memory", "70.0", "79.0"],
        ["NVIDIA Test 1", "amp-bf16", "168", "1.75", "memory", "70.0", "79.0"],
        ["NVIDIA Test 1", "fp16", "oom", "–", "–", "–", "–"],
    ]
