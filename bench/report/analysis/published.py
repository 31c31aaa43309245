"""Published figures: what others have measured, as a table of its own next to what runs have measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from bench.report.format import records, titled
from bench.report.tables.table import Row, Table, decimals, figures, optional, table, words
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[3] / "results" / "published"
FIGURES = ["n_gpus", "batch_size", "epochs", "times_as_fast", "time_per_epoch_s", "total_time_s", "samples_per_s"]
FIGURES += ["tokens_per_s", "memory_mb", "storage_mb", "accuracy_pct", "map50_pct"]
CELL = ["source", "model", "dataset", "setup", "gpu", "n_gpus", "variant", "batch_size"]
"""Columns in which rows agree that differ in the precision alone; what a source does not state is equal."""
SECTION = "Published figures"
ABOUT = (
    "Measured by others: one figure each, without an interval. They may differ from yours in more than the device, as "
    "in data, epochs, software and batch size. Their speedup over the fp32 of the same source is that of the time per "
    "epoch, else of the throughput, or as the source states it."
)


def load_published() -> pd.DataFrame:
    """Read published.csv, with each row's ``speedup`` and changes in what was learned, over fp32 of the same cell.

    Changes are in points: ``accuracy_change``, and of a detector's mean average precision ``map50_change``.
    """
    empty = dict.fromkeys(FIGURES, "")
    types = dict.fromkeys(FIGURES, float)
    rows = pd.read_csv(FOLDER / "published.csv", dtype=types, keep_default_na=False, na_values=empty)
    rows["time_per_epoch_s"] = rows["time_per_epoch_s"].fillna(rows["total_time_s"] / rows["epochs"])
    is_fp32 = rows["precision"] == BASELINE
    fp32 = rows[CELL].merge(rows[is_fp32].drop_duplicates(CELL), on=CELL, how="left")
    fp32.loc[is_fp32, FIGURES] = np.nan
    speedup = fp32["time_per_epoch_s"] / rows["time_per_epoch_s"]
    for name in ("samples_per_s", "tokens_per_s"):
        speedup = speedup.fillna(rows[name] / fp32[name])
    return rows.assign(
        speedup=speedup.fillna(rows["times_as_fast"]),
        accuracy_change=rows["accuracy_pct"] - fp32["accuracy_pct"],
        map50_change=rows["map50_pct"] - fp32["map50_pct"],
    )


def published_table() -> Table | None:
    """Return the table of all published figures."""
    columns = [
        words("model", lambda row: titled(row["model"] or "not named", row["setup"])),
        words("data", "dataset"),
        words("device", _device),
        words("precision", "precision"),
        figures("batch size", "batch_size"),
        figures("speedup over fp32", "speedup", 3),
        *optional(
            figures("time/epoch (s)", "time_per_epoch_s"),
            figures("samples/s", "samples_per_s"),
            figures("tokens/s", "tokens_per_s"),
            figures("memory (MiB)", "memory_mb"),
            figures("accuracy (%)", "accuracy_pct", decimals),
            figures("VOC 2007 mAP (%)", "map50_pct", decimals),
        ),
        words("note", "note", wrap=True),
        words("source", lambda row: row["link"] or row["source"], wrap=True),
    ]
    return table("", records(load_published()), columns, ABOUT)


def _device(row: Row) -> str:
    device = row["gpu"] or "GPU not named"
    if row["n_gpus"] > 1:
        device = f"{row['n_gpus']:.0f} × {device}"
    return titled(device, row["variant"])
