"""Published figures: those of a measured recipe next to it, with the differences; and those that compare precisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bench.report.analysis.summary import reference_batch
from bench.report.format import MIB, UNKNOWN, change, known, number, ratio, records, signed, source
from bench.report.reading.load import KEY
from bench.report.tables.table import (
    RECIPE,
    Entry,
    Material,
    Row,
    Table,
    decimals,
    figures,
    optional,
    over_fp32,
    table,
    whole,
    words,
)
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[3] / "results" / "published"
WORDS = ["source", "repository", "path", "commit", "date", "model", "dataset", "setup", "gpu", "architecture", "host"]
WORDS += ["precision", "precision_label", "fp32_mode", "layout", "compile", "unit", "quality_metric", "note"]
FIGURES = [
    "n_gpus",
    "batch_size",
    "epochs",
    "times_as_fast",
    "time_per_epoch_s",
    "total_time_s",
    "samples_per_s",
    "value",
    "spread",
]
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
STATED = " (as stated)"
QUALITIES = {"top1_pct": "top-1 accuracy", "voc_map50_pct": "VOC 2007 mAP"}


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
    A row whose source states only how many times as fast it is as fp32 is a pair by itself.

    Returns:
        The columns of the other row, ``row`` (its label in ``literature``), those of the wider one with ``_base``,
        ``times`` (as fast as it; NaN where unknown), ``by`` (the words that follow), ``spread_of_times``, a share, and
        ``points``, by which its quality is higher.
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
    stated = rows[rows["times_as_fast"].notna()].assign(precision_base=BASELINE, note_base="", by=STATED)
    paired = pd.concat([paired, stated.assign(times=stated["times_as_fast"])], ignore_index=True)
    alike = paired["quality_metric"] == paired["quality_metric_base"]
    paired["points"] = (paired["quality"] - paired["quality_base"]).where(alike)
    spreads = [paired[f"spread{end}"] / paired[f"samples_per_s{end}"] for end in ("", "_base")]
    return paired.assign(spread_of_times=np.hypot(spreads[0], spreads[1]))


class Recipe(NamedTuple):
    """A suite's recipe in the literature."""

    model: str
    dataset: str
    parameters: Mapping[str, str] = {}
    """Arguments of the suite that make it the published recipe."""
    otherwise: str = ""
    """The differences from it without them."""
    is_best: bool = False
    """Whether the published accuracy is that of the best epoch, not of the last."""


RECIPES = {
    "resnet50": Recipe(
        "resnet50",
        "CIFAR-10",
        {"recipe": "published"},
        "pixels' standard deviations, a cosine over the run's own steps, initial weights, no small last batch",
        is_best=True,
    ),
    "intel_resnet18": Recipe("resnet18 (ImageNet-pretrained)", "Intel Image Classification"),
    "resnet18": Recipe("resnet18", "CIFAR-10"),
    "vit_b_16": Recipe("vit_b_16", "synthetic 224"),
    "cifar10_resnet18": Recipe("", "CIFAR-10"),
}
"""The recipes by their suites' names; of other suites a row's model bears the suite's name."""


EXPERIMENT = (
    words("source", "source"),
    words("model", "model"),
    words("data", "dataset"),
    *optional(
        words("device", "gpu"),
        figures("GPUs", "n_gpus", whole),
        figures("batch size", "batch_size", whole),
        words("layout", "layout"),
        words("compile", "compile"),
        words("setup", "setup"),
        words("host", "host"),
    ),
    words("precisions", lambda row: f"{row['precision_base']} → {row['precision']}"),
)
"""The columns that name two published rows."""


def comparisons(literature: pd.DataFrame | None) -> list[Table | None]:
    """Return the published ratios and accuracies of rows that differ in nothing but the precision, if there are any."""
    if literature is None:
        return []
    rows = pairs(literature)
    rows = rows.assign(link=links(rows))
    return [_ratios(rows[rows["times"].notna()]), _accuracies(rows[rows["quality_base"].notna()])]


def _ratios(rows: pd.DataFrame) -> Table | None:
    columns = [
        *EXPERIMENT,
        figures("times as fast", lambda row: ratio(row["times"]) + row["by"] * (row["by"] == STATED)),
        *optional(
            figures("its spread", "spread_of_times", lambda spread: f"±{100 * spread:.1f} %"),
            figures("memory", lambda row: change(row["memory_mb"] / row["memory_mb_base"] - 1)),
            words("notes", _notes, wrap=True),
        ),
        words("where", "link", wrap=True),
    ]
    about = (
        "Published rows of one source, model, GPU, number of GPUs, batch size, layout, compile and way of multiplying "
        "fp32, compared by precision; a setting that a source does not state is taken to be the same within its table. "
        "As stated: the source gives the ratio and no times. Its spread: from those of both rows. results/published "
        "has all rows, also those that no other row matches."
    )
    return table("", records(rows), columns, about)


def _accuracies(rows: pd.DataFrame) -> Table | None:
    columns = [
        *EXPERIMENT,
        words("metric", lambda row: QUALITIES.get(row["quality_metric"], row["quality_metric"])),
        figures("of the first (%)", "quality_base", decimals),
        figures("of the second (%)", lambda row: row["quality"] if known(row["quality"]) else row["note"], decimals),
        figures("difference (points)", "points", lambda points: signed(points, 2)),
        words("where", "link", wrap=True),
    ]
    about = (
        "Published accuracies of the same pairs: one figure each, without an interval. VOC's mAP is at an IoU of 0.5, "
        "and compares with nothing else."
    )
    return table("Published accuracies", records(rows), columns, about)


def _notes(row: Row) -> str:
    parts = f"{row['note_base']}; {row['note']}".split("; ")
    return "; ".join(dict.fromkeys(filter(None, parts)))


def compared_with_published(material: Material) -> list[Table | str | None]:
    """Return measured and published figures of one recipe in one table, with their differences as footnotes.

    Where nothing is published of the recipe, return a remark; nothing where published figures were not asked for.
    """
    rows, runs, literature = material.rows, material.runs, material.literature
    if literature is None:
        return []
    suite = str(rows["suite"].iloc[0])
    published = _of(suite, literature)
    if published.empty:
        there = [name for name in RECIPES if len(_of(name, literature))]
        return [f"No published figures are known for the recipe {suite}; there are some for {', '.join(there)}."]
    ours, theirs = _matching(rows, published.sort_values([*SAME, "batch_size"], kind="stable"))
    left = sorted(set(published["batch_size"].dropna()) - set(theirs["batch_size"].dropna()))
    sizes = ", ".join(map(whole, left))
    notes = [f"Published also at batch {sizes}, which was not measured here."] if left else []
    columns = [
        words("source", "source"),
        words("device", "device"),
        figures("GPUs", "n_gpus", 1),
        figures("batch size", "batch_size", whole),
        words("precision", "precision"),
        *optional(
            figures("epochs", "epochs", 1),
            words("data", "dataset"),
            figures("time/epoch (s)", "time_per_epoch_s"),
            figures("total time (s)", "total_time_s"),
            figures("throughput (samples/s)", "samples_per_s"),
            figures("times as fast as its own fp32", "times_as_fast"),
            figures("GPU memory in use (MiB)", "memory_mb"),
            figures("checkpoint (MiB)", "checkpoint", 3),
            figures("accuracy (%)", "accuracy_pct", decimals),
            figures("best epoch, tested in fp32 (%)", "best_pct", decimals),
            words("layout", "layout"),
            words("software", "setup"),
            words("note", "note"),
            words("what differs from the published recipe", "differs", wrap=True),
        ),
    ]
    about = (
        "The same recipe, measured here and published elsewhere. No published figure was measured by this project or "
        "has an interval, and none comes with all of how it was timed. Times as fast: by time per epoch, or by what is "
        "named. Memory in use: here less what was in use before, there all that the GPU's tools showed. Accuracies "
        "compare only at equal epochs on equal data; images of a folder may be re-encoded copies."
    )
    recipe = RECIPES.get(suite, Recipe(suite, ""))
    memory = runs.trials[(runs.trials["phase"] == "memory") & runs.trials["status"].isin(MEASURED)]
    used = dict(memory.groupby(KEY, sort=False)["driver_used_bytes"].max())
    of_seeds = runs.epochs.groupby([*KEY, "seed"], sort=False)["test_accuracy_fp32_pct"].max()
    best = dict(of_seeds.groupby(KEY, sort=False).mean())
    torch = {run.label: run.part("environment").get("torch") for run in runs.runs}
    measured = [
        _measured(row, used)
        | {"setup": f"torch {torch[row['run']] or '–'}", "best_pct": best.get(tuple(row[name] for name in KEY))}
        | {"differs": "; ".join(_differences(row, recipe, theirs))}
        for row in records(ours)
    ]
    lines = [*measured, *_published(theirs, "best_pct" if recipe.is_best else "accuracy_pct")]
    return [table("Compared with published figures", lines, columns, about, notes)]


def _of(suite: str, literature: pd.DataFrame) -> pd.DataFrame:
    """Return the published rows of a suite's recipe."""
    if suite not in RECIPES:
        return literature[literature["model"] == suite]
    recipe = RECIPES[suite]
    return literature[(literature["model"] == recipe.model) & (literature["dataset"] == recipe.dataset)]


def _matching(rows: pd.DataFrame, published: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Keep rows of batch sizes in common; where there are none, the verdict's batch size and all that is published."""
    common = set(rows["batch_size"]) & set(published["batch_size"].dropna())
    if common:
        return rows[rows["batch_size"].isin(common)], published[published["batch_size"].isin([*common, np.nan])]
    return rows[rows["batch_size"] == reference_batch(rows)], published


def _differences(row: Row, recipe: Recipe, published: pd.DataFrame) -> list[str]:
    """Say in what a measured row differs from the published recipe, beyond the other columns."""
    differences, parameters = [], json.loads(row["parameters_json"])
    if any(parameters.get(name) != value for name, value in recipe.parameters.items()):
        settings = " ".join(f"--set {name}={value}" for name, value in recipe.parameters.items())
        differences.append(f"{recipe.otherwise} ({settings} has the published ones)")
    precisions = dict.fromkeys(published["precision"])
    if row["precision"] not in precisions:
        differences.append(f"published are {' and '.join(precisions)}")
    epochs = set(published["epochs"].dropna())
    if known(row["epochs"]) and epochs and row["epochs"] not in epochs:
        differences.append(f"{row['epochs']:.0f} epochs, not {' or '.join(map(whole, sorted(epochs)))}")
    setups = [setup for setup in dict.fromkeys(published["setup"]) if setup]
    return [*differences, *([f"published with {' and with '.join(setups)}"] if setups and recipe.parameters else [])]


def _measured(row: Row, used: dict[Any, float]) -> Row:
    """Return the cells of a measured row."""
    full, half = (number(row[name] / MIB, 3) for name in ("checkpoint_bytes", "checkpoint_16bit_bytes"))
    faster, by_step = over_fp32(row, "epoch_speedup", "epoch_low", "epoch_high"), over_fp32(row)
    return row | {
        "source": f"measured: {row['run']}",
        "dataset": source(str(row["data"])),
        "n_gpus": 0 if row["device_kind"] == "cpu" else len(listed(row["members"])),
        "total_time_s": row["total_s"],
        "times_as_fast": f"{by_step} (by step)" if faster == UNKNOWN != by_step else faster,
        "memory_mb": used.get(tuple(row[name] for name in KEY), float("nan")) / MIB,
        "checkpoint": full if half == UNKNOWN else f"{full} (in 16 bit {half})",
        "layout": "",
        "note": "",
    }


def _published(rows: pd.DataFrame, accuracy: str) -> list[Row]:
    """Return the cells of published rows, their accuracy in the field of that name."""
    over = pairs(rows)
    over = over[(over["precision_base"] == BASELINE) & over["times"].notna()].set_index("row")
    times = over["times"].map(ratio) + over["by"]
    baseline, is_accuracy = rows["precision"] == BASELINE, rows["quality_metric"] == "top1_pct"
    cells = rows.assign(
        device=rows["gpu"] + (" (" + rows["architecture"] + ")").where(rows["architecture"] != "", ""),
        times_as_fast=times.reindex(rows.index).mask(baseline, "baseline"),
        checkpoint=rows["storage_mb"],
        differs="",
        accuracy_pct=np.nan,
        best_pct=np.nan,
    )
    cells[accuracy] = rows["quality"].where(is_accuracy)
    return records(cells)


TABLES = (
    Entry(64, RECIPE, compared_with_published),
    Entry(70, "Published figures", lambda material: comparisons(material.literature)),
)
