"""What the train phase adds to the summary: what was learned, what diverged or does not learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.report.analysis.arms import ARM_NUMBER, CELL_NUMBER
from bench.report.analysis.changes import Contrast
from bench.report.analysis.judge import parity
from bench.report.format import number
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import learned
from bench.spec.precisions import BASELINE, find_precision


def add(
    table: pd.DataFrame, trials: pd.DataFrame, changes: Mapping[Metric, Mapping[int, Contrast]]
) -> pd.DataFrame:
    """Add the columns of ``_parities``, ``_diverged`` and ``stalled`` to the summary."""
    table = table.join([_parities(changes), _diverged(trials)])
    # Also where no seed is left to compare.
    table.loc[table["diverged"] > 0, "accuracy_verdict"] = "diverged"
    table["perplexity"] = np.exp(table["test_loss_nats"])
    table["above_entropy"] = table["test_loss"] - table["entropy_nats"]
    table["stalled"] = stalled(trials)
    return table


def _parities(changes: Mapping[Metric, Mapping[int, Contrast]]) -> pd.DataFrame:
    """Return the word for what each arm has learned, and how many seeds it rests on."""
    judged: dict[int, tuple[str, float]] = {}
    for metric in reversed(learned()):  # the first one counts
        for arm, contrast in changes[metric].items():
            judged[arm] = (parity(contrast), float(contrast.change.n))
    table = pd.DataFrame.from_dict(
        judged, "index", columns=["accuracy_verdict", "accuracy_change_seeds"]
    )
    return table.astype({"accuracy_change_seeds": float})  # also where nothing was trained


def _diverged(trials: pd.DataFrame) -> pd.DataFrame:
    """Count the seeds of each arm, those in which it diverged, and those in which fp32 did.

    ``diverged`` leaves out the seeds in which fp32 diverged, too, but for fp32 itself;
    ``diverged_seeds`` has them all.
    """
    rows = trials[trials["phase"] == "train"]
    lost = rows[rows["status"] == "nonfinite"]
    of_arms = lost.groupby(ARM_NUMBER)["seed"].agg(frozenset)
    of_fp32 = lost[lost["precision"] == BASELINE].groupby(CELL_NUMBER)["seed"].agg(frozenset)
    counts = {}
    every = rows[[ARM_NUMBER, CELL_NUMBER, "precision"]].drop_duplicates()
    for arm, cell, precision in every.itertuples(index=False):
        seeds, baseline = of_arms.get(arm, frozenset()), of_fp32.get(cell, frozenset())
        own = seeds if precision == BASELINE else seeds - baseline
        counts[arm] = (len(own), len(baseline), seeds)
    names = ["diverged", "fp32_diverged", "diverged_seeds"]
    table = pd.DataFrame.from_dict(counts, "index", columns=names)
    done = rows[rows["status"].isin(MEASURED)].groupby(ARM_NUMBER)
    table["seeds"] = done.size()
    table["accuracy_sd_points"] = done["test_accuracy_pct"].std()
    return table


def stalled(trials: pd.DataFrame) -> pd.Series:
    """Return the losses of each arm that does not learn where fp32 does, in words, by its number.

    Fp32 learns if its loss falls by more than its last losses differ between seeds, with one seed
    or two, which may agree by chance, by a tenth as well. An arm does not if its own falls by less
    than a tenth of that. Where an arm was trained, epochs count, else the steps of the phase that
    recorded them; the share of its gradients that are zero is the latter's.
    """
    rows = trials[trials["status"].isin(MEASURED) & trials["first_loss"].notna()]
    is_training = rows["phase"] == "train"
    words: dict[Any, str] = {}
    for part in (rows[~is_training], rows[is_training]):  # the last counts
        for _, cell in part.groupby(CELL_NUMBER, sort=False):
            fp32 = cell[cell["precision"] == BASELINE]
            spread = fp32["last_loss"].max() - fp32["last_loss"].min()
            if len(fp32) < 3:
                spread = max(spread, 0.1 * abs(fp32["first_loss"].mean()))
            for number_of_arm, arm in cell.groupby(ARM_NUMBER):
                words.pop(number_of_arm, None)
                if _fall(fp32) > spread and _fall(arm) < 0.1 * _fall(fp32):
                    words[number_of_arm] = _losses(
                        arm, fp32, trials[trials[ARM_NUMBER] == number_of_arm]
                    )
    return pd.Series(words, dtype=object)


def _fall(arm: pd.DataFrame) -> float:
    return float(arm["first_loss"].mean() - arm["last_loss"].mean())


def _losses(arm: pd.DataFrame, fp32: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Write how little an arm's loss falls next to fp32's, and how many gradients are zero."""
    text = f"loss {_course(arm)}, {BASELINE} {_course(fp32)}"
    if "zero_gradients_pct" in trials and trials["zero_gradients_pct"].notna().any():
        precision = find_precision(arm["precision"].iloc[0])
        where = " in float16" if precision and precision.autocast == "float16" else ""
        zero = number(trials["zero_gradients_pct"].mean(), 2)
        text += f"; {zero} % of its gradients are zero{where}"
    return text


def _course(arm: pd.DataFrame) -> str:
    return f"{number(arm['first_loss'].mean(), 3)} → {number(arm['last_loss'].mean(), 3)}"
