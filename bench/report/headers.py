"""The first lines of a run's CSV: whether its columns are those that its schema has."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Sequence
from pathlib import Path

from bench.spec import UsageError
from bench.store import READABLE, SCHEMA

ROW = {"schema", "trial", "precision"}
ALWAYS = {
    "trials.csv": ROW
    | {"suite", "parameters", "placement", "device", "architecture", "batch_size", "data", "phase", "replicate", "seed"}
    | {"status", "detail", "step_ms", "samples_per_s", "speedup", "speedup_low", "speedup_high", "time_per_epoch_s"}
    | {"peak_allocated_bytes", "peak_resident_bytes", "test_accuracy_pct"},
    "blocks.csv": ROW | {"quad", "position", "steps", "time_ms", "start_s", "skipped_steps"},
    "epochs.csv": ROW | {"seed", "epoch", "train_s", "elapsed_s", "samples"},
}
"""Columns that every version wrote: by these rows are told apart, and checked."""
KNOWN = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
"""The schemas that this version reads, in words."""


def whole_lines(path: Path) -> bytes:
    """Return a file without a last line that lacks its end, which a crash leaves, and without a spreadsheet's mark."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1].removeprefix(codecs.BOM_UTF8)


def missing_columns(path: Path, whole: bytes, columns: Sequence[str], schema: int) -> list[str] | None:
    """Return the columns that an earlier version did not write; None where the file has no rows.

    Args:
        path: the file, to be named.
        whole: its lines.
        columns: those that this version writes, in their order.
        schema: what run.json says.

    Raises:
        UsageError: the rows are of another schema, or the header is not one that ampmeter wrote.
    """
    reader = csv.reader(io.StringIO(_head(whole), newline=""))
    header, *rows = itertools.islice(reader, 2)
    if "schema" not in header:
        raise UsageError(
            f"'{path}' has no column schema, so its header is lost or it is of something else. Restore it."
        )
    if rows:
        refuse_schema(path, rows[0][header.index("schema")] if len(rows[0]) == len(header) else str(schema), schema)
    missing = [name for name in columns if name not in header]
    lost = missing if schema == SCHEMA else [name for name in missing if name in ALWAYS.get(path.name, ())]
    if lost and rows:
        raise UsageError(
            f"'{path}' lacks the column {lost[0]}, which every file of schema {schema} has: its header was changed. "
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
    return missing if rows else None


def refuse_schema(path: Path, word: str, schema: int) -> None:
    """Refuse a row of another schema than run.json says, or of one that this version does not read."""
    try:
        number = float(word)
    except ValueError:
        number = float("nan")
    if number not in READABLE:
        raise UsageError(f"'{path}' holds rows of schema {word or 'unknown'}; this version reads schema {KNOWN}.")
    if number != schema:
        raise UsageError(
            f"'{path}' holds rows of schema {number:g}, but run.json beside it says schema {schema}. A run is of one "
            "schema: restore the file that was changed."
        )


def _head(whole: bytes) -> str:
    """Return the lines that the header and the first row are in; a row may hold line breaks."""
    lines = whole.split(b"\n", 50)[:50]
    return b"\n".join(lines).decode("utf-8", "replace")
