"""Runs as frames, the public way to their figures from Python, and their rows as JSON.

A frame is a pandas DataFrame: ``Results`` names them. Most have the rows of one kind of CSV, of all
runs, with its columns; the summary has those of ``analysis.summary.summarise``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bench.report.reading.load import Runs
from bench.spec.text import quoted

# A value in a JSON object. None stands for what is unknown, and for figures that are not finite,
# because JSON has no such numbers.
Json = str | int | float | bool | None
# Columns of the summary that only a report needs. Columns that end with _arm, which hold objects,
# are left out, too.
INTERNAL = (
    "rank",
    "generation",
    "in_common",
    "disturbed",
    "one_of_many",
    "power_capped",
    "timed_processes",
    "diverged_seeds",
    "slug",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Runs as frames, the rows of all runs in each, with the column ``run``.

    Units are in the columns' names. Words have the dtype ``string``, those of blocks ``category``,
    numbers a dtype of numpy; what is unknown is missing, an unknown word is empty.
    """

    summary: pd.DataFrame
    """One row for each precision of each cell: speed, memory, energy and training side by side."""
    trials: pd.DataFrame
    """One row for each trial and precision, those of ablations last; of a trial that was tried
    again, the last rows."""
    epochs: pd.DataFrame
    """One row for each epoch of each training, with the columns of its cell."""
    blocks: pd.DataFrame
    """One row for each timed block, with its phase and the columns of its cell."""
    details: Mapping[str, pd.DataFrame]
    """The rows of the other CSVs with details, such as ``numerics_figures``, by their names, in the
    same way."""
    telemetry: pd.DataFrame
    """One row for each reading of a GPU: its clocks, power, temperature and memory, see
    telemetry.csv."""


def results(runs: Runs, summary: pd.DataFrame) -> Results:
    """Return the frames of runs that were read, and of their summary."""
    details = {name: public(frame) for name, frame in runs.details.items() if name != "blocks"}
    blocks = runs.details["blocks"]
    return Results(
        summary=arms(summary),
        trials=public(runs.tried()),
        epochs=details.pop("epochs"),
        blocks=blocks.astype(dict.fromkeys(_words(blocks), "category")),
        details=details,
        telemetry=public(runs.telemetry),
    )


def _words(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame.select_dtypes(include=["object", "str"])]


def arms(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the summary with the columns that concern other programs."""
    of_arms = [name for name in summary if str(name).endswith("_arm")]
    return public(summary.drop(columns=[*INTERNAL, *of_arms]))


def public(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose words are strings, empty where they are unknown."""
    words = {name: frame[name].astype("string").fillna("") for name in _words(frame)}
    return frame.assign(**words)


def as_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV: numbers with all digits, and texts quoted for spreadsheets."""
    # A spreadsheet would run a text that begins with = as a formula.
    words = frame.select_dtypes(include=["string"])
    csv: str = frame.assign(**words.map(quoted)).to_csv(index=False, lineterminator="\n")
    return csv


def rows(frame: pd.DataFrame) -> list[dict[str, Json]]:
    """Return the rows of a frame as JSON has them."""
    columns = {}
    for name in frame:
        columns[str(name)] = list(map(_value, frame[name].astype(object)))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _value(value: Any) -> Json:
    if pd.isna(value) or value == "":
        return None
    known: Json = value.item() if isinstance(value, np.generic) else value
    if not isinstance(known, float):
        return known
    if not math.isfinite(known):
        return None
    # Columns with unknown counts hold them as floats.
    return int(known) if known.is_integer() else known
