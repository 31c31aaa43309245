"""The columns of a run's CSVs, derived from the fields of the records."""

from __future__ import annotations

import ast
import codecs
import dataclasses
import inspect
import itertools
import json
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from bench.results import records
from bench.results.records import ANY, Block, Column, EpochResult, Explained, Identity, Numeric, Sample, TrialResult
from bench.spec.metrics import METRICS, Metric
from bench.spec.text import plain, quoted

FieldKind = Literal["word", "number", "yes or no", "list", "JSON"]
KINDS: dict[type, FieldKind] = {str: "word", bool: "yes or no", int: "number", float: "number", tuple: "list"}
KINDS |= {list: "JSON", dict: "JSON"}
RECORDS: dict[str, tuple[type, ...]] = {
    "trials.csv": (Identity, TrialResult),
    "blocks.csv": (Block,),
    "epochs.csv": (EpochResult,),
    "numerics.csv": (Numeric,),
    "explain.csv": (Explained,),
    "telemetry.csv": (Sample,),
}
"""The CSVs of a run, each with the records that make up its rows."""
LARGE = ("blocks.csv", "telemetry.csv")
"""The CSVs that may have millions of rows."""
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
    required: bool = False
    """Whether every row of the file has a value here; a file without such a column is no run's."""
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
        sign = {"any": "", "0 or more": ", ≥ 0", "above 0": ", > 0"}[self.column.sign]
        return f"{self.unit or 'number'}{sign}"


def _fields(record: type, *, part: bool = False) -> Iterator[Field]:
    """Yield the columns of a record in order, with those of the records in it, its parts."""
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        if field.name == VALUES:
            continue
        hint, column = hints[field.name], Column()
        choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        (kind,) = {choice for choice in choices if choice is not types.NoneType}
        if get_origin(kind) is Annotated:
            kind, column = get_args(kind)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _fields(kind, part=True)
            continue
        literal = get_origin(kind) is Literal
        plain_type = str if literal else get_origin(kind) or kind
        is_number = KINDS[plain_type] == "number"
        yield Field(
            name=field.name,
            kind=KINDS[plain_type],
            column=column,
            required=column.filled or (is_number and not (part or column.may_diverge or len(choices) > 1)),
            words=get_args(kind) if literal else column.words,
            whole=plain_type is int,
            container=plain_type if KINDS[plain_type] == "JSON" else object,
        )


def columns_of(metric: Metric) -> dict[str, Field]:
    """Return the columns of a metric, as they are where no record has a field of that name."""
    column = Column(sign=ANY if metric.scale == "difference" else "0 or more")
    return {name: Field(name=name, kind="number", column=column) for name in metric.columns}


COLUMNS: dict[str, dict[str, Field]] = {
    file: {field.name: field for part in parts for field in _fields(part)} for file, parts in RECORDS.items()
}
"""The columns of each CSV, in order."""
for _metric in METRICS.values():
    for _name, _field in columns_of(_metric).items():
        COLUMNS["trials.csv"].setdefault(_name, _field)


def cells(*parts: Any) -> dict[str, object]:
    """Return the row that records make up: bools are yes or no, floats keep all digits, and None is left out.

    Texts are ``plain``, on one line, and ``quoted`` for spreadsheets.
    """
    row: dict[str, object] = {}
    for part in parts:
        for name in part.__slots__:  # the values are plain: dataclasses.asdict would make deep copies of them
            value = getattr(part, name)
            if type(value) in (int, float):
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
    if isinstance(value, str | tuple):
        text = value if isinstance(value, str) else LIST.join(value)
        return quoted(plain(text.replace("\n", " ")))
    return json.dumps(value)


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
    meanings = {
        file: general | dict(pair for part in parts for pair in of(part.__name__)) for file, parts in RECORDS.items()
    }
    return {file: {name: meanings[file][name] for name in columns} for file, columns in COLUMNS.items()}


def whole_lines(path: Path) -> tuple[bytes, bool]:
    """Return a file without the torn row that a crash in the middle of a write leaves, and whether there was one.

    A row is one line. A line that is alone is the header, and taken to be whole. A byte order mark is left out.
    """
    data = path.read_bytes() if path.is_file() else b""
    end = data.rfind(b"\n") + 1
    return data[: end or None].removeprefix(codecs.BOM_UTF8), 0 < end < len(data)


def has_rows(path: Path) -> bool:
    """Return whether a CSV has more than its header."""
    return b"\n" in whole_lines(path)[0].strip()
