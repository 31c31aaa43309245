"""The figures of trainings that follow from their epochs, of one trial or of many."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pandas as pd

from bench.results.csv_file import PAIR

OF_LAST = ["train_loss", "test_loss", "test_accuracy_pct"]


def derive(rows: pd.DataFrame, details: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return rows of the train phase with the figures of their epochs (``Phase.derive``)."""
    epochs = details["epochs.csv"].sort_values("epoch", kind="stable")
    of_arms = epochs.groupby(PAIR, sort=False)
    last = epochs.drop_duplicates(PAIR, keep="last").set_index(PAIR)
    first_epoch = of_arms["epoch"].transform("min")
    last_epoch = of_arms["epoch"].transform("max")
    # The first epoch warms up, and counts only where there is no other.
    is_warm = epochs["epoch"] > first_epoch
    is_only = first_epoch == last_epoch
    warm = epochs[is_warm | is_only].groupby(PAIR, sort=False)["train_s"]
    figures = last[OF_LAST].assign(
        first_loss=of_arms["train_loss"].first(),
        last_loss=last["train_loss"],
        epochs=last["epoch"],
        time_per_epoch_s=warm.median(),
        fastest_epoch_s=warm.min(),
        slowest_epoch_s=warm.max(),
        train_samples_per_s=of_arms["samples"].sum() / last["elapsed_s"],
        data_wait_pct=100 * of_arms["data_wait_s"].sum() / last["elapsed_s"],
        figures=last["figures"],
    )
    arms = pd.MultiIndex.from_frame(rows[PAIR])
    of_rows = figures.reindex(arms).set_index(rows.index)
    # A training that failed may have epochs, too.
    is_measured = rows["total_s"].notna()
    of_rows = of_rows.where(is_measured)
    is_regression = rows["regression"] == "yes"
    of_rows["test_nats"] = of_rows["test_loss"].mask(is_regression)
    quality = []
    for text, name in zip(of_rows.pop("figures"), rows["quality_name"], strict=True):
        value = None
        # A suite's figures are JSON; a row without an epoch has NaN.
        if isinstance(text, str) and text:
            value = json.loads(text).get(name)
        quality.append(value)
    return rows.assign(**of_rows, quality=pd.Series(quality, rows.index, dtype=float))
