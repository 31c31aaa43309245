"""What the train phase adds to the summary: what was learned, next to fp32, and what diverged or does not learn."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.report.analysis.changes import Contrast
from bench.report.analysis.frame import ARM, IN_CELL
from bench.report.analysis.judge import parity
from bench.report.format import known, number, records
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import learned
from bench.spec.precisions import BASELINE, find_precision


def add(table: pd.DataFrame, trials: pd.DataFrame, changes: Mapping[Metric, Mapping[int, Contrast]]) -> pd.DataFrame:
    """Add the columns of ``_parities``, ``_diverged`` and ``stalled`` to the summary, by the arms' numbers."""
    table = table.join([_parities(changes), _diverged(trials)])
    table.loc[table["diverged"] > 0, "accuracy_verdict"] = "diverged"  # also where no seed is left to compare
    table["perplexity"] = np.exp(table["test_loss_nats"])
    table["above_entropy"] = table["test_loss"] - table["entropy_nats"]
    table["stalled"] = stalled(trials)
    return table


def _parities(changes: Mapping[Metric, Mapping[int, Contrast]]) -> pd.DataFrame:
    """Return the word for what each arm has learned, and how many seeds it rests on, by its number."""
    judged: dict[int, Contrast] = {}
    for metric in reversed(learned()):  # the first one counts
        judged |= changes[metric]
    words = {number: parity(contrast) for number, contrast in judged.items()}
    seeds = {number: contrast.change.n for number, contrast in judged.items()}
    table = pd.DataFrame({"accuracy_verdict": pd.Series(words, dtype=object)})
    table["accuracy_change_seeds"] = pd.Series(seeds, dtype=float)
    return table


def _diverged(trials: pd.DataFrame) -> pd.DataFrame:
    """Count the seeds with which each arm was trained, those in which it diverged, and those in which fp32 did.

    ``diverged`` leaves out the seeds in which fp32 diverged, too, but for fp32 itself; ``diverged_seeds`` has them all.
    """
    rows = trials[trials["phase"] == "train"]
    lost = rows[rows["status"] == "nonfinite"].groupby(ARM)["seed"].agg(frozenset).to_dict()
    arms = rows.drop_duplicates(ARM)
    baselines = arms[arms["precision"] == BASELINE].set_index(IN_CELL)[ARM].to_dict()
    counts = []
    for arm, cell in zip(arms[ARM], arms[IN_CELL], strict=True):
        fp32 = baselines.get(cell)
        seeds, of_fp32 = lost.get(arm, frozenset()), lost.get(fp32, frozenset())
        own = seeds if arm == fp32 else seeds - of_fp32
        counts.append((arm, len(own), len(of_fp32), seeds))
    names = [ARM, "diverged", "fp32_diverged", "diverged_seeds"]
    table = pd.DataFrame(counts, columns=names).astype({ARM: "int64"}).set_index(ARM)
    done = rows[rows["status"].isin(MEASURED)].groupby(ARM)
    table["seeds"] = done.size()
    table["accuracy_sd_points"] = done["test_accuracy_pct"].std()
    table["reached"] = done["time_to_accuracy_s"].count()
    return table


def stalled(trials: pd.DataFrame) -> pd.Series:
    """Return the losses of each arm that does not learn where fp32 does, in words, by its number.

    Fp32 learns if its loss falls by more than its last losses differ between seeds, with one seed or two, which may
    agree by chance, by a tenth as well. An arm does not if its own falls by less than a tenth of that. Where an arm was
    trained, epochs count, else the steps of the phase that recorded them; the share of its gradients that are zero is
    the latter's.
    """
    rows = trials[trials["status"].isin(MEASURED) & trials["first_loss"].notna()]
    zeros: Mapping[Any, float] = {}
    if "zero_gradients_pct" in trials:
        zeros = trials.groupby(ARM)["zero_gradients_pct"].mean().to_dict()
    words: dict[Any, str] = {}
    is_training = rows["phase"] == "train"
    for part in (rows[~is_training], rows[is_training]):  # the last counts
        of_arms = part.groupby([IN_CELL, ARM, "precision"])
        courses = of_arms[["first_loss", "last_loss"]].mean()
        losses = of_arms["last_loss"]
        courses["fall"] = courses["first_loss"] - courses["last_loss"]
        courses["spread"] = losses.max() - losses.min()
        few = np.maximum(courses["spread"], 0.1 * courses["first_loss"].abs())
        courses["spread"] = courses["spread"].where(losses.size() >= 3, few)
        by_arm = records(courses.reset_index())
        baselines = {row[IN_CELL]: row for row in by_arm if row["precision"] == BASELINE}
        for row in by_arm:
            words.pop(row[ARM], None)
            fp32 = baselines.get(row[IN_CELL], row)
            if fp32["fall"] > fp32["spread"] and row["fall"] < 0.1 * fp32["fall"]:
                words[row[ARM]] = _losses(row, fp32, zeros.get(row[ARM], math.nan))
    return pd.Series(words, dtype=object)


def _losses(row: Mapping[Hashable, Any], fp32: Mapping[Hashable, Any], zero_pct: float) -> str:
    """Write how little the loss of an arm falls next to fp32's, and how many of its gradients are zero."""
    own, of_fp32 = (f"{number(each['first_loss'], 3)} → {number(each['last_loss'], 3)}" for each in (row, fp32))
    text = f"loss {own}, {BASELINE} {of_fp32}"
    if not known(zero_pct):
        return text
    precision = find_precision(row["precision"])
    where = " in float16" if precision and precision.autocast == "float16" else ""
    return f"{text}; {number(zero_pct, 2)} % of its gradients are zero{where}"
