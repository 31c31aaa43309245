"""The largest batch that fits."""

from bench.phases.fit import Fit
from tests.report.builders import RunBuilder
from tests.report.tables.lines import titled

GIB = 2**30


def rows(run: RunBuilder, title: str) -> list[list[str]]:
    table = titled(run.folder, title)
    return table.rows if table else []


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
