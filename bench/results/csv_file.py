"""One CSV of a run as a frame with typed columns; what no run writes is refused with the file, line and column."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.results.columns import COLUMNS, LARGE, Field, whole_lines
from bench.spec.errors import UsageError
from bench.spec.text import plain, unquoted

PAIR = ["trial", "precision"]
ATTEMPT = ["trial", "attempt"]
"""The columns that say of which attempt at which trial a row is."""
ARM = ["cell", "phase", "replicate", "seed", "arm_precision", "arm_techniques"]
"""The columns that say of which arm a row is, whether it was measured alone or together with others."""
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
    fields, data = COLUMNS[path.name], whole_lines(path)[0]
    words = "category" if path.name in LARGE else "object"
    dtypes: dict[str, Any] = {name: float if field.kind == "number" else words for name, field in fields.items()}
    numbers = [name for name, dtype in dtypes.items() if dtype is float]
    if not data.strip():
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes.items()})
    try:
        frame = pd.read_csv(
            io.BytesIO(data),
            usecols=fields.__contains__,
            dtype=dtypes,
            keep_default_na=False,
            na_values=dict.fromkeys(numbers, UNKNOWN),
        )
    except ValueError as error:
        for line, row in rows(path):
            for name in numbers:
                if not _is_number(row.get(name)):
                    _refuse(path, line, fields[name], row[name])
        raise UsageError(f"'{path}' cannot be read: {error}. Restore the file.") from error
    for name, field in fields.items():
        if field.required and name not in frame:
            raise UsageError(f"'{path}', line 1 lacks the column {name}. Restore the file.")
    known = {name: frame[name] if dtypes[name] is float else _texts(frame[name]) for name in dtypes if name in frame}
    for name, cells in known.items():
        wrong = np.flatnonzero(~_are_valid(cells, fields[name]))
        if len(wrong):
            line, row = next(itertools.islice(rows(path), int(wrong[0]), None))
            _refuse(path, line, fields[name], row.get(name))
    absent = {name: pd.Series(np.nan if dtypes[name] is float else "", frame.index) for name in dtypes}
    return pd.DataFrame({name: known.get(name, absent[name]) for name in dtypes})


def rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV as texts, each with the number of its line; empty lines are skipped.

    Raises:
        UsageError: a cell is longer than any that a run writes.
    """
    text = whole_lines(path)[0].decode(errors="surrogateescape")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        line = reader.reader.line_num
        raise UsageError(f"'{path}', line {line} cannot be read: {error}. Restore the file.") from error


def _texts(cells: pd.Series) -> pd.Series:
    """Return the plain texts that cells stand for."""
    texts = {cell: plain(unquoted(str(cell))) for cell in cells.unique()}
    if all(cell == text for cell, text in texts.items()):
        return cells
    return cells.astype(object).map(texts).astype(cells.dtype if cells.dtype == object else "category")


def _is_number(cell: str | None) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _are_valid(cells: pd.Series, field: Field) -> NDArray[np.bool_]:
    """Return which cells have a value that the column may have."""
    if field.kind == "number":
        values = cells.to_numpy()
        lowest = {"any": -np.inf, "0 or more": 0.0, "above 0": np.nextafter(0, 1)}[field.column.sign]
        within = (values >= lowest) & (values <= np.inf if field.column.may_diverge else np.abs(values) < np.inf)
        valid: NDArray[np.bool_] = within | (np.isnan(values) & (not field.required))
        return valid
    allowed = {cell for cell in cells.unique() if _is_valid(cell, field)}
    return cells.isin(allowed).to_numpy()


def _is_valid(cell: str, field: Field) -> bool:
    if field.kind == "JSON":
        try:
            return not cell or isinstance(json.loads(cell), field.container)
        except (ValueError, RecursionError):
            return False
    words = ("yes", "no", "") if field.kind == "yes or no" else field.words
    return cell in words if words else bool(cell) or not field.required


def _refuse(path: Path, line: int, field: Field, cell: str | None) -> None:
    """Raise a UsageError about a cell, of which no more than its beginning is repeated."""
    raise UsageError(
        f"'{path}', line {line}: {field.name} cannot be '{(cell or '')[:40]}', it is: {field.values}. "
        "Restore the file, or remove the line."
    )


def stored_whole(trials: pd.DataFrame) -> pd.Series:
    """Return which rows of trials.csv are of attempts with all their rows."""
    return trials.groupby(ATTEMPT)["config"].transform("size") >= trials["trial_rows"]


def counting(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of trials.csv that count: those of the last attempt at each trial that was stored whole.

    Arms that failed together are measured alone. When they are measured together after all, that counts instead, unless
    they did not fit into memory.
    """
    whole = trials[stored_whole(trials)]
    arms = whole[ARM].fillna({"replicate": -1}).itertuples(index=False, name=None)
    every = list(zip(whole.index, whole["trial"], whole["attempt"], whole["status"], arms, strict=True))
    kept: list[int] = []
    later, together = set[str](), set[tuple[Any, ...]]()
    for (trial, _), group in itertools.groupby(reversed(every), key=lambda row: row[1:3]):
        places, _, _, statuses, measured = zip(*group, strict=True)
        is_alone = len(places) == 1
        if trial not in later and not (is_alone and measured[0] in together):
            kept += places
            if not is_alone and "oom" not in statuses:
                together |= set(measured)
        later.add(trial)
    return whole.loc[sorted(kept)]


def of_counting(rows: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of another CSV that belong to attempts that count, which ``trials`` are."""
    last = trials.drop_duplicates("trial").set_index("trial")["attempt"]
    codes, names = pd.factorize(rows["trial"])
    counted: pd.DataFrame = rows[rows["attempt"].to_numpy() == last.reindex(names.astype(object)).to_numpy()[codes]]
    return counted
