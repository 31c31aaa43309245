"""The table of inference."""

from __future__ import annotations

import pandas as pd

from bench.report.format import error, records
from bench.report.parts import PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import (
    ARM_COLUMNS,
    EACH_RECIPE,
    Entry,
    Table,
    decimals,
    make_table,
    number_column,
    optional_columns,
    over_fp32,
)

ENDS = ("inference_speedup", "inference_speedup_low", "inference_speedup_high")
ABOUT = (
    "The forward pass in eval mode, each precision next to fp32 in one process. Latency is that "
    "of one sample; samples/s and the speedup are at the batch size. Inputs are random, and "
    "weights are those that training begins with. The output error is relative to fp32's largest "
    "output."
)
COLUMNS = (
    *ARM_COLUMNS,
    *optional_columns(
        number_column("latency p50 (ms)", "latency_p50_ms", status="status"),
        number_column("latency p95 (ms)", "latency_p95_ms"),
        number_column("samples/s", "inference_samples_per_s"),
        number_column("speedup [95 % interval]", lambda row: over_fp32(row, *ENDS)),
        number_column("same answer as fp32 (%)", "top1_agreement_pct", decimals),
        number_column("largest output error", "output_error", error),
    ),
)


def inference(trials: pd.DataFrame) -> Table | None:
    """Return inference, of rows of ``Material.trials``; of several seeds the lowest is shown."""
    rows = trials[trials["phase"] == "inference"]
    # Seeds change weights and inputs, neither of which the time depends on.
    lowest_seed = rows["seed"] == rows.groupby(KEY)["seed"].transform("min")
    return make_table("Inference", records(rows[lowest_seed]), COLUMNS, ABOUT)


REPORT = PhaseReport(
    tables=(Entry(61, EACH_RECIPE, lambda material: [inference(material.trials)]),)
)
