"""Causes that limit a precision, each in a sentence from measurements: the device, launching, memory, or the loader."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.report.format import known, number, ratio, signed
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
STORAGE = {
    "host": "; the images came from host memory",
    "file": "; the images came from the disk, for they do not fit into memory",
}
APART = 0.10
"""An epoch's speedup that lies further than this share from the step's is explained."""
MUCH_WAITING_PCT = 5.0
"""Share of training time from which waiting for data is worth naming as a cause."""


def reason(arm: Mapping[Hashable, Any], baseline: Mapping[Hashable, Any] | None) -> str:
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


def loader_remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each arm of each cell whose training the loader limits.

    Args:
        rows: rows of the summary, of one workload.
    """
    shares = rows["train_samples_per_s"] / rows["samples_per_s"]
    waiting = (rows["data_wait_pct"] >= WAITING_PCT) & ~(shares >= OF_THE_STEP)
    return [
        _loader_remark(arm, share) for (_, arm), share in zip(rows[waiting].iterrows(), shares[waiting], strict=True)
    ]


def _loader_remark(arm: pd.Series, share: float) -> str:
    """Describe how much waiting for batches costs; ``share`` is training's throughput over that of the steps alone."""
    busy = 1 - arm["data_wait_pct"] / 100
    partly = known(share) and share < OF_THE_STEP * busy
    limit = "the loader is a part of the limit" if partly else "the loader, not arithmetic, is the limit"
    remark = f"{_named(arm)}: {limit}. Training waited for batches {number(arm['data_wait_pct'], 2)} % of its time"
    if known(share):
        remark += (
            f" and reached {number(100 * share, 2)} % of the throughput of its steps on data already on the device"
        )
    if partly:
        remark += f"; without waiting it would have reached {number(100 * share / busy, 2)} %"
    return f"{remark}{STORAGE.get(str(arm['data_storage']), '')}."


def _named(arm: pd.Series) -> str:
    return f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}"


def epoch_remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each arm of each cell whose epochs gain more or less than its steps, by over ``APART``.

    Args:
        rows: rows of the summary, of one workload.
    """
    gaps = rows["epoch_speedup"] / rows["speedup"] - 1
    apart = gaps.abs() > APART
    fp32 = {tuple(row[CELL]): row for _, row in rows[rows["precision"] == BASELINE].iterrows()}
    return [
        _epoch_remark(arm, fp32[tuple(arm[CELL])], gap)
        for (_, arm), gap in zip(rows[apart].iterrows(), gaps[apart], strict=True)
    ]


def _epoch_remark(arm: pd.Series, fp32: pd.Series, gap: float) -> str:
    epoch = ratio(arm["epoch_speedup"], arm["epoch_low"], arm["epoch_high"])
    remark = (
        f"{_named(arm)}: epochs are {epoch}× as fast as fp32's, steps {ratio(arm['speedup'])}× "
        f"({signed(100 * gap, 0)} %). "
    )
    if known(arm["epoch_low"]) and arm["epoch_low"] <= arm["speedup"] <= arm["epoch_high"]:
        remark += "The epochs' interval covers the steps' speedup, so this may be chance. "
    return remark + _cause(arm, fp32, gap)


def _cause(arm: pd.Series, fp32: pd.Series, gap: float) -> str:
    """Explain a gap by the shares of waiting, and by the shares of the epochs that the steps alone take."""
    wait, fp32_wait = arm["data_wait_pct"], fp32["data_wait_pct"]
    if not known(wait) or not known(fp32_wait):
        return "The time spent waiting for data is not known, so neither is the cause."
    waited = (
        f"The host waited for data {number(fp32_wait, 2)} % of fp32's training time and {number(wait, 2)} % of "
        f"{arm['precision']}'s"
    )
    if gap < 0 and wait > max(MUCH_WAITING_PCT, fp32_wait):
        rest = arm["epoch_speedup"] * (100 - fp32_wait) / (100 - wait) if wait < 100 else float("inf")
        if rest / arm["speedup"] - 1 < -APART:
            return f"{waited}, which explains a part: without it epochs would be {ratio(rest)}× as fast."
        # On a GPU the host runs ahead, and waits also where the GPU has work to do meanwhile.
        unless = "" if arm["device_kind"] == "cpu" else ", unless the GPU had work to do meanwhile"
        return f"{waited}: loading data is what limits {arm['precision']}{unless}."
    shares = [100 * row["train_samples_per_s"] / row["samples_per_s"] for row in (fp32, arm)]
    if not all(map(known, shares)):
        return f"{waited}, which does not explain it."
    rest = "the rest is other work of an epoch, or drift between trainings that follow one another"
    if max(shares) > 100:
        rest = "the machine was not equally fast when steps were timed and when it trained"
    return (
        f"{waited}, which does not explain it. Steps as timed on data already on the device would take "
        f"{number(shares[0], 2)} % of the time of fp32's epochs and {number(shares[1], 2)} % of {arm['precision']}'s: "
        f"{rest}."
    )
