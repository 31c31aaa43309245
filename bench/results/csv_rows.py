"""Reads the rows of a run's CSVs and counts their lines. Reports, ``--resume`` and the store all use it."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bench.results.columns import SCHEMA, check_header, check_schema
from bench.spec.errors import UsageError


def rows(path: Path, file: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV, the header first; empty lines are skipped, and bytes that are no UTF-8 kept.

    Args:
        path: the path that errors name.
        file: the file, or its content.

    Yields:
        The line in which the row ends, for rows may hold line breaks, and its fields.

    Raises:
        UsageError: a field is longer than any that a run writes.
    """
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise UsageError(f"'{path}', line {reader.line_num} cannot be read: {error}. Restore the file.") from error
    finally:
        text.detach()


def whole_lines(path: Path) -> tuple[bytes, bool]:
    """Return a file without the torn row that a crash in the middle of a write leaves, and whether there was one.

    A line that is alone is the header, and taken to be whole. A byte order mark is left out.
    """
    data = path.read_bytes() if path.is_file() else b""
    end = data.rfind(b"\n") + 1
    if data.count(b'"', 0, end) % 2:  # that line break is one of a text, if the quotes before its row are in pairs
        start = data.rfind(b"\n%d," % SCHEMA, 0, end) + 1
        end = end if data.count(b'"', 0, start) % 2 else start
    return data[: end or None].removeprefix(codecs.BOM_UTF8), 0 < end < len(data)


def read_header(path: Path) -> list[str]:
    """Return the header of a run's CSV; empty where there is no such file, or nothing in it.

    Raises:
        UsageError: it is not one that a version of this schema wrote.
    """
    return header_of(path, _first_rows(path))


def has_rows(path: Path) -> bool:
    """Say whether a CSV has more than its header."""
    return len(_first_rows(path)) > 1


def _first_rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        return [fields for _, fields in itertools.islice(rows(path, file), 2)]


def header_of(path: Path, first: list[list[str]]) -> list[str]:
    """Return the header of a file by its first two rows; empty where there is none.

    Raises:
        UsageError: the rows are of another schema, or the header is not one that ampmeter wrote.
    """
    if not first:
        return []
    if "schema" in first[0] and len(first) > 1:
        check_schema(path, dict(zip(*first, strict=False)).get("schema", ""))
    check_header(path, first[0])
    return first[0]
