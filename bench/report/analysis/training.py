"""Training runs over seeds: time per epoch, accuracy, and whether the accuracy is fp32's."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pandas as pd
from scipy import special

from bench import stats
from bench.report.analysis.speed import KEY, status_of
from bench.report.format import known, number, ratio, signed
from bench.report.reading.load import CELL
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

PARITY_MARGIN_POINTS = 0.5
"""Accuracy may differ from fp32's by this many points and still count as the same."""
MIN_SEEDS = 5
"""With fewer paired seeds there is no parity verdict."""
Parity = Literal["EQUIVALENT", "NON-INFERIOR", "WORSE", "INCONCLUSIVE", "insufficient seeds", "diverged"]

_RENAMED = {"test_accuracy_pct": "accuracy_pct", "test_accuracy_fp32_pct": "accuracy_fp32_pct"}
_FIGURES = ["time_per_epoch_s", "train_loss", "test_loss", "test_accuracy_pct", "test_accuracy_fp32_pct"]
_FIGURES += ["data_wait_pct", "train_samples_per_s", "total_s", "time_to_accuracy_s", "checkpoint_bytes"]
_FIGURES += ["checkpoint_16bit_bytes", "train_energy_j"]
_DELTA = ["delta_points", "delta_low", "delta_high", "delta_seeds", "parity"]
_EPOCHS = ["epoch_speedup", "epoch_low", "epoch_high", "epoch_seeds"]
APART = 0.10
"""An epoch's speedup that lies further than this share from the step's is explained."""
MUCH_WAITING_PCT = 5.0
"""Share of training time from which waiting for data is worth naming as a cause."""


def trainings(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of each cell that was trained, indexed by ``KEY``.

    Figures are means over the seeds that finished; ``time_to_accuracy_s`` is over those that reached
    ``target_accuracy_pct``, which are ``reached``. ``delta_points`` is the mean over seeds of arm − fp32,
    seed by seed, with its 90 % interval in ``delta_low`` and ``delta_high``. ``diverged`` counts the seeds that
    diverged where fp32 did not, ``fp32_diverged`` those in which fp32 did. The columns of ``_epoch_speedups``
    are joined.
    """
    rows = trials[trials["phase"] == "train"]
    usable = rows["status"].isin(MEASURED) & rows["time_per_epoch_s"].notna()
    table = status_of(rows, usable).to_frame("train_status")
    done = rows[usable].groupby(KEY, sort=False)
    table = table.join(done[_FIGURES].mean().rename(columns=_RENAMED))
    table["epochs"] = done["epochs"].max()
    table["data_storage"] = done["data_storage"].first()
    table["accuracy_sd"] = done["test_accuracy_pct"].std()
    table["seeds"] = done.size()
    table["target_accuracy_pct"] = done["target_accuracy_pct"].max()
    table["reached"] = done["time_to_accuracy_s"].count()
    table = table.join(_diverged(rows)).fillna({"diverged": 0, "fp32_diverged": 0})
    deltas = _deltas(rows[usable], table["diverged"]).reindex(table.index)
    deltas.loc[table["diverged"] > 0, "parity"] = "diverged"  # also where no seed is left to compare
    return table.join([deltas, _epoch_speedups(rows[usable]).reindex(table.index)])


def _epoch_speedups(done: pd.DataFrame) -> pd.DataFrame:
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
        return pd.DataFrame(columns=_EPOCHS, dtype=float)
    index = pd.MultiIndex.from_tuples(list(found), names=KEY)
    return pd.DataFrame(list(found.values()), index=index, columns=_EPOCHS).astype(float)


def _diverged(rows: pd.DataFrame) -> pd.DataFrame:
    """Count each arm's seeds that diverged by its own doing, and those in which fp32 diverged, whatever it did."""
    lost = rows.loc[rows["status"] == "nonfinite", [*KEY, "seed"]].drop_duplicates()
    fp32 = lost.loc[lost["precision"] == BASELINE, [*CELL, "seed"]].assign(recipe=True)
    own = lost.merge(fp32, on=[*CELL, "seed"], how="left")
    blamed = own[own["recipe"].isna() | (own["precision"] == BASELINE)]
    arms = rows[KEY].drop_duplicates().merge(fp32.groupby(CELL).size().reset_index(name="fp32_diverged"), on=CELL)
    return arms.set_index(KEY).join(blamed.groupby(KEY).size().rename("diverged"), how="outer")


def _deltas(done: pd.DataFrame, diverged: pd.Series) -> pd.DataFrame:
    scored = done.loc[done["test_accuracy_pct"].notna(), [*KEY, "seed", "test_accuracy_pct"]]
    baseline = scored[scored["precision"] == BASELINE].drop(columns="precision")
    pairs = scored[scored["precision"] != BASELINE].merge(baseline, on=[*CELL, "seed"], suffixes=("", "_fp32"))
    pairs["delta"] = pairs["test_accuracy_pct"] - pairs["test_accuracy_pct_fp32"]
    found = {
        key: parity(group.to_numpy(dtype=np.float64), int(diverged.get(key, 0)))
        for key, group in pairs.groupby(KEY, sort=False)["delta"]
    }
    if not found:
        return pd.DataFrame(columns=_DELTA)
    index = pd.MultiIndex.from_tuples(list(found), names=KEY)
    return pd.DataFrame(list(found.values()), index=index, columns=_DELTA)


def parity(deltas: np.ndarray, diverged: int) -> tuple[float, float | None, float | None, int, Parity]:
    """Judge accuracy differences in points, one per seed: equivalence by two one-sided tests at 5 %.

    Returns:
        Mean, both ends of its 90 % interval (None with one seed), the number of seeds and the verdict.
        The lower end is also the one-sided 95 % bound that non-inferiority asks for.

    Source: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
    Journal of Pharmacokinetics and Biopharmaceutics 15 (1987).
    """
    count, mean = int(deltas.size), float(deltas.mean())
    low = high = None
    if count >= 2:
        half = float(special.stdtrit(count - 1, 0.95) * deltas.std(ddof=1) / math.sqrt(count))
        low, high = mean - half, mean + half
    return mean, low, high, count, _word(low, high, count, diverged)


def _word(low: float | None, high: float | None, count: int, diverged: int) -> Parity:
    if diverged:
        return "diverged"
    if count < MIN_SEEDS or low is None or high is None:
        return "insufficient seeds"
    if high < -PARITY_MARGIN_POINTS:
        return "WORSE"
    if low <= -PARITY_MARGIN_POINTS:
        return "INCONCLUSIVE"
    return "EQUIVALENT" if high < PARITY_MARGIN_POINTS else "NON-INFERIOR"


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
    on_cpu = arm["device_kind"] == "cpu"
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
