"""Published figures as rows of the summary: what others have measured, next to what runs have measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.report.analysis.contrast import Arm
from bench.report.format import MIB, records, titled
from bench.report.reading.load import KEY
from bench.spec.errors import UsageError
from bench.spec.metrics import ACCURACY, EPOCH, QUALITY, THROUGHPUT, Metric
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[3] / "results" / "published"
WORDS = ["suite", "source", "repository", "path", "commit", "date", "model", "dataset", "setup", "gpu", "architecture"]
WORDS += ["host", "precision", "precision_label", "fp32_mode", "layout", "compile", "unit", "quality_metric", "note"]
FIGURES = ["n_gpus", "batch_size", "epochs", "times_as_fast", "time_per_epoch_s", "total_time_s", "samples_per_s"]
FIGURES += ["value", "spread", "memory_mb", "storage_mb", "quality"]
CELL = ["source", "model", "dataset", "setup", "gpu", "n_gpus", "host", "epochs", "batch_size", "layout", "compile"]
"""Columns in which rows agree that differ in the precision alone; what a source does not state is equal."""
COMPARED = ["time_per_epoch_s", "samples_per_s", "tokens_per_s", "memory_bytes", "accuracy_pct", "quality"]
HOW = {"channels_last": "channels-last", "yes": "compile", "torchscript": "torchscript"}
"""Values of ``layout`` and ``compile`` that are not the usual ones, as the report calls them."""
OTHER_METRIC = {"voc_map50_pct": "VOC 2007 mAP"}
"""Qualities that are no top-1 accuracy."""
DATA = {"CIFAR-10": "cifar10"}
"""Data that runs train on, too, under the name that it has there."""
RECIPE = ["parameters", "parameters_json", "techniques", "workload"]
"""Columns that a published row shares with the measured recipe that it belongs to."""
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

    ``suite`` is empty where no suite has the recipe. ``speedup`` is without an interval, over the fp32 row that agrees
    in ``CELL``: by time per epoch, else by throughput, else as stated.
    """
    is_accuracy = literature["quality_metric"] == "top1_pct"
    each_gpu = literature["unit"].str.endswith("per GPU")
    rows = literature.assign(
        time_per_epoch_s=literature["time_per_epoch_s"].fillna(literature["total_time_s"] / literature["epochs"]),
        total_s=literature["total_time_s"],
        tokens_per_s=literature["value"] * literature["n_gpus"].where(each_gpu, 1.0),
        memory_bytes=MIB * literature["memory_mb"],
        checkpoint_bytes=MIB * literature["storage_mb"],
        accuracy_pct=literature["quality"].where(is_accuracy),
        quality=literature["quality"].where(~is_accuracy),
        quality_name=literature["quality_metric"].map(OTHER_METRIC),
        quality_unit="%",
        quality_better="more",
        quality_margin=0.5,  # as that of an accuracy
    )
    rows = _against_fp32(rows)
    is_timed = rows[["time_per_epoch_s", "samples_per_s", "tokens_per_s", "speedup"]].notna().any(axis=1)
    is_trained = rows[["time_per_epoch_s", "accuracy_pct", "quality"]].notna().any(axis=1)
    rows = rows.assign(
        speed_status=_ok(is_timed),
        memory_status=_ok(rows["memory_bytes"].notna()),
        train_status=_ok(is_trained).mask(rows["note"] == "diverges", "nonfinite"),
        measured_in="published",
        published_by=rows["source"],
        run=rows["source"],
        data=rows["dataset"].replace(DATA),
        device_kind="cuda",
        members="",
        doubts="",
        in_common=False,
        link=_links(rows),
    )
    return _with_arms(_named(rows))


def _against_fp32(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the changes from fp32 as the summary has them, without intervals."""
    baselines = rows[rows["precision"] == BASELINE].drop_duplicates(CELL)
    rows = rows.merge(baselines[[*CELL, *COMPARED]], on=CELL, how="left", suffixes=("", "_fp32"))
    is_other = rows["precision"] != BASELINE
    fp32 = {name: rows.pop(f"{name}_fp32").where(is_other) for name in COMPARED}
    by_epoch = fp32["time_per_epoch_s"] / rows["time_per_epoch_s"]
    speedup = by_epoch
    for rate in ("samples_per_s", "tokens_per_s"):
        speedup = speedup.fillna(rows[rate] / fp32[rate])
    changes = {
        "speedup": speedup.fillna(rows["times_as_fast"]),
        "epoch_speedup": by_epoch,
        "memory_change": rows["memory_bytes"] / fp32["memory_bytes"] - 1,
        ACCURACY.change: rows["accuracy_pct"] - fp32["accuracy_pct"],
        QUALITY.change: rows["quality"] - fp32["quality"],
    }
    ends = dict.fromkeys(["low", "high", "epoch_low", "epoch_high"], np.nan)
    is_learned = changes[ACCURACY.change].notna() | changes[QUALITY.change].notna()
    return rows.assign(**changes, **ends, parity=pd.Series("insufficient seeds", rows.index).where(is_learned))


def _ok(is_measured: pd.Series) -> pd.Series:
    """Return the status of what was measured; NaN of the rest."""
    return pd.Series("ok", is_measured.index, dtype=object).where(is_measured)


def _links(rows: pd.DataFrame) -> pd.Series:
    """Return the address where each row's figures can be read; empty where none is known."""
    on_github = "https://github.com/" + rows["repository"] + "/blob/" + rows["commit"] + "/"
    return on_github.where(rows["repository"] != "", "") + rows["path"]


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Name the workload and the device of each row, so that no two rows of a cell have one precision."""
    alike = [*CELL, "precision"]
    again = rows["precision_label"].where(rows.duplicated(alike), "")
    alike.remove("epochs")
    several_epochs = rows.groupby(alike, sort=False, dropna=False)["epochs"].transform("nunique") > 1
    names: list[dict[str, str]] = []
    for row in records(rows.assign(again=again, several_epochs=several_epochs)):
        how = [row["host"], HOW.get(row["layout"]), HOW.get(row["compile"]), row["again"]]
        how += [f"{row['epochs']:.0f} epochs"] if row["several_epochs"] else []
        count = f"{row['n_gpus']:.0f} × " if row["n_gpus"] > 1 else ""
        device = count + (row["gpu"] or "GPU not named")
        label = titled(device, *how, "published")
        model = row["model"] or "model not named"
        workload = titled(model, row["dataset"], row["setup"], f"published by {row['source']}")
        placement = ", ".join(filter(None, how))
        names.append({"device": device, "placement": placement, "label": label, "where": label, "workload": workload})
    return rows.join(pd.DataFrame(names, rows.index)).assign(parameters="", parameters_json="{}", techniques="")


def _with_arms(rows: pd.DataFrame) -> pd.DataFrame:
    """Add what each row is compared by with rows of other devices: one figure each."""
    rates = rows["samples_per_s"].fillna(rows["tokens_per_s"])
    lines = records(rows)
    for metric, values in ((THROUGHPUT, rates), (EPOCH, rows["time_per_epoch_s"])):
        arms = [_arm(row, value, metric) for row, value in zip(lines, values, strict=True)]
        rows[metric.arm] = pd.Series(arms, rows.index, dtype=object)
    return rows


def _arm(row: Mapping[Hashable, Any], value: float, metric: Metric) -> Arm | None:
    if not metric.is_possible(value):
        return None
    key = tuple(row[name] for name in KEY)
    return Arm(key=key, values=np.array([value]), replicates=[key], alone=np.array([False]))


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
    sources = rows.drop_duplicates(["published_by", "link"])
    read = zip(sources["published_by"], sources["link"], strict=True)
    return [ABOUT, *(f"{source}: {link or 'its address is not known'}." for source, link in read)]
