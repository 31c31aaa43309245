"""One CSV of a run as a frame with typed columns.

What no run writes is refused with the file, line and column.
"""

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
    columns = COLUMNS[path.name]
    data, _ = whole_lines(path)
    if not data.strip():
        return typed(pd.DataFrame(), columns)
    words: Any = "category" if path.name in LARGE else "object"
    types = {name: words for name, field in columns.items() if field.kind != "number"}
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
    for name, field in columns.items():
        if name in frame:
            frame[name] = _checked(frame[name], field, path)
        elif field.required:
            raise UsageError(f"'{path}', line 1 lacks the column {name}. Restore the file.")
        else:
            frame[name] = np.nan if field.kind == "number" else ""
    return frame[[*columns]]


def typed(rows: pd.DataFrame, columns: Mapping[str, Field]) -> pd.DataFrame:
    """Return rows in some columns: numbers as float64, others as texts; the rest is empty."""
    unknown = pd.Series(np.nan, rows.index)
    empty = pd.Series("", rows.index, dtype=object)
    cells = {}
    # A column at a time: to convert many of different types at once is slower.
    for name, field in columns.items():
        is_number = field.kind == "number"
        if name not in rows:
            cells[name] = unknown if is_number else empty
        elif is_number:
            cells[name] = rows[name].astype(float)
        else:
            cells[name] = rows[name].astype(object).fillna("")
    return pd.DataFrame(cells)


def _checked(cells: pd.Series, field: Field, path: Path) -> pd.Series:
    """Return a column of a file as numbers or texts.

    Raises:
        UsageError: a cell has a value that the column may not have.
    """
    if field.kind == "number":
        column = pd.to_numeric(cells, errors="coerce").astype(float)
        largest = np.inf if field.column.may_diverge else np.finfo(float).max
        values = column.to_numpy()
        is_valid = (values >= max(LEAST[field.column.sign], -largest)) & (values <= largest)
        if not field.required:
            is_valid |= cells.isna().to_numpy()
    else:
        texts = {cell: plain(unquoted(str(cell))) for cell in cells.unique()}
        column = cells
        if any(cell != text for cell, text in texts.items()):
            words: Any = "category" if isinstance(cells.dtype, pd.CategoricalDtype) else "object"
            column = cells.map(texts).astype(words)
        valid = [text for text in texts.values() if _is_valid(text, field)]
        is_valid = column.isin(valid).to_numpy()
    if is_valid.all():
        return column
    first = int(is_valid.argmin())
    cell = cells.iloc[first]
    text = f"{cell:g}".replace("nan", "") if isinstance(cell, float) else str(cell)
    raise UsageError(  # a row is one line, and the header is the first
        f"'{path}', line {first + 2}: {field.name} cannot be '{text[:40]}', it must be: "
        f"{field.values}. Restore the file, or remove the line."
    )


def _is_valid(text: str, field: Field) -> bool:
    """Return whether a column of texts may have this one."""
    if not text:
        return not field.required or text in field.words
    if field.kind == "JSON object":
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False
    words = ("yes", "no") if field.kind == "yes or no" else field.words
    return not words or text in words
