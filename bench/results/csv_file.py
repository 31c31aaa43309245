"""One CSV of a run as a frame, checked: what no measurement gives is refused with the file and the line."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.results.columns import COLUMNS, SCHEMA, Field, check_schema, header_of, rows, whole_lines
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.text import plain, unquoted

PAIR = ["trial", "precision"]
ARM = ["cell", "phase", "replicate", "seed", "arm_precision", "arm_techniques"]
"""The columns that say of which arm a row is, whether it was measured alone or together with others."""


def read(path: Path, words: str = "object", *, checked: bool = True) -> pd.DataFrame:
    """Read one CSV; a torn row at its end is left out, and columns that it lacks are empty.

    Args:
        path: the file; a missing one is empty.
        words: pandas' type of the columns that are not numbers.
        checked: whether to refuse values that no measurement gives.

    Raises:
        UsageError: it is damaged, or refused.
    """
    dtypes: dict[str, Any] = {
        name: float if field.kind == "number" else words for name, field in COLUMNS[path.name].items()
    }
    whole, _ = whole_lines(path)
    first = [fields for _, fields in itertools.islice(rows(path, io.BytesIO(whole)), 2)]
    header = header_of(path, first)
    if len(first) < 2:
        return _empty(tuple(dtypes.items())).copy()
    present = {name: dtype for name, dtype in dtypes.items() if name in header}
    numbers = [name for name, dtype in present.items() if dtype is float]
    try:
        frame = pd.read_csv(
            io.BytesIO(whole),
            usecols=list(present),
            dtype=present,
            keep_default_na=False,
            na_values={name: ["", "nan", "NaN"] for name in numbers},
        )
    except ValueError as error:
        why = _word_for_number(path, whole, numbers) or error
        raise UsageError(f"'{path}' cannot be read: {why}. Repair or remove that line.") from error
    for other in frame.loc[frame["schema"] != SCHEMA, "schema"].iloc[:1]:
        check_schema(path, "" if pd.isna(other) else f"{other:g}")
    frame = _texts(frame, [name for name in present if name not in numbers])
    values = dict(zip(numbers, frame[numbers].to_numpy().T, strict=True))  # a Series a column takes fifty times as long
    for name in present if checked else ():
        _check_column(path, frame, COLUMNS[path.name][name], values.get(name))
    absent = {name: float("nan") if dtypes[name] is float else "" for name in dtypes if name not in frame}
    if absent:
        frame = pd.concat([frame, pd.DataFrame(absent, index=frame.index)], axis=1)
    frame = frame[list(dtypes)]
    return frame if words == "category" else frame.copy()  # defragmented: rows are taken from it hundreds of times


@functools.cache
def _empty(dtypes: tuple[tuple[str, Any], ...]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes}).copy()


def attempts(trials: pd.DataFrame) -> pd.Series:
    """Return which attempt at a trial wrote each row of trials.csv, as numbers that rise: each has a precision once."""
    numbers: list[int] = []
    last, seen, number = "", set[str](), -1
    for config, precision in zip(trials["config"], trials["precision"], strict=True):
        if number < 0 or config != last or precision in seen:
            last, seen, number = config, set(), number + 1
        seen.add(precision)
        numbers.append(number)
    return pd.Series(numbers, index=trials.index, dtype=int)


def stored_whole(trials: pd.DataFrame) -> pd.Series:
    """Say which rows of trials.csv are of attempts with all their rows; where ``trial_rows`` is unknown, they are."""
    there = trials.groupby(attempts(trials), sort=False)["config"].transform("size")
    return ~(there < trials["trial_rows"])


def counting(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of trials.csv that count: those of the last attempt at each trial that was stored whole.

    Arms that failed together are measured alone. When they are measured together after all, that counts instead, unless
    they did not fit into memory.
    """
    whole = trials[stored_whole(trials)]
    arms = whole[ARM].fillna({"replicate": -1}).itertuples(index=False, name=None)
    rows = list(zip(whole.index, attempts(whole), whole["trial"], whole["status"], arms, strict=True))
    kept: list[int] = []
    later, together = set[str](), set[tuple[Any, ...]]()
    for _, group in itertools.groupby(reversed(rows), key=lambda row: row[1]):
        places, _, (trial, *_), statuses, measured = zip(*group, strict=True)
        is_alone = len(places) == 1
        if trial not in later and not (is_alone and measured[0] in together):
            kept += places
            together |= set(measured if not is_alone and "oom" not in statuses else ())
        later.add(trial)
    return whole.loc[sorted(kept)]


def of_counting(rows: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of another CSV that belong to attempts that count, which ``trials`` are."""
    last = trials.drop_duplicates("trial").set_index("trial")["attempt"].fillna(0)
    codes, names = pd.factorize(rows["trial"])
    wanted = last.reindex(names.astype(object)).to_numpy()[codes]
    counted: pd.DataFrame = rows[rows["attempt"].fillna(0).to_numpy() == wanted]
    return counted


def _texts(frame: pd.DataFrame, words: Collection[str]) -> pd.DataFrame:
    """Return a frame with the texts that its cells stand for, plain; the same frame where no cell is another."""
    changed: dict[str, pd.Series] = {}
    for name in words:
        values = frame[name]
        categorical = isinstance(values.dtype, pd.CategoricalDtype)
        if categorical and not pd.api.types.is_string_dtype(values.cat.categories):
            values = changed[name] = values.cat.rename_categories(str)  # pandas makes numbers of those that look so
        known = values.cat.categories if categorical else values.unique()
        texts = {cell: text for cell in known if (text := plain(unquoted(cell))) != cell}
        if texts:
            other = values.astype(object).replace(texts)
            changed[name] = other.astype("category") if categorical else other
    return frame.assign(**changed) if changed else frame


def _word_for_number(path: Path, whole: bytes, numbers: Collection[str]) -> str:
    """Say which line of a file has a word where a number belongs; empty where none has."""
    numbered = rows(path, io.BytesIO(whole))
    _, header = next(numbered)
    for line, fields in numbered:
        row = dict(zip(header, fields, strict=False))
        for name in numbers:
            try:
                float(row.get(name) or "0")
            except ValueError:
                return f"line {line}: {name} '{row[name]}' is no number"
    return ""


def _check_column(path: Path, frame: pd.DataFrame, field: Field, values: NDArray[np.float64] | None) -> None:
    """Refuse values that no measurement gives, with the file, the line and the value; ``values`` are of numbers."""
    name, column = field.name, field.column
    if values is not None:
        for wrong, why in _wrong_numbers(frame, field, values):
            _refuse(path, frame, wrong, name, why)
        return
    if column.filled:
        _refuse(path, frame, frame[name] == "", name, "is empty")
    if field.words:
        _refuse(path, frame, ~frame[name].isin(field.words), name, f"is none of {', '.join(field.words)}")
    if field.kind == "yes or no":
        _refuse(path, frame, ~frame[name].isin(("yes", "no", "")), name, "is neither yes nor no")
    if field.kind == "JSON":
        bad = {cell for cell in frame[name].unique() if cell and not _holds(cell, field.container)}
        wanted = "an object" if field.container is dict else "a list"
        _refuse(path, frame, frame[name].isin(bad), name, f"is not {wanted} in JSON")


def _wrong_numbers(
    frame: pd.DataFrame, field: Field, values: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """Yield which rows have a number that the column cannot have, and why not, one reason at a time."""
    column = field.column
    if field.always:
        yield np.isnan(values), "is missing, so the line was cut off"
    if phase := column.required_in:
        measured = (frame["phase"] == phase) & frame["status"].isin(MEASURED)
        yield np.isnan(values) & measured.to_numpy(), f"is missing in a measured row of phase {phase}"
    if not column.may_diverge:
        yield np.isinf(values), "is infinite"
    if field.whole:
        yield np.floor(values) < values, "is no whole number"
    if column.sign == "above 0":
        yield values <= 0, "must be above 0"
    elif column.sign == "0 or more":
        yield values < 0, "cannot be below 0"
    if column.most is not None:
        yield values > column.most, f"cannot be above {column.most:g}"


def _holds(cell: str, container: type) -> bool:
    """Say whether a cell is JSON of a list or a dict of plain values."""
    try:
        value: Any = json.loads(cell)
    except (ValueError, RecursionError):
        return False
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, container) and not any(isinstance(part, list | dict) for part in parts)


def _refuse(path: Path, frame: pd.DataFrame, wrong: pd.Series | NDArray[np.bool_], name: str, why: str) -> None:
    at = np.flatnonzero(np.asarray(wrong, dtype=bool))
    if len(at):
        value = frame[name].iloc[at[0]]
        shown = "" if pd.isna(value) or value == "" else f" '{value:g}'" if isinstance(value, float) else f" '{value}'"
        more = f" So is it in {len(at) - 1} more lines." if len(at) > 1 else ""
        row, lines = int(frame.index[at[0]]), rows(path, io.BytesIO(whole_lines(path)[0]))
        line, _ = next(itertools.islice(lines, row + 1, None))  # a row may have several lines; the number is the last's
        raise UsageError(
            f"'{path}', line {line}: {name}{shown} {why}.{more} "
            "No measurement gives that: restore the file, or remove the line."
        )
