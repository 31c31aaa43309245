"""Published figures as rows of the summary: what others have measured, next to what runs have measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.report.format import MIB, records, titled
from bench.spec.errors import UsageError
from bench.spec.metrics import ACCURACY, EPOCH, QUALITY, SPEED
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[3] / "results" / "published"
FIGURES = ["n_gpus", "batch_size", "epochs", "times_as_fast", "time_per_epoch_s", "total_time_s", "samples_per_s"]
FIGURES += ["tokens_per_s", "memory_mb", "storage_mb", "accuracy_pct", "map50_pct"]
CELL = ["source", "model", "dataset", "setup", "gpu", "n_gpus", "variant", "batch_size"]
"""Columns in which rows agree that differ in the precision alone; what a source does not state is equal."""
SPEEDS = ["time_per_epoch_s", "samples_per_s", "tokens_per_s"]
"""What a speedup can be of: the first that both rows have."""
LEARNED = ["accuracy_pct", "quality"]
DATA = {"CIFAR-10": "cifar10"}
"""Data that runs train on, too, and its name there."""
RECIPE = ["parameters", "parameters_json", "techniques", "workload"]
"""Columns in which a published row agrees with the measured recipe that it belongs to."""
ALIKE: dict[str, Any] = {
    "measured_in": "published",
    "device_kind": "cuda",
    "parameters": "",
    "parameters_json": "{}",
    "techniques": "",
    "members": "",
    "doubts": "",
    "in_common": False,
    "quality_name": "VOC 2007 mAP",
    "quality_unit": "%",
    "quality_better": "more",
    "quality_margin": ACCURACY.margin,
}
"""Columns of the summary in which all published rows are equal."""
ABOUT = (
    "Rows whose device is marked (published) were measured by others: one figure each, without an interval. They may "
    "differ in more than the device, as in data, epochs, software and batch size. Their speedup is that of the time "
    "per epoch, else of the throughput, or as the source states it."
)


def load_published() -> pd.DataFrame:
    """Read published.csv: words, and figures, which are NaN where the field is empty.

    Raises:
        UsageError: it cannot be read, or a figure is no number.
    """
    file, types = FOLDER / "published.csv", dict.fromkeys(FIGURES, float)
    try:
        return pd.read_csv(file, dtype=types, keep_default_na=False, na_values=dict.fromkeys(FIGURES, ""))
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read as published figures: {error}.") from error


def as_measured(literature: pd.DataFrame) -> pd.DataFrame:
    """Return published rows with the columns of the summary, and those of the literature.

    Changes from fp32 have no interval.
    """
    rows = literature.assign(
        time_per_epoch_s=literature["time_per_epoch_s"].fillna(literature["total_time_s"] / literature["epochs"]),
        total_s=literature["total_time_s"],
        peak_memory_bytes=MIB * literature["memory_mb"],
        checkpoint_bytes=MIB * literature["storage_mb"],
        quality=literature["map50_pct"],
        data=literature["dataset"].replace(DATA),
        placement=literature["variant"],
        run=literature["source"],
        **ALIKE,
    )
    names = pd.DataFrame([_names(row) for row in records(rows)], rows.index)
    rows = _against_fp32(rows).join(names)
    is_ok = {
        "speed_status": rows[[*SPEEDS, "speedup"]].notna().any(axis=1),
        "memory_status": rows["peak_memory_bytes"].notna(),
        "train_status": rows[["time_per_epoch_s", *LEARNED]].notna().any(axis=1),
    }
    for name, is_measured in is_ok.items():
        rows[name] = is_measured.map({True: "ok", False: None})
    rows.loc[rows["note"] == "diverges", "train_status"] = "nonfinite"
    return rows


def _against_fp32(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the changes from the fp32 row of the same cell; a source may state the speedup alone."""
    compared = [*SPEEDS, "peak_memory_bytes", *LEARNED]
    is_fp32 = rows["precision"] == BASELINE
    fp32 = rows[is_fp32].drop_duplicates(CELL)[[*CELL, *compared]]
    fp32 = rows[CELL].merge(fp32, on=CELL, how="left")[compared].set_axis(rows.index)
    fp32[is_fp32] = np.nan
    speedups = rows[SPEEDS] / fp32[SPEEDS]
    speedups["time_per_epoch_s"] = fp32["time_per_epoch_s"] / rows["time_per_epoch_s"]
    learned = rows[LEARNED] - fp32[LEARNED]
    rows = rows.assign(
        speedup=speedups.bfill(axis=1)[SPEEDS[0]].fillna(rows["times_as_fast"]),
        epoch_speedup=speedups["time_per_epoch_s"],
        memory_change_ratio=rows["peak_memory_bytes"] / fp32["peak_memory_bytes"] - 1,
        accuracy_verdict=learned.notna().any(axis=1).map({True: "insufficient seeds", False: None}),
    )
    rows[[ACCURACY.change, QUALITY.change]] = learned
    rows[[*SPEED.changes[1:], *EPOCH.changes[1:]]] = np.nan
    return rows


def _names(row: Mapping[Hashable, Any]) -> dict[str, str]:
    """Name the workload and the device of a row."""
    device = row["gpu"] or "GPU not named"
    if row["n_gpus"] > 1:
        device = f"{row['n_gpus']:.0f} × {device}"
    where = titled(device, row["variant"], "published")
    model = row["model"] or "model not named"
    workload = titled(model, row["dataset"], row["setup"], f"published by {row['source']}")
    return {"device": device, "label": where, "where": where, "workload": workload}


def beside(summary: pd.DataFrame, literature: pd.DataFrame) -> pd.DataFrame:
    """Return published rows as a report has them: those of a measured suite's recipe in each of its workloads."""
    rows = as_measured(literature)
    recipes = summary.drop_duplicates("workload")[["suite", *RECIPE]]
    ours = rows.drop(columns=RECIPE).merge(recipes, on="suite")
    others = rows[~rows["suite"].isin(recipes["suite"])]
    return pd.concat([ours, others.assign(suite=others["workload"])], ignore_index=True)


def remarks(rows: pd.DataFrame) -> list[str]:
    """Say how published rows are to be read, and where the figures of each source were read."""
    sources = rows[["source", "link"]].drop_duplicates().itertuples(index=False)
    return [ABOUT, *(f"{source}: {link or 'its address is not known'}." for source, link in sources)]
