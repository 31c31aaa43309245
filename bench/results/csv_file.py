"""One CSV of a run as a frame with typed columns; what no run writes is refused with the file, line and column."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.results.columns import COLUMNS, LARGE, Field, whole_lines
from bench.spec.errors import UsageError
from bench.spec.text import plain, unquoted

PAIR = ["trial", "precision"]
# The cells of numbers that are not known.
UNKNOWN = ["", "nan", "NaN"]
# The smallest number by ``Column.sign``.
LEAST = {"": -np.inf, "≥ 0": 0.0, "> 0": np.nextafter(0, 1)}


def read(path: Path) -> pd.DataFrame:
    """Read one CSV; a torn row at its end is left out, and columns that it lacks are empty.

    Args:
        path: the file; a missing one is empty.

    Returns:
        The columns of ``COLUMNS``: numbers as float64, others as texts, which are categories in
        large files.

    Raises:
        UsageError: it is damaged, or another program's.
    """
    columns, data = COLUMNS[path.name], whole_lines(path)[0]
    words: Any = "category" if path.name in LARGE else "object"
    types = {name: words for name, field in columns.items() if field.kind != "number"}
    if not data.strip():
        return typed(pd.DataFrame(), columns)
    try:
        frame = pd.read_csv(
            io.BytesIO(data),
            usecols=columns.__contains__,
            dtype=types,
            keep_default_na=False,
            na_values=dict.fromkeys(columns.keys() - types, UNKNOWN),
            low_memory=False,  # a column has one type
        )
    except ValueError as error:
        raise UsageError(f"'{path}' cannot be read: {error}. Restore the file.") from error
    lacking = [name for name, field in columns.items() if field.required and name not in frame]
    if lacking:
        raise UsageError(f"'{path}', line 1 lacks the column {lacking[0]}. Restore the file.")
    for name in types.keys() - {*frame}:
        frame[name] = ""
    frame = frame.reindex(columns=[*columns])
    for name, field in columns.items():
        cells = frame[name]
        if field.kind == "number":
            frame[name] = pd.to_numeric(cells, errors="coerce").astype(float)
            is_valid = _are_valid(frame[name], field)
            if not field.required:
                is_valid |= cells.isna()
        else:
            texts = {cell: plain(unquoted(str(cell))) for cell in cells.unique()}
            frame[name] = cells.map(texts).astype(words)
            is_valid = frame[name].isin([text for text in texts.values() if _is_valid(text, field)])
        if not is_valid.all():
            first = int(
                is_valid.to_numpy().argmin()
            )  # a row is one line, and the header is the first
            cell = cells.iloc[first]
            text = f"{cell:g}".replace("nan", "") if isinstance(cell, float) else str(cell)
            raise UsageError(
                f"'{path}', line {first + 2}: {name} cannot be '{text[:40]}', it must be: "
                f"{field.values}. Restore the file, or remove the line."
            )
    return frame


def typed(rows: pd.DataFrame, columns: Mapping[str, Field]) -> pd.DataFrame:
    """Return rows in some columns: numbers as float64, others as texts. What is missing is empty."""
    types = {name: float if field.kind == "number" else object for name, field in columns.items()}
    words = {name: "" for name, kind in types.items() if kind is object}
    return (
        rows.reindex(columns=[*types]).astype(types).fillna(words).copy()
    )  # in one piece, which is faster


def _are_valid(numbers: pd.Series, field: Field) -> pd.Series:
    """Return which numbers the column may have; NaN is none."""
    largest = np.inf if field.column.may_diverge else np.finfo(float).max
    return numbers.between(max(LEAST[field.column.sign], -largest), largest)


def _is_valid(text: str, field: Field) -> bool:
    """Return whether the column may have a text."""
    if not text:
        return not field.required or text in field.words
    if field.kind == "JSON object":
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False
    words = ("yes", "no") if field.kind == "yes or no" else field.words
    return not words or text in words
