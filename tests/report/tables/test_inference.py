"""The report's table of inference."""

from __future__ import annotations

from bench.report.page import publish
from bench.report.reading.load import load
from bench.report.tables.measurements import inference
from bench.results.records import Inference, TrialResult
from tests.report.builders import RunBuilder


def found(**changes):
    usual = {"latency_p50_ms": 1.5, "latency_p95_ms": 2.0, "inference_samples_per_s": 1000.0, "inference_rounds": 20}
    usual |= {"inference_speedup": None, "inference_speedup_low": None, "inference_speedup_high": None}
    return Inference(**{**usual, "top1_agreement_pct": 100.0, "output_error": 0.0, **changes})


def test_each_precision_has_its_row_in_order_and_of_the_lowest_seed(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    for seed in (1, 0):
        speed = {"inference_speedup": 2.0 + seed, "inference_speedup_low": 1.9, "inference_speedup_high": 2.1}
        mixed = found(**speed, top1_agreement_pct=98.75, output_error=0.004)
        trial = builder.trial("inference", ["amp-bf16"], 128, seed=seed)
        builder.add(trial, TrialResult(precision="amp-bf16", status="ok", inference=mixed))
    trial = builder.trial("inference", ["fp32"], 128)
    builder.add(trial, TrialResult(precision="fp32", status="unconverged", inference=found()))
    runs = load([builder.folder])
    made = inference(runs.trials.assign(where="GPU"))
    assert [row[2:] for row in made.rows] == [
        ["fp32", "1.500†", "2.000", "1,000", "baseline", "100.00", "0"],
        ["amp-bf16", "1.500", "2.000", "1,000", "2.000 [1.900, 2.100]", "98.75", "0.004"],
    ]
    assert "### Inference" in publish(runs, tmp_path / "report", figures="none")[0].read_text()


def test_there_is_no_table_where_nothing_was_measured(tmp_path):
    builder = RunBuilder(tmp_path / "run").memory("fp32", 100)
    assert inference(load([builder.folder]).trials.assign(where="GPU")) is None
