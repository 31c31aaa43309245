"""The table of inference: how fast a model answers in each precision, and whether it says what fp32 says."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.report.reading.load import CELL
from bench.report.tables.format import number, ratio, records
from bench.report.tables.numerics import error
from bench.report.tables.tables import Table, decimals, table, told, without_empty
from bench.spec.precisions import BASELINE, precision_rank

ARM = ["device", "batch size", "precision"]


def inference(trials: pd.DataFrame) -> list[Table]:
    """Return the table of one workload; none where its inference was not measured.

    Args:
        trials: rows of ``Runs.trials`` with ``where``; of several seeds the lowest is shown.
    """
    rows = trials[trials["phase"] == "inference"].sort_values("seed", kind="stable")
    rows = rows.drop_duplicates([*CELL, "precision"], keep="first")
    if rows.empty:
        return []
    body = [
        [
            row["where"],
            f"{row['batch_size']:.0f}",
            row["precision"],
            told(row["status"], number(row["latency_p50_ms"])),
            number(row["latency_p95_ms"]),
            number(row["inference_samples_per_s"]),
            _speedup(row),
            decimals(row["top1_agreement_pct"]),
            error(row["output_error"]),
        ]
        for row in sorted(
            records(rows), key=lambda row: (row["where"], row["batch_size"], precision_rank(row["precision"]))
        )
    ]
    headers = [*ARM, "latency p50 (ms)", "latency p95 (ms)", "samples/s", "speedup [95 % interval]"]
    headers += ["same answer as fp32 (%)", "largest output error"]
    about = (
        "The forward pass in eval mode, each precision beside fp32 in one process. Latency is one sample's; "
        "samples/s and the speedup are at the batch size. Answers are to random inputs, with the weights that training "
        "begins with; the error is relative to fp32's largest output."
    )
    return [without_empty(table("Inference", headers, body, about=about), len(ARM))]


def _speedup(row: Mapping[Hashable, Any]) -> str:
    if row["precision"] == BASELINE:
        return "baseline"
    return ratio(row["inference_speedup"], row["inference_speedup_low"], row["inference_speedup_high"])
