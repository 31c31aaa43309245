"""Causes that limit a precision, each in a sentence from measurements: the device, launching, memory, or the loader."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.report.format import known, number, ratio, records
from bench.spec.precisions import find_precision

LITTLE_GAIN = 1.1
"""Ratio of two precisions' rates of large matrix products below which the device has no gain to give."""
LAUNCH_BOUND = 0.8
"""Host time over GPU time from which launching kernels is what limits."""
LITTLE_OF_CEILING = 25.0
"""Share of the ceiling, in per cent, below which arithmetic is not what limits."""

WAITING_PCT = 10.0
"""Share of training time spent waiting for batches from which the loader may be the limit."""
OF_THE_STEP = 0.9
"""But not where training reaches this share of the step's own throughput: then the GPU had work meanwhile."""
STORAGE = {
    "host": "; the images came from host memory",
    "file": "; the images came from the disk, for they do not fit into memory",
}
Row = Mapping[Hashable, Any]
"""A row of the summary."""


def reason(arm: Row, baseline: Row | None) -> str:
    """Say why an arm gains nothing; empty where no measured figure shows a cause.

    Args:
        arm: the arm's row of the summary.
        baseline: fp32's row of the same cell.
    """
    precision = find_precision(arm["precision"])
    if precision and known(arm["compute_dtypes"]) and (missed := precision.missed(arm["compute_dtypes"])):
        return missed
    if baseline is None:
        return ""
    host, gain, reached = arm["host_ratio"], arm["peak_tflops"] / baseline["peak_tflops"], baseline["pct_of_peak"]
    causes = {
        f"launching kernels limits it, not arithmetic (the host takes {number(host, 2)} of the GPU's time; try larger "
        "batches)": host >= LAUNCH_BOUND,
        f"large matrix products run at {ratio(gain)}× fp32's rate here, so the device has no gain to give": (
            gain < LITTLE_GAIN
        ),
        f"fp32 reaches {number(reached, 2)} % of this device's rate of large matrix products, so memory traffic or "
        "overhead limits it, not arithmetic": reached < LITTLE_OF_CEILING,
    }
    return next((sentence for sentence, applies in causes.items() if applies), "")


def training_remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence on each arm whose training the loader limits.

    Args:
        rows: rows of the summary, of any workloads.
    """
    shares = rows["train_samples_per_s"] / rows["samples_per_s"]
    waiting = rows[(rows["data_wait_pct"] >= WAITING_PCT) & ~(shares >= OF_THE_STEP)]
    return [_loader_remark(row) for row in records(waiting)]


def _loader_remark(arm: Row) -> str:
    wait, share = arm["data_wait_pct"], arm["train_samples_per_s"] / arm["samples_per_s"]
    without_waiting = share / (1 - wait / 100) if wait < 100 else float("nan")
    is_part = without_waiting < OF_THE_STEP
    text = f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}: the loader"
    text += " is a part of the limit" if is_part else ", not arithmetic, is the limit"
    text += f". Training waited for batches {number(wait, 2)} % of its time"
    if known(share):
        text += f" and reached {number(100 * share, 2)} % of the throughput of its steps on data already on the device"
    if is_part:
        text += f"; without waiting it would have reached {number(100 * without_waiting, 2)} %"
    return f"{text}{STORAGE.get(str(arm['data_storage']), '')}."
