"""Time per epoch against the step: how much faster whole epochs are, and where the step's gain went."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bench import stats
from bench.report.format import known, number, ratio, signed
from bench.report.load import CELL
from bench.spec import BASELINE

KEY = [*CELL, "precision"]
COLUMNS = ["epoch_speedup", "epoch_low", "epoch_high", "epoch_seeds"]
APART = 0.10
"""An epoch's speedup that lies further than this share from the step's is explained."""
MUCH_WAITING_PCT = 5.0
"""Share of training time from which waiting for data is worth naming as a cause."""


def epoch_speedups(done: pd.DataFrame) -> pd.DataFrame:
    """Return how much faster than fp32 each arm's epochs are, indexed by ``KEY``.

    Args:
        done: rows of finished trainings, one for each cell, precision and seed.

    Returns:
        ``epoch_speedup``: fp32's time per epoch over the arm's, the geometric mean over the seeds that both
        finished; ``epoch_low`` and ``epoch_high``: Student's 95 % interval on the logarithms, empty with one
        seed; ``epoch_seeds``: how many seeds.
    """
    times = done.loc[done["time_per_epoch_s"].gt(0), [*KEY, "seed", "time_per_epoch_s"]]
    baseline = times[times["precision"] == BASELINE].drop(columns="precision")
    pairs = times[times["precision"] != BASELINE].merge(baseline, on=[*CELL, "seed"], suffixes=("", "_fp32"))
    pairs["log_ratio"] = np.log(pairs["time_per_epoch_s_fp32"] / pairs["time_per_epoch_s"])
    found = {}
    for key, group in pairs.groupby(KEY, sort=False)["log_ratio"]:
        interval = stats.student_interval(group.to_numpy(dtype=np.float64)).exp()
        found[key] = [interval.center, interval.low, interval.high, interval.n]
    if not found:
        return pd.DataFrame(columns=COLUMNS, dtype=float)
    index = pd.MultiIndex.from_tuples(list(found), names=KEY)
    return pd.DataFrame(list(found.values()), index=index, columns=COLUMNS).astype(float)


def remarks(rows: pd.DataFrame) -> list[str]:
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
        sentences += [_remark(arm, fp32, arm["share"]) for _, arm in arms.iterrows()]
    return sentences


def _remark(arm: pd.Series, fp32: pd.Series, share: float) -> str:
    epoch = ratio(arm["epoch_speedup"], arm["epoch_low"], arm["epoch_high"])
    where = f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}"
    said = f"{where}: epochs are {epoch}× as fast as fp32's, steps {ratio(arm['speedup'])}×"
    covered = known(arm["epoch_low"]) and arm["epoch_low"] <= arm["speedup"] <= arm["epoch_high"]
    chance = "The epochs' interval covers the steps' speedup, so this may be chance. " if covered else ""
    return f"{said} ({signed(100 * share, 0)} %). {chance}{_why(arm, fp32, share)}"


def _why(arm: pd.Series, fp32: pd.Series, share: float) -> str:
    """Explain a gap with what was measured: the share of waiting, and what steps alone would take."""
    waits = arm["data_wait_pct"], fp32["data_wait_pct"]
    if not known(waits[0]) or not known(waits[1]):
        return "The time spent waiting for data is not known, so neither is the cause."
    # On a GPU the host runs ahead, and waits also where the GPU has work to do meanwhile.
    on_cpu = str(arm["placement"]).startswith("cpu")
    said = (
        f"The host waited for data {number(waits[1], 2)} % of fp32's training time and {number(waits[0], 2)} % of "
        f"{arm['precision']}'s"
    )
    if share < 0 and waits[0] > max(MUCH_WAITING_PCT, waits[1]):
        rest = arm["epoch_speedup"] * (1 - waits[1] / 100) / (1 - waits[0] / 100) if waits[0] < 100 else np.inf
        if rest / arm["speedup"] - 1 >= -APART:
            unless = "" if on_cpu else ", unless the GPU had work to do meanwhile"
            return f"{said}: loading data is what limits {arm['precision']}{unless}."
        return f"{said}, which explains a part: without it epochs would be {ratio(rest)}× as fast."
    return f"{said}, which does not explain it.{_steps(arm, fp32)}"


def _steps(arm: pd.Series, fp32: pd.Series) -> str:
    """Say how much of each precision's epoch its steps take, as the speed phase timed them."""
    shares = [100 * row["train_samples_per_s"] / row["samples_per_s"] for row in (fp32, arm)]
    if not all(known(share) for share in shares):
        return ""
    said = (
        f" Steps as timed on data already on the device would take {number(shares[0], 2)} % of the time of fp32's "
        f"epochs and {number(shares[1], 2)} % of {arm['precision']}'s"
    )
    if max(shares) > 100:
        return f"{said}: the machine was not equally fast when steps were timed and when it trained."
    return f"{said}: the rest is other work of an epoch, or drift between trainings that follow one another."
