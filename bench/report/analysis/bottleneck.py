"""What limits a precision, in one sentence from what was measured: the device, launching, memory, or the loader."""

from __future__ import annotations

import pandas as pd

from bench.report.format import known, number, ratio
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


def reason(arm: pd.Series, baseline: pd.Series | None) -> str:
    """Say why an arm gains nothing; empty where nothing measured tells.

    Args:
        arm: the arm's row of the summary.
        baseline: fp32's row of the same cell.
    """
    name, computed = arm["precision"], arm["compute_dtypes"]
    precision = find_precision(name)
    wanted = precision.autocast if precision and not precision.conversion else None
    if wanted and known(computed) and computed and wanted not in computed:
        return f"autocast did not reach the model, whose products ran in {computed}"
    if baseline is None:
        return ""
    if known(arm["host_ratio"]) and arm["host_ratio"] >= LAUNCH_BOUND:
        return (
            f"launching kernels limits it, not arithmetic (the host takes {number(arm['host_ratio'], 2)} of the GPU's "
            "time; try larger batches)"
        )
    gain = float(arm["peak_tflops"] / baseline["peak_tflops"])
    if known(gain) and gain < LITTLE_GAIN:
        return f"large matrix products run at {ratio(gain)}× fp32's rate here, so the device has no gain to give"
    if known(baseline["pct_of_peak"]) and baseline["pct_of_peak"] < LITTLE_OF_CEILING:
        return (
            f"fp32 reaches {number(baseline['pct_of_peak'], 2)} % of this device's rate of large matrix products, "
            "so memory traffic or overhead limits it, not arithmetic"
        )
    return ""


def remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each arm of each cell whose training the loader limits.

    Args:
        rows: rows of the summary, of one workload.
    """
    waiting = rows[rows["data_wait_pct"] >= WAITING_PCT]
    return [_remark(arm) for _, arm in waiting.iterrows() if not _as_fast_as_the_step(arm)]


def _as_fast_as_the_step(arm: pd.Series) -> bool:
    pace, alone = arm["train_samples_per_s"], arm["samples_per_s"]
    return known(pace) and known(alone) and pace >= OF_THE_STEP * alone


def _remark(arm: pd.Series) -> str:
    share, busy = arm["train_samples_per_s"] / arm["samples_per_s"], 1 - arm["data_wait_pct"] / 100
    alone = known(share) and share < OF_THE_STEP * busy
    what = "the loader is a part of the limit" if alone else "the loader, not arithmetic, is the limit"
    said = (
        f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}: {what}. Training waited for batches "
        f"{number(arm['data_wait_pct'], 2)} % of its time"
    )
    if known(share):
        said += f" and reached {number(100 * share, 2)} % of the throughput of its steps on data already on the device"
    if alone:
        said += f"; without waiting it would have reached {number(100 * share / busy, 2)} %"
    return f"{said}{STORAGE.get(str(arm['data_storage']), '')}."
