"""The literature: published figures, and the ratios of precisions that they allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[3] / "results" / "published"
WORDS = ["source", "repository", "path", "commit", "date", "model", "dataset", "setup", "gpu", "architecture", "host"]
WORDS += ["precision", "precision_label", "fp32_mode", "layout", "compile", "unit", "quality_metric", "note"]
FIGURES = ["n_gpus", "batch_size", "epochs", "time_per_epoch_s", "total_time_s", "samples_per_s", "value", "spread"]
FIGURES += ["memory_mb", "storage_mb", "quality"]
SAME = ["source", "model", "dataset", "setup", "gpu", "n_gpus", "host", "epochs"]
"""Rows that agree in these are of one experiment in several precisions."""
MATCHED = ["batch_size", "layout", "compile", "fp32_mode"]
"""Their ratio is one of precisions alone where they agree in these, too."""
WIDER = (BASELINE, "tf32", "bf16-master")
"""Precisions that others are compared with, where a source has them."""
TIMES = {"time_per_epoch_s": "", "total_time_s": " (by total time)"}
RATES = {"samples_per_s": " (by throughput)", "value": " (by throughput)"}
"""Columns that a ratio can be taken of, the preferred one first, and the words that follow the ratio."""


def load_published(folder: Path = FOLDER) -> pd.DataFrame:
    """Read every CSV of published figures.

    Raises:
        UsageError: there is none, or one lacks a column or cannot be read.
    """
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise UsageError(
            f"There are no published figures in '{folder}'. Restore or reinstall them, or report without --published."
        )
    types, missing = dict.fromkeys(WORDS, str) | dict.fromkeys(FIGURES, float), {name: [""] for name in FIGURES}
    frames = []
    for file in files:
        try:
            frames.append(pd.read_csv(file, usecols=[*types], dtype=types, keep_default_na=False, na_values=missing))
        except ValueError as error:
            raise UsageError(f"'{file}' cannot be read as published figures: {error}.") from error
    return pd.concat(frames, ignore_index=True)


def links(literature: pd.DataFrame) -> pd.Series:
    """Return the address where each row's figures can be read; empty where none is known."""
    on_github = "https://github.com/" + literature["repository"] + "/blob/" + literature["commit"] + "/"
    return on_github.where(literature["repository"] != "", "") + literature["path"]


def pairs(literature: pd.DataFrame) -> pd.DataFrame:
    """Pair each published row with that of a wider precision which agrees in ``SAME`` and ``MATCHED``.

    Two rows that both lack a field agree in it; of tf32 the way of multiplying fp32 is the precision, so it may differ.

    Returns:
        The columns of the other row, ``row`` (its label in ``literature``), those of the wider one with ``_base``,
        ``times`` (as fast as it; NaN where unknown), ``by`` (the words that follow) and ``spread_of_times``, a share.
    """
    rows = literature.reset_index(names="row")
    rows["experiment"] = rows.groupby(SAME, sort=False, dropna=False).ngroup()
    parts = []
    for rank, wider in enumerate(WIDER):
        others = rows[~rows["precision"].isin(WIDER[: rank + 1])]
        for is_tf32 in (False, True):
            agreeing = [*SAME, *(name for name in MATCHED if not (is_tf32 and name == "fp32_mode"))]
            bases = rows[rows["precision"] == wider].drop_duplicates(agreeing)
            some = others[others["precision"].eq("tf32") == is_tf32].assign(rank=rank)
            parts.append(some.merge(bases, on=agreeing, suffixes=("", "_base")))
    paired = pd.concat(parts, ignore_index=True).sort_values(["experiment", "rank", "row"], ignore_index=True)
    paired = paired[paired["unit"] == paired["unit_base"]].assign(times=np.nan, by="")
    for column, by in (TIMES | RATES).items():
        slower, faster = (f"{column}_base", column) if column in TIMES else (column, f"{column}_base")
        ratio = paired[slower] / paired[faster]
        paired["by"] = paired["by"].mask(paired["times"].isna() & ratio.notna(), by)
        paired["times"] = paired["times"].fillna(ratio)
    spreads = [paired[f"spread{end}"] / paired[f"samples_per_s{end}"] for end in ("", "_base")]
    return paired.assign(spread_of_times=np.hypot(spreads[0], spreads[1]))
