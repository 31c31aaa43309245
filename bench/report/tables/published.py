"""Figures from the literature beside those measured: the same recipe, with a list of what differs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from bench.report.analysis.batches import reference_batch
from bench.report.analysis.literature import SAME, pairs
from bench.report.format import MIB, UNKNOWN, known, number, ratio, records, source
from bench.report.reading.load import KEY, Runs
from bench.report.tables.table import Row, Table, decimals, figures, optional, over_fp32, table, whole, words
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE


class Recipe(NamedTuple):
    """What the literature calls a suite's recipe."""

    model: str
    dataset: str


RECIPES = {
    "resnet50": Recipe("resnet50", "CIFAR-10"),
    "intel_resnet18": Recipe("resnet18 (ImageNet-pretrained)", "Intel Image Classification"),
    "resnet18": Recipe("resnet18", "CIFAR-10"),
    "vit_b_16": Recipe("vit_b_16", "synthetic 224"),
    "cifar10_lightning": Recipe("", "CIFAR-10"),
}
"""A suite that is not here has published figures where a row's model bears its name."""
MEASURED_HERE = "measured"


def published_beside(rows: pd.DataFrame, runs: Runs, literature: pd.DataFrame) -> tuple[Table | None, list[str]]:
    """Return measured and published figures of one recipe in one table, with their differences as footnotes.

    Args:
        rows: rows of the summary, of one workload.
        runs: the runs they come from.
        literature: published rows, as ``load_published`` returns them.

    Returns:
        The table, or None and a remark where nothing is published of this recipe.
    """
    suite = str(rows["suite"].iloc[0])
    found = _of(suite, literature)
    if found.empty:
        there = [name for name in RECIPES if len(_of(name, literature))]
        return None, [f"No published figures are known for the recipe {suite}; there are some for {', '.join(there)}."]
    ours, theirs = _matching(rows, found.sort_values([*SAME, "batch_size"], kind="stable"))
    notes = [_difference(name, ours, group, runs) for name, group in theirs.groupby("source", sort=False)]
    left = sorted(set(found["batch_size"].dropna()) - set(theirs["batch_size"].dropna()))
    notes += [f"Published also at batch {_listed(left)}, which was not measured here."] if left else []
    columns = [
        words("source", "source"),
        words("device", "device"),
        figures("GPUs", "n_gpus", 1),
        figures("batch size", "batch_size", whole),
        words("precision", "precision"),
        *optional(
            figures("epochs", "epochs", 1),
            figures("time/epoch (s)", "time_per_epoch_s"),
            figures("total time (s)", "total_time_s"),
            figures("throughput (samples/s)", "samples_per_s"),
            figures("times as fast as its own fp32", "times_as_fast"),
            figures("GPU memory in use (MiB)", "memory_mb"),
            figures("checkpoint (MiB)", "checkpoint", 3),
            figures("accuracy (%)", "accuracy_pct", decimals),
            words("layout", "layout"),
            words("note", "note"),
        ),
    ]
    about = (
        "The same recipe, measured here and published elsewhere. No published figure was measured by this project or "
        "has an interval, and none comes with all of how it was timed; known differences are listed below. Times as "
        "fast: by time per epoch, or by what is named."
    )
    lines = [*_measured(ours, runs), *_published(theirs)]
    return table("Beside published figures", lines, columns, about, notes), []


def _of(suite: str, literature: pd.DataFrame) -> pd.DataFrame:
    """Return the published rows of a suite's recipe."""
    recipe = RECIPES.get(suite)
    if recipe is None:
        return literature[literature["model"] == suite]
    return literature[(literature["model"] == recipe.model) & (literature["dataset"] == recipe.dataset)]


def _matching(rows: pd.DataFrame, found: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Keep what agrees in batch size; where nothing does, all that is published beside the verdict's batch size."""
    common = set(rows["batch_size"]) & set(found["batch_size"].dropna())
    if common:
        return rows[rows["batch_size"].isin(common)], found[found["batch_size"].isin([*common, np.nan])]
    return rows[rows["batch_size"] == reference_batch(rows)], found


def _measured(rows: pd.DataFrame, runs: Runs) -> Iterator[Row]:
    """Return what each row measured, by the names of the table's columns."""
    memory = runs.trials[(runs.trials["phase"] == "memory") & runs.trials["status"].isin(MEASURED)]
    used = memory.groupby(KEY, sort=False)["driver_used_bytes"].max()
    for row in records(rows):
        full, half = (number(row[name] / MIB, 3) for name in ("checkpoint_bytes", "checkpoint_16bit_bytes"))
        faster, by_step = over_fp32(row, "epoch_speedup", "epoch_low", "epoch_high"), over_fp32(row)
        if faster == UNKNOWN and by_step != UNKNOWN:
            faster = f"{by_step} (by step)"
        yield row | {
            "source": f"{MEASURED_HERE}: {row['run']}",
            "n_gpus": _gpus(row),
            "total_time_s": row["total_s"],
            "times_as_fast": faster,
            "memory_mb": used.get(tuple(row[name] for name in KEY), float("nan")) / MIB,
            "checkpoint": full if half == UNKNOWN else f"{full} (in 16 bit {half})",
            "layout": "",
            "note": "",
        }


def _gpus(row: Row | pd.Series) -> int:
    """Count the GPUs of a row of the summary."""
    return 0 if row["device_kind"] == "cpu" else len(listed(row["members"]))


def _published(rows: pd.DataFrame) -> Iterator[Row]:
    """Return published rows by the names of the table's columns."""
    over = {pair.other["row"]: pair for pair in pairs(rows) if pair.base["precision"] == BASELINE and not pair.differs}
    for at, row in zip(rows.index, records(rows), strict=True):
        times, by = over[at].speedup if at in over else (float("nan"), "")
        yield row | {
            "device": f"{row['gpu']} ({row['architecture']})" if row["architecture"] else row["gpu"],
            "times_as_fast": "baseline" if row["precision"] == BASELINE else ratio(times) + by * known(times),
            "checkpoint": row["storage_mb"],
            "accuracy_pct": row["quality"] if row["quality_metric"] == "top1_pct" else None,
        }


def _difference(name: object, ours: pd.DataFrame, theirs: pd.DataFrame, runs: Runs) -> str:
    """Describe how the measured rows differ from those of one source."""
    epochs = _unlike("epochs", ours["epochs"].dropna(), theirs["epochs"].dropna())
    data = _unlike("data", ours["data"].map(source), theirs["dataset"])
    parts = [
        _unlike("device", ours["device"], theirs["gpu"]),
        _unlike("GPUs", ours.apply(_gpus, axis=1), theirs["n_gpus"].dropna()),
        _unlike("batch size", ours["batch_size"], theirs["batch_size"].dropna()),
        epochs,
        data,
        _unlike("precision", ours["precision"], theirs["precision"]),
    ]
    if changed := _unique(ours["parameters"]):
        parts.append(f"recipe: here with {_listed(changed)}")
    used = [run.part("environment").get("torch") for run in runs.runs if run.label in set(ours["run"])]
    versions = _listed(dict.fromkeys(version or "of unknown version" for version in used))
    setups = _listed(_unique(theirs["setup"]))
    parts.append(f"software: here torch {versions}, there {setups or 'not stated'}")
    if theirs["memory_mb"].notna().any():
        parts.append("memory: here less what was in use before, there all that the GPU's tools showed")
    text = f"What differs from {name}: {'; '.join(filter(None, parts))}."
    if ours["data"].str.startswith("folder:").any():
        text += " Images of a folder may be re-encoded copies, such as JPEG: other pixels, and decoded in another time."
    if theirs["quality"].notna().any() and (epochs or data):
        text += " Accuracies therefore do not compare."
    return text


def _unlike(what: str, here: pd.Series, there: pd.Series) -> str:
    """Describe the difference of two sets of values, case and punctuation aside; empty where there is none."""
    mine, other = _unique(here), _unique(there)
    if {_plain(value) for value in mine} == {_plain(value) for value in other}:
        return ""
    return f"{what}: here {_listed(mine) or 'none'}, there {_listed(other) or 'not stated'}"


def _unique(values: pd.Series) -> list[object]:
    return [value for value in dict.fromkeys(values) if value != ""]


def _plain(value: object) -> str:
    return re.sub(r"[^a-z0-9]", "", _text(value).lower())


def _text(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def _listed(values: Iterable[object]) -> str:
    *most, last = [_text(value) for value in values] or [""]
    return f"{', '.join(most)} and {last}" if most else last
