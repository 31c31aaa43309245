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

# An arm whose loss falls by less than this share of fp32's fall does not learn: noise between
# precisions is far smaller, and a step that underflows learns nothing at all.
STALLED_SHARE = 0.1
# The spread of fewer seeds' losses may be small by chance.
FEWEST_FOR_SPREAD = 3


def add(
    table: pd.DataFrame,
    trials: pd.DataFrame,
    changes: Mapping[Metric, Mapping[int, Contrast]],
) -> pd.DataFrame:
    """Add the columns of ``_parities``, ``_diverged`` and ``stalled`` to the summary."""
    table = table.join([_parities(changes), _diverged(trials)])
    # Also where no seed is left to compare.
    has_diverged = table["diverged"] > 0
    table.loc[has_diverged, "accuracy_verdict"] = "diverged"
    table["perplexity"] = np.exp(table["test_loss_nats"])
    table["above_entropy"] = table["test_loss"] - table["entropy_nats"]
    table["stalled"] = stalled(trials)
    return table


def _parities(changes: Mapping[Metric, Mapping[int, Contrast]]) -> pd.DataFrame:
    """Return the word for what each arm has learned, and how many seeds it rests on."""
    words = {}
    seeds = {}
    # Of several metrics of an arm the first one counts, so that it is written last.
    for metric in reversed(learned()):
        for arm, contrast in changes[metric].items():
            words[arm] = parity(contrast)
            seeds[arm] = contrast.change.n
    # The types are given for where nothing was trained: pandas cannot tell them of no values.
    return pd.DataFrame(
        {
            "accuracy_verdict": pd.Series(words, dtype=object),
            "accuracy_change_seeds": pd.Series(seeds, dtype=float),
        }
    )


def _diverged(trials: pd.DataFrame) -> pd.DataFrame:
    """Count the seeds of each arm, those in which it diverged, and those in which fp32 did.

    ``diverged`` leaves out the seeds in which fp32 diverged, too, but for fp32 itself;
    ``diverged_seeds`` has them all.
    """
    rows = trials[trials["phase"] == "train"]
    is_lost = rows["status"] == "nonfinite"
    lost = rows[is_lost]
    is_fp32 = lost["precision"] == BASELINE
    seeds_of_arms = lost.groupby(ARM_NUMBER)["seed"].agg(frozenset)
    seeds_of_fp32 = lost[is_fp32].groupby(CELL_NUMBER)["seed"].agg(frozenset)
    counts = {}
    every = rows[[ARM_NUMBER, CELL_NUMBER, "precision"]].drop_duplicates()
    for arm, cell, precision in every.itertuples(index=False):
        seeds = seeds_of_arms.get(arm, frozenset())
        of_fp32 = seeds_of_fp32.get(cell, frozenset())
        # With a seed that fp32 does not survive either, the recipe fails and not the precision.
        own = seeds
        if precision != BASELINE:
            own = seeds - of_fp32
        counts[arm] = (len(own), len(of_fp32), seeds)
    names = ["diverged", "fp32_diverged", "diverged_seeds"]
    table = pd.DataFrame.from_dict(counts, "index", columns=names)
    is_done = rows["status"].isin(MEASURED)
    done = rows[is_done].groupby(ARM_NUMBER)
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
    is_measured = trials["status"].isin(MEASURED)
    has_losses = trials["first_loss"].notna()
    rows = trials[is_measured & has_losses]
    is_training = rows["phase"] == "train"
    words: dict[Any, str] = {}
    # What is written last counts: epochs are more than the few steps of the other phase.
    for part in (rows[~is_training], rows[is_training]):
        for _, cell in part.groupby(CELL_NUMBER, sort=False):
            fp32 = cell[cell["precision"] == BASELINE]
            fp32_learns = _fall(fp32) > _least_fall(fp32)
            for arm_number, arm in cell.groupby(ARM_NUMBER):
                words.pop(arm_number, None)
                if fp32_learns and _fall(arm) < STALLED_SHARE * _fall(fp32):
                    of_arm = trials[trials[ARM_NUMBER] == arm_number]
                    words[arm_number] = _losses(arm, fp32, of_arm)
    return pd.Series(words, dtype=object)


def _least_fall(fp32: pd.DataFrame) -> float:
    """Return the fall of fp32's loss above which it learns."""
    last = fp32["last_loss"]
    spread = float(last.max() - last.min())
    if len(fp32) < FEWEST_FOR_SPREAD:
        spread = max(spread, STALLED_SHARE * abs(fp32["first_loss"].mean()))
    return spread


def _fall(arm: pd.DataFrame) -> float:
    fall = arm["first_loss"].mean() - arm["last_loss"].mean()
    return float(fall)


def _losses(arm: pd.DataFrame, fp32: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Write how little an arm's loss falls next to fp32's, and how many gradients are zero."""
    text = f"loss {_course(arm)}, {BASELINE} {_course(fp32)}"
    # The column is there only where a run has the phase that records it.
    if "zero_gradients_pct" in trials and trials["zero_gradients_pct"].notna().any():
        zero = number(trials["zero_gradients_pct"].mean(), 2)
        text += f"; {zero} % of its gradients are zero"
        precision = find_precision(arm["precision"].iloc[0])
        if precision and precision.autocast == "float16":
            text += " in float16"
    return text


def _course(arm: pd.DataFrame) -> str:
    return f"{number(arm['first_loss'].mean(), 3)} → {number(arm['last_loss'].mean(), 3)}"
