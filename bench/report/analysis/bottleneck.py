"""What limits a precision, in one sentence from what was measured: the device, launching, memory, or the loader."""

from __future__ import annotations

import numpy as np
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


def reason(arm: pd.Series, baseline: pd.Series | None) -> str:
    """Say why an arm gains nothing; empty where nothing measured tells.

    Args:
        arm: the arm's row of the summary.
        baseline: fp32's row of the same cell.
    """
    name, computed = arm["precision"], arm["compute_dtypes"]
    precision = find_precision(name)
    if precision and known(computed) and (missed := precision.missed(computed)):
        return missed
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


def loader_remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each arm of each cell whose training the loader limits.

    Args:
        rows: rows of the summary, of one workload.
    """
    waiting = rows[rows["data_wait_pct"] >= WAITING_PCT]
    return [_loader_remark(arm) for _, arm in waiting.iterrows() if not _as_fast_as_the_step(arm)]


def _as_fast_as_the_step(arm: pd.Series) -> bool:
    pace, alone = arm["train_samples_per_s"], arm["samples_per_s"]
    return known(pace) and known(alone) and pace >= OF_THE_STEP * alone


def _loader_remark(arm: pd.Series) -> str:
    share, busy = arm["train_samples_per_s"] / arm["samples_per_s"], 1 - arm["data_wait_pct"] / 100
    alone = known(share) and share < OF_THE_STEP * busy
    what = "the loader is a part of the limit" if alone else "the loader, not arithmetic, is the limit"
    remark = (
        f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}: {what}. Training waited for batches "
        f"{number(arm['data_wait_pct'], 2)} % of its time"
    )
    if known(share):
        remark += (
            f" and reached {number(100 * share, 2)} % of the throughput of its steps on data already on the device"
        )
    if alone:
        remark += f"; without waiting it would have reached {number(100 * share / busy, 2)} %"
    return f"{remark}{STORAGE.get(str(arm['data_storage']), '')}."


def epoch_remarks(rows: pd.DataFrame) -> list[str]:
    """Say where time went, for each arm whose epochs gain clearly more or less than its steps.

    Args:
        rows: rows of the summary, of one workload.

    Returns:
        One sentence for each arm of each cell whose two speedups differ by more than ``APART``.
    """
    shares = rows.assign(share=rows["epoch_speedup"] / rows["speedup"] - 1)
    apart = shares[shares["share"].abs() > APART]
    sentences = []
    for cell, arms in apart.groupby(CELL, sort=False):
        alike = (rows[CELL] == list(cell)).all(axis=1) & (rows["precision"] == BASELINE)
        fp32 = rows[alike].iloc[0]
        sentences += [_epoch_remark(arm, fp32, arm["share"]) for _, arm in arms.iterrows()]
    return sentences


def _epoch_remark(arm: pd.Series, fp32: pd.Series, share: float) -> str:
    epoch = ratio(arm["epoch_speedup"], arm["epoch_low"], arm["epoch_high"])
    where = f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}"
    remark = f"{where}: epochs are {epoch}× as fast as fp32's, steps {ratio(arm['speedup'])}×"
    covered = known(arm["epoch_low"]) and arm["epoch_low"] <= arm["speedup"] <= arm["epoch_high"]
    chance = "The epochs' interval covers the steps' speedup, so this may be chance. " if covered else ""
    return f"{remark} ({signed(100 * share, 0)} %). {chance}{_why(arm, fp32, share)}"


def _why(arm: pd.Series, fp32: pd.Series, share: float) -> str:
    """Explain a gap with what was measured: the share of waiting, and what steps alone would take."""
    waits = arm["data_wait_pct"], fp32["data_wait_pct"]
    if not known(waits[0]) or not known(waits[1]):
        return "The time spent waiting for data is not known, so neither is the cause."
    # On a GPU the host runs ahead, and waits also where the GPU has work to do meanwhile.
    on_cpu = arm["device_kind"] == "cpu"
    remark = (
        f"The host waited for data {number(waits[1], 2)} % of fp32's training time and {number(waits[0], 2)} % of "
        f"{arm['precision']}'s"
    )
    if share < 0 and waits[0] > max(MUCH_WAITING_PCT, waits[1]):
        rest = arm["epoch_speedup"] * (1 - waits[1] / 100) / (1 - waits[0] / 100) if waits[0] < 100 else np.inf
        if rest / arm["speedup"] - 1 >= -APART:
            unless = "" if on_cpu else ", unless the GPU had work to do meanwhile"
            return f"{remark}: loading data is what limits {arm['precision']}{unless}."
        return f"{remark}, which explains a part: without it epochs would be {ratio(rest)}× as fast."
    return f"{remark}, which does not explain it.{_steps(arm, fp32)}"


def _steps(arm: pd.Series, fp32: pd.Series) -> str:
    """Say how much of each precision's epoch its steps take, as the speed phase timed them."""
    shares = [100 * row["train_samples_per_s"] / row["samples_per_s"] for row in (fp32, arm)]
    if not all(known(share) for share in shares):
        return ""
    remark = (
        f" Steps as timed on data already on the device would take {number(shares[0], 2)} % of the time of fp32's "
        f"epochs and {number(shares[1], 2)} % of {arm['precision']}'s"
    )
    if max(shares) > 100:
        return f"{remark}: the machine was not equally fast when steps were timed and when it trained."
    return f"{remark}: the rest is other work of an epoch, or drift between trainings that follow one another."
