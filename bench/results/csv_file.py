"""One CSV of a run as a frame, checked: what no measurement gives is refused with the file and the line."""

from __future__ import annotations

import codecs
import io
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.results.columns import COLUMNS, SCHEMA, Field, check_schema
from bench.results.csv_rows import header_of, rows
from bench.results.records import MEASURED, WorkClass
from bench.results.relations import WITHIN
from bench.spec.errors import UsageError
from bench.spec.text import plain, unquoted

PIB = 2**50
"""Bytes that no machine has."""
PAIR = ["trial", "precision"]
FATES = r"nonzero|zero|subnormal|overflow"
FIGURES = {
    "step": "loss|loss_scale|skipped|finite",
    "gradient": r"-?\d+|zero|below|above|nonfinite",
    "float16": FATES,
    "float16_scaled": FATES,
    "error": "loss|output|gradient",
    "activation": "largest",
}
"""The names of numerics.csv's figures by their kind, as regular expressions."""
EXPLAINED = {
    "step": "timed|profiled|doubled|not doubled|kernels|operators|skipped|waiting|foreign load|hidden communication",
    "class": "|".join(get_args(WorkClass)),
    "rate": "products TFLOP/s|copies GB/s|casts GB/s",
    "types": r"\w+",
    **dict.fromkeys(
        ("operator", "alone", "product", "best", "cached", "flops", "bytes", "channels-last", "padded"), ".+"
    ),
}
"""The same of explain.csv."""
NAMES = {"numerics.csv": FIGURES, "explain.csv": EXPLAINED}


def read(path: Path, words: str = "object") -> pd.DataFrame:
    """Read one CSV; an incomplete last line, which a crash leaves, is left out.

    Args:
        path: the file; a missing one is empty.
        words: pandas' type of the columns that are not numbers.

    Raises:
        UsageError: it is damaged, or holds values that no measurement gives.
    """
    frame = read_unchecked(path, words)
    _check(path, frame)
    return _with_absent_columns(path, frame, words)


def read_unchecked(path: Path, words: str = "object") -> pd.DataFrame:
    """Read one CSV as ``read`` does, but for values that no measurement gives, and without columns that it lacks.

    Raises:
        UsageError: it is damaged.
    """
    dtypes = _dtypes(path.name, words)
    whole = _whole_lines(path)
    header = header_of(path, itertools.islice(rows(path, io.BytesIO(whole)), 2))
    if not header:
        return _without_rows(path.name, words).copy()
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
    if words != "category":  # as the blocks are, of which there may be millions
        _refuse_short_lines(path, whole, len(frame))
    return _texts(frame, [name for name in present if name not in numbers])


def _dtypes(name: str, words: str) -> dict[str, Any]:
    return {field.name: float if field.kind == "number" else words for field in COLUMNS[name].values()}


def _with_absent_columns(path: Path, frame: pd.DataFrame, words: str) -> pd.DataFrame:
    """Return a frame with all columns of its file, those that the file lacks empty."""
    dtypes = _dtypes(path.name, words)
    absent = {name: float("nan") if dtypes[name] is float else "" for name in dtypes if name not in frame}
    if absent:
        frame = pd.concat([frame, pd.DataFrame(absent, index=frame.index)], axis=1)[list(dtypes)]
    return frame if words == "category" else frame.copy()  # defragmented: rows are taken from it hundreds of times


def attempts(trials: pd.DataFrame) -> pd.Series:
    """Return which end of a trial wrote each row of trials.csv, as numbers: each precision is in one once."""
    numbers: list[int] = []
    last, seen, number = "", set[str](), -1
    for config, precision in zip(trials["config"], trials["precision"], strict=True):
        if number < 0 or config != last or precision in seen:
            last, seen, number = config, set(), number + 1
        seen.add(precision)
        numbers.append(number)
    return pd.Series(numbers, index=trials.index, dtype=int)


def stored_whole(trials: pd.DataFrame) -> pd.Series:
    """Say which rows of trials.csv are of ends with all their rows; where it is not said how many, they are."""
    if "trial_rows" not in trials:
        return pd.Series(True, index=trials.index)
    there = trials.groupby(attempts(trials), sort=False)["config"].transform("size")
    return ~(there < trials["trial_rows"])


def _texts(frame: pd.DataFrame, words: Collection[str]) -> pd.DataFrame:
    """Return a frame with the texts that its cells stand for, plain; the same frame where no cell is another."""
    changed: dict[str, pd.Series] = {}
    for name in words:
        values = frame[name]
        known = values.cat.categories if isinstance(values.dtype, pd.CategoricalDtype) else values.unique()
        texts = {cell: text for cell in known if (text := plain(unquoted(cell))) != cell}
        if texts:
            other = values.astype(object).replace(texts)
            changed[name] = other.astype("category") if isinstance(values.dtype, pd.CategoricalDtype) else other
    return frame.assign(**changed) if changed else frame


@cache
def _without_rows(name: str, words: str) -> pd.DataFrame:
    dtypes = _dtypes(name, words)
    return pd.DataFrame({column: pd.Series(dtype=dtype) for column, dtype in dtypes.items()})


def is_torn(path: Path) -> bool:
    """Say whether the last line of a file is incomplete."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, io.SEEK_END)
        return file.read() != b"\n"


def _whole_lines(path: Path) -> bytes:
    """Return a file without an incomplete last line; a line that is alone is the header, and taken to be whole."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1 or None].removeprefix(codecs.BOM_UTF8)


def _refuse_short_lines(path: Path, whole: bytes, count: int) -> None:
    """Refuse a line with fewer fields than the header, which pandas reads as unknown, and rows that it counts apart."""
    found = rows(path, io.BytesIO(whole))
    width, number = len(next(found)[2]), 0
    for line, _, fields in found:
        number += 1
        if len(fields) < width:
            raise UsageError(
                f"'{path}', line {line}: {len(fields)} fields of {width}, so the line was cut off. Repair or remove it."
            )
    if number != count:
        raise UsageError(f"'{path}' cannot be read: its quotes or line breaks do not fit. Restore the file.")


def _word_for_number(path: Path, whole: bytes, numbers: Collection[str]) -> str:
    """Say which line of a file has a word where a number belongs; empty where none has."""
    found = rows(path, io.BytesIO(whole))
    _, _, header = next(found)
    for line, _, fields in found:
        row = dict(zip(header, fields, strict=False))
        for name in numbers:
            try:
                float(row.get(name) or "0")
            except ValueError:
                return f"line {line}: {name} '{row[name]}' is no number"
    return ""


def _check(path: Path, frame: pd.DataFrame) -> None:
    """Refuse values that no measurement gives, with the file, the line and the value."""
    for field in COLUMNS[path.name].values():
        if field.name in frame:
            _check_column(path, frame, field)
    _check_relations(path, frame)
    if kinds := NAMES.get(path.name):
        named = (frame["kind"] + " " + frame["name"]).astype(str)
        right = named.str.fullmatch("|".join(f"(?:{kind} (?:{names}))" for kind, names in kinds.items()))
        _refuse(path, frame, ~right.astype(bool), "name", "is no figure of its kind")


def _check_column(path: Path, frame: pd.DataFrame, field: Field) -> None:
    name, column = field.name, field.column
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
    if field.kind != "number":
        return
    values = frame[name].to_numpy()  # arrays: on a small frame a Series takes fifty times as long
    if field.always:
        _refuse(path, frame, np.isnan(values), name, "is missing, so the line was cut off")
    if phase := column.required_in:
        measured = (frame["phase"] == phase) & frame["status"].isin(MEASURED)
        lacking = np.isnan(values) & measured.to_numpy()
        _refuse(path, frame, lacking, name, f"is missing in a measured row of phase {phase}")
    if not column.may_diverge:
        _refuse(path, frame, np.isinf(values), name, "is infinite")
    if column.sign == "above 0":
        _refuse(path, frame, values <= 0, name, "must be above 0")
    elif column.sign == "0 or more":
        _refuse(path, frame, values < 0, name, "cannot be below 0")
    if column.most is not None:
        _refuse(path, frame, values > column.most, name, f"cannot be above {column.most:g}")
    if field.unit == "bytes":
        _refuse(path, frame, values > PIB, name, "is more memory than a machine has")


def _holds(cell: str, container: type) -> bool:
    """Say whether a cell is JSON of a list or a dict of plain values."""
    try:
        value: Any = json.loads(cell)
    except (ValueError, RecursionError):
        return False
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, container) and not any(isinstance(one, list | dict) for one in parts)


def _check_relations(path: Path, frame: pd.DataFrame) -> None:
    """Refuse values that others of their row contradict."""
    row = _Arrays(frame)
    for relation in WITHIN.get(path.name, ()):
        with np.errstate(invalid="ignore", divide="ignore"):
            has, value = row[relation.column], np.asarray(relation.value(row), dtype=float)
            within = relation.within(row) if callable(relation.within) else relation.within
            share = np.abs(value if relation.of is None else relation.of(row)) * within
        if relation.how == "equal":
            wrong = np.abs(has - value) > share
        else:
            wrong = has - value > share if relation.how == "at most" else value - has > share
        for name, word in relation.where.items():
            wrong &= (frame[name] == word).to_numpy()
        if wrong.any():
            _refuse(path, frame, wrong, relation.column, f"{relation.says}, {value[wrong.argmax()]:.6g}")


class _Arrays(dict[str, Any]):
    """The columns of a frame as arrays, which compute faster on a few rows; NaN where a column is not there."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def __missing__(self, name: str) -> NDArray[np.float64]:
        there = name in self._frame
        self[name] = self._frame[name].to_numpy(dtype=float) if there else np.full(len(self._frame), np.nan)
        values: NDArray[np.float64] = self[name]
        return values


def refuse_too_much_memory(path: Path, frame: pd.DataFrame, devices: Sequence[Mapping[str, Any]]) -> None:
    """Refuse peaks above the memory of the device itself, where run.json has it.

    Args:
        path: trials.csv.
        frame: rows of it, their index being their place in the file.
        devices: the devices in run.json.
    """
    sizes = {device["placement"]: device.get("memory_total_bytes") for device in devices}
    most = frame["placement"].map(sizes).astype(float)
    for field in COLUMNS[path.name].values():
        if field.column.on_device:
            _refuse(path, frame, frame[field.name] > most, field.name, "is more memory than the device has")


def repeated(path: Path, frame: pd.DataFrame, key: list[str]) -> str:
    """Warn of trials that are in trials.csv twice although the first had not failed, so that nobody tried it again.

    Args:
        path: trials.csv.
        frame: all its rows.
        key: the columns that tell one question from another.
    """
    retried = set(frame.loc[frame["status"].isin(("timeout", "failed")), "trial"])
    twice = frame[frame.duplicated(key, keep="last") & ~frame["trial"].isin(retried)]
    if twice.empty:
        return ""
    first = twice.iloc[0]
    return (
        f"{path.name} has {len(twice)} rows twice, first {first['trial']} in {first['precision']}, line "
        f"{line_of(path, int(twice.index[0]))}; of each the last counts."
    )


def cut_off(path: Path, written: pd.DataFrame, whole: pd.DataFrame) -> str:
    """Warn of trials that were cut off while they were stored.

    Args:
        path: trials.csv.
        written: all its rows.
        whole: those of trials that are whole.
    """
    lost = written.loc[written.index.difference(whole.index), "trial"]
    if lost.empty:
        return ""
    trials = " and ".join(dict.fromkeys(lost))
    return f"{path.name} lacks rows of {trials}, cut off while they were stored, so none of them counts."


def _refuse(path: Path, frame: pd.DataFrame, wrong: pd.Series | NDArray[np.bool_], name: str, why: str) -> None:
    at = np.flatnonzero(np.asarray(wrong, dtype=bool))
    if len(at):
        value = frame[name].iloc[at[0]]
        shown = "" if pd.isna(value) or value == "" else f" '{value:g}'" if isinstance(value, float) else f" '{value}'"
        more = f" So is it in {len(at) - 1} more lines." if len(at) > 1 else ""
        raise UsageError(
            f"'{path}', line {line_of(path, int(frame.index[at[0]]))}: {name}{shown} {why}.{more} "
            "No measurement gives that: restore the file, or remove the line."
        )


def line_of(path: Path, row: int) -> int:
    """Return the line in which a row ends."""
    return next(itertools.islice(rows(path, io.BytesIO(_whole_lines(path))), row + 1, None))[0]
