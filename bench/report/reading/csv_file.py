"""One CSV of a run as a frame, or the reason why it is damaged, with the file and the line."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.reading.validation import check
from bench.results.columns import COLUMNS, SCHEMA
from bench.spec.errors import UsageError


def read(path: Path, words: str = "object") -> pd.DataFrame:
    """Read one CSV; a last line without its end, which a crash leaves, is left out.

    Args:
        path: the file; one that is not there is empty.
        words: pandas' type of the columns that are not numbers.

    Raises:
        UsageError: it is damaged, or holds values that no measurement gives.
    """
    columns = COLUMNS[path.name]
    dtypes = {name: float if field.kind == "number" else words for name, field in columns.items()}
    whole = _whole_lines(path)
    header = _header(path, whole) if whole else None
    if header is None:
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes.items()})
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
        why = _word_for_number(path, numbers) or error
        raise UsageError(f"'{path}' cannot be read: {why}. Repair or remove that line.") from error
    for other in frame.loc[frame["schema"] != SCHEMA, "schema"].iloc[:1]:
        _refuse_schema(path, f"{other:g}")
    if words != "category":  # as the blocks are, of which there may be millions
        _refuse_short_lines(path, whole)
    check(path, frame)
    if len(present) < len(dtypes):
        absent = {name: float("nan") if dtypes[name] is float else "" for name in dtypes if name not in present}
        frame = pd.concat([frame, pd.DataFrame(absent, index=frame.index)], axis=1)[list(dtypes)]
    return frame if words == "category" else frame.copy()  # defragmented: rows are taken from it hundreds of times


def is_filled(path: Path) -> bool:
    """Say whether a file is there and not empty."""
    return path.is_file() and path.stat().st_size > 0


def torn(path: Path) -> list[str]:
    """Warn of a last line without its end, which is left out."""
    if not is_filled(path):
        return []
    with path.open("rb") as file:
        file.seek(-1, io.SEEK_END)
        return [] if file.read() == b"\n" else [f"{path.name} ends in the middle of a line, which is left out."]


def _whole_lines(path: Path) -> bytes:
    """Return a file without a last line that lacks its end, and without a spreadsheet's byte order mark."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1].removeprefix(codecs.BOM_UTF8)


def _header(path: Path, whole: bytes) -> list[str] | None:
    """Return the header of a file; None where there are no rows.

    Raises:
        UsageError: the rows are of another schema, or the header is not one that ampmeter wrote.
    """
    columns = COLUMNS[path.name]
    start = b"\n".join(whole.split(b"\n", 50)[:50])  # a row may hold line breaks
    reader = csv.reader(io.StringIO(start.decode("utf-8", "replace"), newline=""))
    header, *rows = itertools.islice(reader, 2)
    if "schema" not in header:
        raise UsageError(
            f"'{path}' has no column schema, so its header is lost or it is of something else. Restore it."
        )
    if rows and len(rows[0]) == len(header):
        _refuse_schema(path, rows[0][header.index("schema")])
    required = [name for name, field in columns.items() if not field.column.added_later]
    lost = next((name for name in required if name not in header), None)
    if lost and rows:
        raise UsageError(
            f"'{path}' lacks the column {lost}, which every file of schema {SCHEMA} has: its header was changed. "
            "Restore the file."
        )
    found, ordered = ([name for name in header if name in columns], [name for name in columns if name in header])
    if found != ordered:
        pairs = itertools.zip_longest(found, ordered, fillvalue="the end")
        first, expected = next(pair for pair in pairs if pair[0] != pair[1])
        raise UsageError(
            f"'{path}', line 1: {first} stands where {expected} belongs. Columns are never written in that order, so "
            "names or columns were moved, and nobody can tell which: restore the file."
        )
    return header if rows else None


def _refuse_schema(path: Path, schema: str) -> None:
    if schema != f"{SCHEMA}":
        raise UsageError(f"'{path}' holds rows of schema {schema or 'unknown'}; this version reads schema {SCHEMA}.")


def _refuse_short_lines(path: Path, whole: bytes) -> None:
    """Refuse a line with fewer fields than the header: pandas would read the rest as unknown."""
    unquoted = (line.split(b'"')[::2] for line in whole.splitlines() if line)
    if len({sum(part.count(b",") for part in parts) for parts in unquoted}) < 2:  # far faster than the csv module
        return
    for line, width, row in _rows(path):
        if 0 < len(row) < width and not _is_torn(path, line):
            raise UsageError(
                f"'{path}', line {line}: {len(row)} fields of {width}, so the line was cut off. Repair or remove it."
            )


def _rows(path: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the rows of a file, each with the line in which it ends and the number of columns."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        width = len(next(reader, []))
        for row in reader:
            yield reader.line_num, width, row


def _is_torn(path: Path, line: int) -> bool:
    """Say whether a line is the file's last, without its end."""
    data = path.read_bytes()
    return not data.endswith(b"\n") and line >= data.count(b"\n") + 1


def _word_for_number(path: Path, numbers: Collection[str]) -> str:
    """Say which line of a file has a word where a number belongs; empty where none has."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader: csv.DictReader[Any] = csv.DictReader(file)
        for row in reader:
            for name in numbers:
                try:
                    float(row.get(name) or "0")
                except ValueError:
                    return f"line {reader.line_num}: {name} '{row[name]}' is no number"
    return ""
