"""Published figures as rows of the summary: what others have measured, next to what runs have measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from bench.report.format import MIB, records, titled
from bench.spec.errors import UsageError
from bench.spec.metrics import ACCURACY, EPOCH, QUALITY, SPEED
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[3] / "results" / "published"
WORDS = ["suite", "source", "link", "model", "dataset", "setup", "gpu", "architecture", "variant", "precision", "note"]
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
ABOUT = (
    "Rows whose device is marked (published) were measured by others: one figure each, without an interval. They may "
    "differ in more than the device, as in data, epochs, software and batch size. Their speedup is that of the time "
    "per epoch, else of the throughput, or as the source states it."
)


def load_published(folder: Path = FOLDER) -> pd.DataFrame:
    """Read published.csv of a folder: words, and figures, which are NaN where the field is empty.

    Raises:
        UsageError: it cannot be read, or a figure is no number; with the file and the line.
    """
    file = folder / "published.csv"
    try:
        rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read as published figures: {error}.") from error
    lacking = {*WORDS, *FIGURES}.difference(rows)
    if lacking:
        raise UsageError(f"'{file}', line 1: no column {min(lacking)}.")
    for name in FIGURES:
        numbers = pd.to_numeric(rows[name], errors="coerce")
        is_wrong = numbers.isna() & (rows[name] != "")
        if is_wrong.any():
            raise UsageError(f"'{file}', line {is_wrong.tolist().index(True) + 2}: {name} is no number.")
        rows[name] = numbers
    return rows


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
        quality_name="VOC 2007 mAP",
        quality_unit="%",
        quality_better="more",
        quality_margin=ACCURACY.margin,
        measured_in="published",
        published_by=literature["source"],
        run=literature["source"],
        data=literature["dataset"].replace(DATA),
        placement=literature["variant"],
        parameters="",
        parameters_json="{}",
        techniques="",
        device_kind="cuda",
        members="",
        doubts="",
        in_common=False,
    )
    rows = _named(_against_fp32(rows))
    is_ok = {
        "speed_status": rows[[*SPEEDS, "speedup"]].notna().any(axis=1),
        "memory_status": rows["peak_memory_bytes"].notna(),
        "train_status": rows[["time_per_epoch_s", *LEARNED]].notna().any(axis=1),
    }
    for name, is_measured in is_ok.items():
        rows[name] = pd.Series("ok", rows.index, dtype=object).where(is_measured)
    rows["train_status"] = rows["train_status"].mask(rows["note"] == "diverges", "nonfinite")
    return rows


def _against_fp32(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the changes from the fp32 row of the same cell; a source may state the speedup alone."""
    compared = [*SPEEDS, "peak_memory_bytes", *LEARNED]
    fp32 = rows[rows["precision"] == BASELINE].drop_duplicates(CELL)
    fp32 = rows[CELL].merge(fp32[[*CELL, *compared]], on=CELL, how="left")[compared]
    fp32 = fp32[rows["precision"] != BASELINE].reindex(rows.index)
    by_epoch = fp32["time_per_epoch_s"] / rows["time_per_epoch_s"]
    speedup = by_epoch
    for rate in ("samples_per_s", "tokens_per_s"):
        speedup = speedup.fillna(rows[rate] / fp32[rate])
    learned = rows[LEARNED] - fp32[LEARNED]
    rows = rows.assign(
        speedup=speedup.fillna(rows["times_as_fast"]),
        epoch_speedup=by_epoch,
        memory_change_ratio=rows["peak_memory_bytes"] / fp32["peak_memory_bytes"] - 1,
        accuracy_verdict=pd.Series("insufficient seeds", rows.index).where(learned.notna().any(axis=1)),
        **dict.fromkeys([*SPEED.changes[1:], *EPOCH.changes[1:]], np.nan),
    )
    rows[[ACCURACY.change, QUALITY.change]] = learned
    return rows


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Name the workload and the device of each row."""
    names: list[dict[str, str]] = []
    for row in records(rows):
        count = f"{row['n_gpus']:.0f} × " if row["n_gpus"] > 1 else ""
        device = count + (row["gpu"] or "GPU not named")
        label = titled(device, row["variant"], "published")
        model = row["model"] or "model not named"
        workload = titled(model, row["dataset"], row["setup"], f"published by {row['source']}")
        names.append({"device": device, "label": label, "where": label, "workload": workload})
    return rows.join(pd.DataFrame(names, rows.index))


def beside(summary: pd.DataFrame, literature: pd.DataFrame) -> pd.DataFrame:
    """Return published rows as a report has them: those of a measured suite's recipe in each of its workloads."""
    rows = as_measured(literature)
    recipes = summary.drop_duplicates("workload")[["suite", *RECIPE]]
    is_measured = rows["suite"].isin(recipes["suite"])
    ours = rows[is_measured].drop(columns=RECIPE).merge(recipes, on="suite")
    others = rows[~is_measured]
    return pd.concat([ours, others.assign(suite=others["workload"])], ignore_index=True)


def remarks(rows: pd.DataFrame) -> list[str]:
    """Say how published rows are to be read, and where the figures of each source were read."""
    sources = rows.drop_duplicates(["source", "link"])
    read = zip(sources["source"], sources["link"], strict=True)
    return [ABOUT, *(f"{source}: {link or 'its address is not known'}." for source, link in read)]
