"""The columns of a run's CSVs, derived from the fields of the records, and the files' rows as texts, without pandas."""

from __future__ import annotations

import ast
import codecs
import csv
import dataclasses
import inspect
import io
import itertools
import json
import math
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from bench.results import records
from bench.results.records import ANY, Block, Column, EpochResult, Explained, Identity, Numeric, Sample, TrialResult
from bench.spec.errors import UsageError
from bench.spec.metrics import METRICS, Metric
from bench.spec.text import plain, quoted

FieldKind = Literal["word", "number", "yes or no", "list", "JSON"]
KINDS: dict[type, FieldKind] = {str: "word", bool: "yes or no", int: "number", float: "number", tuple: "list"}
KINDS |= {list: "JSON", dict: "JSON"}
SCHEMA = 5
"""Version of the columns. It is raised when a column is renamed, removed or changes its meaning."""
RECORDS: dict[str, tuple[type, ...]] = {
    "trials.csv": (Identity, TrialResult),
    "blocks.csv": (Block,),
    "epochs.csv": (EpochResult,),
    "numerics.csv": (Numeric,),
    "explain.csv": (Explained,),
    "telemetry.csv": (Sample,),
}
"""The CSVs of a run, each with the records that make up its rows."""
UNITS = {"_ms": "ms", "_s": "s", "_bytes": "bytes", "_w": "W", "_c": "°C", "_mhz": "MHz", "_pct": "%"}
UNITS |= {"_tflops": "TFLOP/s", "_j": "J", "_per_s": "1/s", "_j_per_step": "J"}
"""Units by the end of a column's name; the longest end counts."""
VALUES = "values"
"""The field of a result with figures by column, see ``columns_of``."""
LIST = "+"
"""The sign that joins the words of a list."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One column of one CSV."""

    name: str
    kind: FieldKind
    column: Column = Column()
    always: bool = False
    """Whether every row of the file has a number here."""
    words: tuple[str, ...] = ()
    """The only valid words; none if any is valid."""
    whole: bool = False
    """Whether the number is a whole one."""
    container: type = object
    """The type that JSON holds: list or dict."""

    @property
    def unit(self) -> str:
        """The unit that the column's name ends in; empty for a number without unit."""
        ends = [end for end in UNITS if self.name.endswith(end)]
        return UNITS[max(ends, key=len)] if ends and self.kind == "number" else ""

    @property
    def values(self) -> str:
        """The valid values, in words."""
        if self.words:
            return ", ".join(self.words)
        if self.kind != "number":
            return self.kind
        parts = [self.unit or "number", {"any": "", "0 or more": "≥ 0", "above 0": "> 0"}[self.column.sign]]
        parts += [f"≤ {self.column.most:g}"] if self.column.most is not None else []
        return ", ".join(filter(None, parts))


def _fields(record: type, *, part: bool = False) -> Iterator[Field]:
    """Yield the columns of a record in order, with those of the records in it, its parts."""
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        if field.name == VALUES:
            continue
        hint, column = hints[field.name], Column()
        if get_origin(hint) is Annotated:
            hint, column = get_args(hint)
        choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        (kind,) = {choice for choice in choices if choice is not types.NoneType}
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _fields(kind, part=True)
            continue
        words = get_args(kind) if get_origin(kind) is Literal else column.words
        plain = str if get_origin(kind) is Literal else get_origin(kind) or kind
        yield Field(
            name=field.name,
            kind=KINDS[plain],
            column=column,
            always=not (part or column.may_diverge or column.added_later or types.NoneType in choices),
            words=words,
            whole=plain is int,
            container=plain if KINDS[plain] == "JSON" else object,
        )


def columns_of(metric: Metric) -> dict[str, Field]:
    """Return the columns of a metric, as they are where no record has a field of that name."""
    column = Column(sign=ANY if metric.scale == "difference" else "0 or more", added_later=True)
    return {name: Field(name=name, kind="number", column=column) for name in metric.columns}


_SCHEMA_FIELD = Field(name="schema", kind="number", whole=True)
COLUMNS: dict[str, dict[str, Field]] = {
    file: {field.name: field for field in (_SCHEMA_FIELD, *(field for part in parts for field in _fields(part)))}
    for file, parts in RECORDS.items()
}
"""The columns of each CSV, in order."""
COLUMNS["trials.csv"] |= {
    name: field
    for metric in METRICS.values()
    for name, field in columns_of(metric).items()
    if name not in COLUMNS["trials.csv"]
}


def cells(*parts: Any) -> dict[str, object]:
    """Return the row that records make up: bools are yes or no, floats keep all digits, and None is left out.

    Texts are ``plain``, and ``quoted`` for spreadsheets.
    """
    row: dict[str, object] = {"schema": SCHEMA}
    for part in parts:
        for name in part.__slots__:  # the values are plain: dataclasses.asdict would make deep copies of them
            value = getattr(part, name)
            if type(value) is str:
                row[name] = quoted(plain(value))
            elif type(value) in (int, float):
                row[name] = value
            elif dataclasses.is_dataclass(value):
                row |= cells(value)
            elif name == VALUES:
                row |= {metric: figure for metric, figure in value.items() if math.isfinite(figure)}
            elif value is not None:
                row[name] = _cell(value)
    return row


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return quoted(plain(LIST.join(value))) if isinstance(value, tuple) else json.dumps(value)


def listed(cell: str) -> tuple[str, ...]:
    """Return the words of a cell that holds a list."""
    return tuple(cell.split(LIST)) if cell else ()


def descriptions() -> dict[str, dict[str, str]]:
    """Return the description of every column, by CSV: docstrings of the records' fields, or what metrics say."""
    classes = {node.name: node for node in ast.parse(inspect.getsource(records)).body if isinstance(node, ast.ClassDef)}

    def of(name: str) -> Iterator[tuple[str, str]]:
        for node, after in itertools.pairwise([*classes[name].body, ast.Pass()]):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                part = ast.unparse(node.annotation).removesuffix(" | None")
                if part in classes:
                    yield from of(part)
                elif isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    yield node.target.id, " ".join(str(after.value.value).split())

    general = {column: metric.about for metric in METRICS.values() for column in metric.columns}
    general["schema"] = "Version of these columns."
    meanings = {
        file: general | dict(pair for part in parts for pair in of(part.__name__)) for file, parts in RECORDS.items()
    }
    return {file: {name: meanings[file][name] for name in columns} for file, columns in COLUMNS.items()}


# The rows of a file. Reports, --resume and the store all read them here.


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
    _check_header(path, first[0])
    return first[0]


def check_schema(path: Path, schema: str | None) -> None:
    """Refuse a row of another schema.

    Raises:
        UsageError: the cell, of which no more than a number is repeated, is another.
    """
    if not schema:
        raise UsageError(
            f"'{path}' has a row that does not say of which schema it is, so the line was cut off, or it is of "
            "something else. Restore the file, or remove the line."
        )
    if schema != str(SCHEMA):
        named = schema if schema.isdecimal() and len(schema) < 10 else "unknown"
        raise UsageError(f"'{path}' holds rows of schema {named}; this version reads schema {SCHEMA}.")


def _check_header(path: Path, header: Sequence[str]) -> None:
    """Refuse a CSV's header that no version of this schema wrote; reading a run and resuming it go by this one rule.

    A column that was added later may be missing, columns may stand in any order, and others may be among them.

    Args:
        path: the file, named after its kind.
        header: the names in its first line.

    Raises:
        UsageError: a column that every version wrote is missing.
    """
    columns = COLUMNS[path.name]
    if "schema" not in header:
        raise UsageError(
            f"'{path}' has no column schema, so its header is lost or it is of something else. Restore it."
        )
    for name, field in columns.items():
        if name not in header and not field.column.added_later:
            raise UsageError(
                f"'{path}' lacks the column {name}: the run may be older than the column, or its header was changed. "
                "Restore the file, or use the version that wrote it."
            )
