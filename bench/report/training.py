"""Training runs over seeds: time per epoch, accuracy, and whether the accuracy is fp32's."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pandas as pd
from scipy import special

from bench.records import MEASURED
from bench.report.epochs import epoch_speedups
from bench.report.load import CELL
from bench.report.speed import KEY, status_of
from bench.spec import BASELINE

PARITY_MARGIN_POINTS = 0.5
"""Accuracy may differ from fp32's by this many points and still count as the same."""
MIN_SEEDS = 5
"""With fewer paired seeds there is no parity verdict."""
Parity = Literal["EQUIVALENT", "NON-INFERIOR", "WORSE", "INCONCLUSIVE", "insufficient seeds", "diverged"]

_FIGURES = {
    "time_per_epoch_s": "time_per_epoch_s",
    "train_loss": "train_loss",
    "test_loss": "test_loss",
    "accuracy_pct": "test_accuracy_pct",
    "accuracy_fp32_pct": "test_accuracy_fp32_pct",
    "data_wait_pct": "data_wait_pct",
    "train_samples_per_s": "train_samples_per_s",
    "total_s": "total_s",
    "time_to_accuracy_s": "time_to_accuracy_s",
    "checkpoint_bytes": "checkpoint_bytes",
    "checkpoint_16bit_bytes": "checkpoint_16bit_bytes",
    "train_energy_j": "train_energy_j",
}
_DELTA = ["delta_points", "delta_low", "delta_high", "delta_seeds", "parity"]


def trainings(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of each cell that was trained, indexed by ``KEY``.

    Figures are means over the seeds that finished; ``time_to_accuracy_s`` is over those that reached
    ``target_accuracy_pct``, which are ``reached``. ``delta_points`` is the mean over seeds of arm − fp32,
    seed by seed, with its 90 % interval in ``delta_low`` and ``delta_high``. ``diverged`` counts the seeds that
    diverged where fp32 did not, ``fp32_diverged`` those in which fp32 did. The columns of ``epochs.epoch_speedups``
    are joined.
    """
    rows = trials[trials["phase"] == "train"]
    usable = rows["status"].isin(MEASURED) & rows["time_per_epoch_s"].notna()
    table = status_of(rows, usable).to_frame("train_status")
    done = rows[usable].groupby(KEY, sort=False)
    for name, column in _FIGURES.items():
        table[name] = done[column].mean()
    table["epochs"] = done["epochs"].max()
    table["data_place"] = done["data_place"].first()
    table["accuracy_sd"] = done["test_accuracy_pct"].std()
    table["seeds"] = done.size()
    table["target_accuracy_pct"] = done["target_accuracy_pct"].max()
    table["reached"] = done["time_to_accuracy_s"].count()
    table = table.join(_diverged(rows)).fillna({"diverged": 0, "fp32_diverged": 0})
    deltas = _deltas(rows[usable], table["diverged"]).reindex(table.index)
    deltas.loc[table["diverged"] > 0, "parity"] = "diverged"  # also where no seed is left to compare
    return table.join([deltas, epoch_speedups(rows[usable]).reindex(table.index)])


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
