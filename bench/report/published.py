"""Published figures: what others have measured, as a table of its own in a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from bench.report.format import records
from bench.report.tables.table import Table, make_table, number_column, text_column
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[2] / "results" / "published"
FIGURES = [
    "n_gpus",
    "batch_size",
    "epochs",
    "times_as_fast",
    "time_per_epoch_s",
    "total_time_s",
    "samples_per_s",
    "tokens_per_s",
    "memory_mb",
    "storage_mb",
    "accuracy_pct",
    "map50_pct",
]
# Columns in which rows agree that differ in the precision alone; what a source does not state is
# equal.
CELL = ["source", "model", "dataset", "setup", "gpu", "n_gpus", "variant", "batch_size"]
SECTION = "Published figures"
ABOUT = (
    "Measured by others: one figure each, without an interval. They may differ from yours in more "
    "than the device, as in data, epochs, software and batch size. Their speedup over the fp32 of "
    "the same source is that of the time per epoch, else of the throughput, or as the source "
    "states it."
)


def load_published() -> pd.DataFrame:
    """Read published.csv, with what follows over fp32 of the same cell.

    That is ``speedup`` and, in points, ``accuracy_change`` and of a detector's mean average
    precision ``map50_change``.

    Raises:
        UsageError: the file is missing.
    """
    path = FOLDER / "published.csv"
    # Its own error, because a report elsewhere would not find the file, either.
    if not path.is_file():
        raise UsageError(
            f"'{path}' is missing: restore it, or report without the published figures."
        )
    rows = pd.read_csv(
        path,
        dtype=dict.fromkeys(FIGURES, float),
        keep_default_na=False,
        na_values=dict.fromkeys(FIGURES, ""),
    )
    per_epoch_s = rows["total_time_s"] / rows["epochs"]
    rows["time_per_epoch_s"] = rows["time_per_epoch_s"].fillna(per_epoch_s)
    is_fp32 = rows["precision"] == BASELINE
    fp32 = rows[CELL].merge(rows[is_fp32].drop_duplicates(CELL), on=CELL, how="left")
    # fp32 is not compared with itself.
    fp32.loc[is_fp32, FIGURES] = np.nan
    speedup = fp32["time_per_epoch_s"] / rows["time_per_epoch_s"]
    for name in ("samples_per_s", "tokens_per_s"):
        speedup = speedup.fillna(rows[name] / fp32[name])
    return rows.assign(
        speedup=speedup.fillna(rows["times_as_fast"]),
        accuracy_change=rows["accuracy_pct"] - fp32["accuracy_pct"],
        map50_change=rows["map50_pct"] - fp32["map50_pct"],
    )


def published_table() -> Table:
    """Return the table of all published figures, with what follows from them."""
    rows = load_published()
    columns = []
    for name in map(str, rows):
        column = number_column if rows[name].dtype == float else text_column
        columns.append(column(name.replace("_", " "), name))
    shown = make_table("", records(rows), columns, ABOUT)
    assert shown is not None  # published.csv has rows
    return shown
