"""Causes that limit a precision, each in a sentence from measurements: the device, launching, memory, or the loader."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.report.format import known, number, ratio, records, signed
from bench.report.reading.load import CELL
from bench.spec.precisions import BASELINE, find_precision

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
APART = 0.10
"""An epoch's speedup that lies further than this share from the step's is explained."""
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
    """Return a sentence on each arm that the loader limits, or whose epochs do not gain as its steps do.

    Args:
        rows: rows of the summary, of any workloads.
    """
    lines = records(rows)
    fp32 = {tuple(row[name] for name in CELL): row for row in lines if row["precision"] == BASELINE}
    return list(filter(None, (_remark(row, fp32.get(tuple(row[name] for name in CELL), {})) for row in lines)))


def _remark(arm: Row, fp32: Row) -> str:
    wait, pace = arm["data_wait_pct"], arm["train_samples_per_s"] / arm["samples_per_s"]
    gap = arm["epoch_speedup"] / arm["speedup"] - 1
    waits, is_apart = wait >= WAITING_PCT and not pace >= OF_THE_STEP, abs(gap) > APART
    if not waits and not is_apart:
        return ""
    text = f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}: "
    if is_apart:
        epoch = ratio(arm["epoch_speedup"], arm["epoch_low"], arm["epoch_high"])
        text += f"epochs are {epoch}× as fast as fp32's, steps {ratio(arm['speedup'])}× ({signed(100 * gap, 0)} %)"
        text += ", which may be chance; " if arm["epoch_low"] <= arm["speedup"] <= arm["epoch_high"] else "; "
    reached = 100 * pace / (1 - wait / 100) if waits and wait < 100 else float("nan")
    if waits:
        is_part = known(pace) and reached < 100 * OF_THE_STEP
        text += "the loader is a part of the limit" if is_part else "the loader, not arithmetic, is the limit"
    else:
        text += "waiting for data does not explain it: an epoch has other work, and trainings drift"
    waited = [f"{number(wait, 2)} % of its time"] if known(wait) else ["an unknown share of its time"]
    waited += [f"fp32's {number(fp32['data_wait_pct'], 2)} %"] if known(fp32.get("data_wait_pct")) else []
    text += f". Training waited for batches {', '.join(waited)}"
    if known(pace):
        text += f", and reached {number(100 * pace, 2)} % of the throughput of its steps on data already on the device"
    if waits and known(reached) and reached < 100 * OF_THE_STEP:
        text += f"; without waiting it would have reached {number(reached, 2)} %"
    return f"{text}{STORAGE.get(str(arm['data_storage']), '') if waits else ''}."
