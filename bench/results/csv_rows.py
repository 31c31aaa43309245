"""Reads the rows of a run's CSVs and counts their lines. Reports, ``--resume`` and the store all use it."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from bench.results.columns import check_header, check_schema
from bench.spec.errors import UsageError


def rows(path: Path, file: IO[bytes]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the rows of a CSV, the header first; empty lines are skipped.

    Args:
        path: what the file is called.
        file: it, or its content.

    Yields:
        The line in which the row ends, for rows may hold line breaks; its text, with the empty lines before it, in
        which bytes that are no UTF-8 are kept; and its fields.

    Raises:
        UsageError: a field is longer than any that a run writes.
    """
    lines: list[str] = []

    def taken(text: IO[str]) -> Iterator[str]:
        for line in text:
            lines.append(line)
            yield line

    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(taken(text))
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, "".join(lines), fields
                lines.clear()
    except csv.Error as error:
        raise UsageError(f"'{path}', line {reader.line_num} cannot be read: {error}. Restore the file.") from error
    finally:
        text.detach()


def rows_of_file(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the rows of a file as ``rows`` does, an incomplete last one included; none where there is no such file."""
    if path.is_file():
        with path.open("rb") as file:
            yield from rows(path, file)


def read_header(path: Path) -> list[str]:
    """Return the header of a run's CSV; empty where there is no such file, or nothing in it.

    Raises:
        UsageError: it is not one that a version of this schema wrote.
    """
    return header_of(path, itertools.islice(rows_of_file(path), 2))


def has_rows(path: Path) -> bool:
    """Say whether a CSV has more than its header."""
    return len(list(itertools.islice(rows_of_file(path), 2))) > 1


def header_of(path: Path, first: Iterable[tuple[int, str, list[str]]]) -> list[str]:
    """Return the header of a file by its first two rows; empty where there is none.

    Raises:
        UsageError: the rows are of another schema, or the header is not one that ampmeter wrote.
    """
    lines = [fields for _, _, fields in first]
    if not lines:
        return []
    if "schema" in lines[0] and len(lines) > 1:
        check_schema(path, dict(zip(*lines, strict=False)).get("schema", ""))
    check_header(path, lines[0])
    return lines[0]
