"""The table of inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.report.reading.load import load
from bench.report.tables.measurements import inference
from bench.results.records import Inference, TrialResult
from tests.report.builders import RunBuilder, write_report


def answered(**changes: Any) -> Inference:
    usual = {"latency_p50_ms": 1.5, "latency_p95_ms": 2.0, "inference_samples_per_s": 1000.0, "inference_rounds": 20}
    speedup = dict.fromkeys(("inference_speedup", "inference_speedup_low", "inference_speedup_high"))
    return Inference(**usual | speedup | {"top1_agreement_pct": 100.0, "output_error": 0.0} | changes)


def test_each_precision_has_its_row_in_order_and_of_the_lowest_seed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").memory("fp32", 100)
    assert inference(load([run.folder]).trials.assign(where="GPU")) is None
    for seed in (1, 0):
        speed = {"inference_speedup": 2.0 + seed, "inference_speedup_low": 1.9, "inference_speedup_high": 2.1}
        mixed = answered(**speed, top1_agreement_pct=98.75, output_error=0.004)
        trial = run.trial("inference", ["amp-bf16"], 128, seed=seed)
        run.add(trial, TrialResult(precision="amp-bf16", status="ok", inference=mixed))
    trial = run.trial("inference", ["fp32"], 128)
    run.add(trial, TrialResult(precision="fp32", status="unconverged", inference=answered()))
    assert [row[2:] for row in inference(load([run.folder]).trials.assign(where="GPU")).rows] == [
        ["fp32", "1.500†", "2.000", "1,000", "baseline", "100.00", "0"],
        ["amp-bf16", "1.500", "2.000", "1,000", "2.000 [1.900, 2.100]", "98.75", "0.004"],
    ]
    assert "### Inference" in write_report([run.folder], tmp_path / "report", figures="none").read_text()
