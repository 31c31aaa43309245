"""The literature: published figures, the ratios that they allow, and how far sources differ about one figure."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bench.report.format import known, records
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE

FOLDER = Path(__file__).parents[3] / "results" / "published"
WORDS = ["source", "repository", "path", "commit", "date", "model", "dataset", "setup", "gpu", "architecture", "host"]
WORDS += ["precision", "precision_label", "fp32_mode", "layout", "compile", "unit", "quality_metric", "note"]
FIGURES = ["n_gpus", "batch_size", "epochs", "time_per_epoch_s", "total_time_s", "samples_per_s", "value", "spread"]
FIGURES += ["memory_mb", "storage_mb", "quality"]
SAME = ["source", "model", "dataset", "setup", "gpu", "n_gpus", "host", "epochs"]
"""Rows that agree in these are of one experiment in several precisions."""
MATCHED = {"batch_size": "batch size", "layout": "layout", "compile": "compile", "fp32_mode": "fp32 products"}
"""What rows must agree in, too, before their ratio is one of precisions alone, with its name."""
WIDER = (BASELINE, "tf32", "bf16-master")
"""Precisions that others are compared with, where a source has them."""
MIXED = {"amp-fp16": "mixed precision", "fp16-master": "mixed precision"}
"""What sources call alike."""
TIMES = {"time_per_epoch_s": "", "total_time_s": " (by total time)"}
RATES = {"samples_per_s": " (by throughput)", "value": " (by throughput)"}
"""Columns that a ratio can be taken of, the one to prefer first, and what is said of it."""
MATRIX = "suvojit-0x55aa/mixed-precision-pytorch"
"""The source that publishes a matrix of its setups' speedups."""


class Pair(NamedTuple):
    """Two published rows of one experiment: a wider precision, and another."""

    base: dict[Hashable, Any]
    other: dict[Hashable, Any]

    @property
    def differs(self) -> tuple[str, ...]:
        """What they differ in beside the precision, by name; of tf32 the fp32 mode is the precision."""
        return tuple(
            name
            for column, name in MATCHED.items()
            if self.base[column] != self.other[column]
            and (known(self.base[column]) or known(self.other[column]))
            and not (column == "fp32_mode" and self.other["precision"] == "tf32")
        )

    @property
    def speedup(self) -> tuple[float, str]:
        """How many times as fast the other row is, and by what if not by time per epoch; NaN where it is unknown."""
        for column, by in (TIMES | RATES).items():
            before, after = self.base[column], self.other[column]
            if known(before) and known(after) and self.base["unit"] == self.other["unit"]:
                return (after / before if column in RATES else before / after), by
        return math.nan, ""

    @property
    def spread(self) -> float:
        """The speedup's spread as a share of it, from those of both throughputs; NaN where one is unknown."""
        return math.hypot(*(row["spread"] / row["samples_per_s"] for row in self))


class Figure(NamedTuple):
    """What several sources publish as if it were one figure: a model's speedup on a GPU."""

    model: str
    gpu: str
    n_gpus: float | None
    base: str
    other: str


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
    found = []
    for file in files:
        try:
            found.append(pd.read_csv(file, usecols=[*types], dtype=types, keep_default_na=False, na_values=missing))
        except ValueError as error:
            raise UsageError(f"'{file}' cannot be read as published figures: {error}.") from error
    return pd.concat(found, ignore_index=True)


def link(row: dict[Hashable, Any]) -> str:
    """Return the address where a row's figures can be read; empty where none is known."""
    if row["repository"]:
        return f"https://github.com/{row['repository']}/blob/{row['commit']}/{row['path']}"
    return str(row["path"])


def pairs(literature: pd.DataFrame) -> list[Pair]:
    """Pair each published row with those of a wider precision in the same experiment.

    The wider one is that which differs in nothing else; where there is none, the one of its precision that differs in
    the fewest ways, unless there are several. A row has its label in ``literature`` as ``row``.
    """
    found = []
    for _, group in literature.reset_index(names="row").groupby(SAME, sort=False, dropna=False):
        rows = records(group)
        for rank, wider in enumerate(WIDER):
            bases = [row for row in rows if row["precision"] == wider]
            for other in rows:
                if other["precision"] not in WIDER[: rank + 1]:
                    candidates = [Pair(base, other) for base in bases]
                    fewest = min((len(pair.differs) for pair in candidates), default=0)
                    closest = [pair for pair in candidates if len(pair.differs) == fewest]
                    found += closest[:1] if not fewest or len(closest) == 1 else []
    return found


def same_figures(literature: pd.DataFrame) -> dict[Figure, list[Pair]]:
    """Return what at least two sources publish, each figure with the pairs of rows that tell it.

    A figure is named as people name it, "BERT on a V100": sizes and tasks of a model, the memory of a GPU, and all
    that ``MATCHED`` names may differ.
    """
    found: dict[Figure, list[Pair]] = {}
    for pair in pairs(literature):
        if known(pair.speedup[0]):
            kinds = (MIXED.get(str(row["precision"]), str(row["precision"])) for row in pair)
            gpus = pair.base["n_gpus"] if known(pair.base["n_gpus"]) else None
            figure = Figure(_family(pair.base["model"]), _chip(pair.base["gpu"]), gpus, *kinds)
            found.setdefault(figure, []).append(pair)
    return {figure: told for figure, told in found.items() if len({pair.base["source"] for pair in told}) > 1}


def published_matrix(literature: pd.DataFrame) -> pd.DataFrame:
    """Recompute the matrix of ``MATRIX``: by how many per cent a row's setup is faster than a column's, 0 if slower.

    It is of the time per epoch, 100 · (column ÷ row − 1), and leaves out the K80, the first row and the last column,
    as the source does.
    """
    rows = literature[(literature["source"] == MATRIX) & (literature["architecture"] != "Kepler")]
    names = [
        f"{row['n_gpus']:.0f}x{_chip(row['gpu'])}:{'FP32' if row['precision'] == BASELINE else 'FP16'}"
        for row in records(rows)
    ]
    seconds = rows["time_per_epoch_s"].to_numpy()
    percent = np.maximum(100 * (seconds[np.newaxis, :] / seconds[:, np.newaxis] - 1), 0)
    return pd.DataFrame(percent, index=names, columns=names).iloc[1:, :-1]


def _family(model: str) -> str:
    """Return a model's name without its size: bert of bert-large, llama3 of llama3-8b."""
    found = re.match(r"[A-Za-z]+\d*", model)
    return found[0] if found else model


def _chip(gpu: str) -> str:
    """Return a GPU's name without its memory and its form: V100 of Tesla V100 and of V100-16GB."""
    return gpu.removeprefix("Tesla ").split("-")[0]
