"""Runs as typed frames: the public way to a run's figures from Python.

The columns of ``trials``, ``blocks``, ``epochs`` and ``numerics`` are those of the CSVs; the columns of ``summary`` are
the keys of its JSON objects. Each column has the dtype that ``DTYPES`` says, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from bench.report.analysis.summary import summarise
from bench.report.exports import data
from bench.report.reading import load as reading
from bench.report.reading.load import CELL, Runs
from bench.results.columns import COLUMNS, Field

Dtype = Literal["string", "category", "Int64", "float64", "boolean"]
"""Words, words that many rows repeat, whole numbers, other numbers, and yes or no. What is unknown is missing; an
unknown word is empty."""


def summary_fields() -> dict[str, data.Field]:
    """Return the columns of the summary, in order."""
    return {name: field for name, field in data.every().items() if field.type != "numbers"}


OF_TYPE: dict[data.Type, Dtype] = {
    "string": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}


def _of_field(field: Field) -> Dtype:
    if field.kind == "number":
        return "Int64" if field.whole else "float64"
    return "boolean" if field.kind == "yes or no" else "string"


def _of_csv(file: str, more: Sequence[str] = ()) -> dict[str, Dtype]:
    """Return the dtypes of a frame: the columns of a CSV with the run first, and some of trials.csv."""
    own, of_trials = COLUMNS[file], COLUMNS["trials.csv"]
    names = dict.fromkeys(("run", *(name for name in own if name != "schema"), *more))
    return {name: _of_field(own.get(name) or of_trials[name]) for name in names}


DTYPES: dict[str, dict[str, Dtype]] = {
    "summary": {name: OF_TYPE[field.type] for name, field in summary_fields().items()},
    "trials": _of_csv("trials.csv"),
    "epochs": _of_csv("epochs.csv", CELL),
    "blocks": {
        name: "category" if dtype == "string" else dtype
        for name, dtype in _of_csv("blocks.csv", ["phase", *CELL]).items()
    },
    "numerics": _of_csv("numerics.csv", ["seed", *CELL]),
}
"""The columns of each frame with their dtypes, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Runs as frames, the rows of all runs in each, told apart by the column ``run``.

    Units are in the columns' names. ``DTYPES`` holds the columns and their dtypes.
    """

    summary: pd.DataFrame
    """One row for each precision of each cell: speed, memory, energy and training side by side."""
    trials: pd.DataFrame
    """One row for each trial and precision, those of ablations last; of a trial that was tried again, the last rows."""
    epochs: pd.DataFrame
    """One row for each epoch of each training, with the columns of its cell."""
    blocks: pd.DataFrame
    """One row for each timed block, with its phase and the columns of its cell."""
    numerics: pd.DataFrame
    """One row for each figure of the numerics phase, with the seed and the columns of its cell."""


def load(*folders: str | Path) -> Results:
    """Read runs into typed frames.

    Args:
        folders: folders that runs wrote, or folders of such folders.

    Raises:
        UsageError: there is none, or one is no run, of another schema version, damaged or without a finished trial.
    """
    return typed(reading.load([Path(folder) for folder in folders]))


def typed(runs: Runs) -> Results:
    """Return the frames of runs that were read."""
    return Results(
        summary=summary(runs.trials),
        trials=_typed(DTYPES["trials"], _joined(runs.trials, runs.ablations)),
        epochs=_typed(DTYPES["epochs"], runs.epochs),
        blocks=_typed(DTYPES["blocks"], _joined(runs.blocks, runs.ablation_blocks)),
        numerics=_typed(DTYPES["numerics"], runs.numerics),
    )


def summary(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the summary of trials in the columns of ``summary_fields``."""
    found = summarise(trials)
    fields = summary_fields()
    lost = [field.column for name, field in fields.items() if name.startswith("lost_")]
    found = found.fillna(dict.fromkeys(lost, 0))
    dtypes = {name: OF_TYPE[field.type] for name, field in fields.items()}
    return _typed(dtypes, pd.DataFrame({name: found[field.column] for name, field in fields.items()}))


def _joined(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return one if other.empty else other if one.empty else pd.concat([one, other], ignore_index=True)


def _typed(dtypes: Mapping[str, Dtype], rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in a frame's columns, with their dtypes."""
    columns = {name: _converted(rows[name], dtype) for name, dtype in dtypes.items()}
    return pd.DataFrame(columns, index=rows.index)


YES_OR_NO: Mapping[object, bool] = {"yes": True, "no": False, True: True, False: False}


def _converted(values: pd.Series, dtype: Dtype) -> pd.Series:
    if dtype == "boolean":
        return values.astype(object).map(YES_OR_NO).astype("boolean")
    if dtype == "category":
        return values.astype("category")
    if dtype == "string":
        return values.astype("string").fillna("")
    return values.astype(float).astype(dtype)
