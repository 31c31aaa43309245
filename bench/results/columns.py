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
from bench.results.records import Block, Column, EpochResult, Explained, Identity, Numeric, Sample, TrialResult
from bench.spec.metrics import METRICS, Metric
from bench.spec.text import plain, quoted

FieldKind = Literal["word", "number", "yes or no", "list", "JSON array", "JSON object"]
KINDS: dict[type, FieldKind] = {str: "word", bool: "yes or no", int: "number", float: "number", tuple: "list"}
KINDS |= {list: "JSON array", dict: "JSON object"}
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
    record: str = ""
    """The class that has the field, whose docstring describes the column; empty where a metric does."""

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
        return ", ".join(filter(None, (self.unit or "number", self.column.sign)))


def _fields(record: type, *, part: bool = False) -> Iterator[Field]:
    """Yield the columns of a record in order, with those of the records in it, its parts."""
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        if field.name == VALUES:
            continue
        kind, column = hints[field.name], Column()
        optional = get_origin(kind) in (Union, types.UnionType)
        if optional:
            (kind,) = set(get_args(kind)) - {types.NoneType}
        if get_origin(kind) is Annotated:
            kind, column = get_args(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _fields(kind, part=True)
            continue
        words = column.words
        if get_origin(kind) is Literal:
            kind, words = str, get_args(kind)
        kind = get_origin(kind) or kind
        is_known = KINDS[kind] == "number" and not (part or optional or column.may_diverge)
        yield Field(
            name=field.name,
            kind=KINDS[kind],
            column=column,
            required=column.filled or is_known,
            words=words,
            whole=kind is int,
            record=record.__name__,
        )


def columns_of(metric: Metric) -> dict[str, Field]:
    """Return the columns of a metric, as they are where no record has a field of that name."""
    column = Column(sign="" if metric.scale == "difference" else "≥ 0")
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
    documented = {("", column): metric.about for metric in METRICS.values() for column in metric.columns}
    for node in ast.walk(ast.parse(inspect.getsource(records))):
        if isinstance(node, ast.ClassDef):
            for field, after in itertools.pairwise(node.body):
                if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                    text = ast.literal_eval(after.value)
                    documented[node.name, ast.unparse(field.target)] = " ".join(text.split())
    return {
        file: {name: documented[field.record, name] for name, field in columns.items()}
        for file, columns in COLUMNS.items()
    }


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
