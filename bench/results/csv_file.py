"""One CSV of a run as a frame with typed columns; what no run writes is refused with the file, line and column."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.results.columns import COLUMNS, KINDS, LARGE, Field, whole_lines
from bench.spec.errors import UsageError
from bench.spec.text import plain, unquoted

PAIR = ["trial", "precision"]
UNKNOWN = ["", "nan", "NaN"]
"""The cells of numbers that are not known."""


def read(path: Path) -> pd.DataFrame:
    """Read one CSV; a torn row at its end is left out, and columns that it lacks are empty.

    Args:
        path: the file; a missing one is empty.

    Returns:
        The columns of ``COLUMNS``: numbers as float64, others as texts, which are categories in large files.

    Raises:
        UsageError: it is damaged, or another program's.
    """
    columns, data = COLUMNS[path.name], whole_lines(path)[0]
    words: Any = "category" if path.name in LARGE else "object"
    dtypes: dict[str, Any] = {name: float if field.kind == "number" else words for name, field in columns.items()}
    if not data.strip():
        return pd.DataFrame(columns=[*columns]).astype(dtypes)
    numbers = [name for name, dtype in dtypes.items() if dtype is float]
    unknown = dict.fromkeys(numbers, UNKNOWN)
    parse: Any = partial(pd.read_csv, usecols=columns.__contains__, keep_default_na=False, na_values=unknown)
    try:
        frame: pd.DataFrame = parse(io.BytesIO(data), dtype=dtypes)
    except ValueError as error:
        with suppress(ValueError):  # it may be no CSV at all
            texts: pd.DataFrame = parse(io.BytesIO(data), dtype=str)
            for name in texts.columns.intersection(numbers):
                is_number = pd.to_numeric(texts[name], errors="coerce").notna() | texts[name].isna()
                _require(is_number.to_numpy(), texts[name], columns[name], path)
        raise UsageError(f"'{path}' cannot be read: {error}. Restore the file.") from error
    for name, field in columns.items():
        if name not in frame:
            if field.required:
                raise UsageError(f"'{path}', line 1 lacks the column {name}. Restore the file.")
            frame[name] = np.nan if field.kind == "number" else ""
        if field.kind == "number":
            valid = _are_valid_numbers(frame[name].to_numpy(), field)
        else:
            plain_texts = {cell: plain(unquoted(str(cell))) for cell in frame[name].unique()}
            frame[name] = frame[name].map(plain_texts).astype(words)
            valid = frame[name].isin([text for text in plain_texts.values() if _is_valid(text, field)]).to_numpy()
        _require(valid, frame[name], field, path)
    return frame[[*columns]]


def typed(rows: pd.DataFrame, columns: Mapping[str, Field]) -> pd.DataFrame:
    """Return rows in some columns: numbers as float64, others as texts. What is missing is empty."""
    types = {name: float if field.kind == "number" else object for name, field in columns.items()}
    words = {name: "" for name, kind in types.items() if kind is object}
    return rows.reindex(columns=[*types]).astype(types).fillna(words).copy()  # in one piece, which is faster


def _require(valid: NDArray[np.bool_], cells: pd.Series, field: Field, path: Path) -> None:
    """Raise a UsageError about the first cell that is not valid, of which no more than its beginning is repeated."""
    if valid.all():
        return
    first = int(np.argmin(valid))
    cell = cells.iloc[first]
    text = f"{cell:g}".replace("nan", "") if isinstance(cell, float) else str(cell)
    raise UsageError(  # a row is one line, and the header is the first
        f"'{path}', line {first + 2}: {field.name} cannot be '{text[:40]}', it must be: {field.values}. "
        "Restore the file, or remove the line."
    )


def _are_valid_numbers(values: NDArray[np.float64], field: Field) -> NDArray[np.bool_]:
    """Return which values the column may have."""
    most = np.inf if field.column.may_diverge else np.finfo(float).max
    least = {"": -most, "≥ 0": 0.0, "> 0": np.nextafter(0, 1)}[field.column.sign]
    valid: NDArray[np.bool_] = (least <= values) & (values <= most)
    if field.whole:
        valid &= values == np.floor(values)
    return valid if field.required else valid | np.isnan(values)


def _is_valid(cell: str, field: Field) -> bool:
    """Return whether the column may have a text."""
    if field.kind.startswith("JSON"):
        try:
            return not cell or KINDS.get(type(json.loads(cell))) == field.kind
        except (ValueError, RecursionError):
            return False
    words = ("yes", "no", "") if field.kind == "yes or no" else field.words
    return cell in words if words else bool(cell) or not field.required
