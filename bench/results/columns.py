"""The columns of a run's CSVs, derived from the fields of the records and of the phases' rows."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from bench.results.records import Block, Column, EpochResult, Identity, Ran, Sample
from bench.spec.phase import Phase
from bench.spec.phases import MEASURING
from bench.spec.text import plain, quoted

KINDS = {
    str: "word",
    bool: "yes or no",
    int: "number",
    float: "number",
    tuple: "list",
    dict: "JSON object",
}
# The CSVs that have the same rows whatever the phase.
SHARED = {"blocks.csv": Block, "epochs.csv": EpochResult, "telemetry.csv": Sample}
# The CSVs that may have millions of rows.
LARGE = ("blocks.csv", "telemetry.csv")
# Units by the end of a column's name; the longest end counts.
UNITS = {
    "_ms": "ms",
    "_s": "s",
    "_bytes": "bytes",
    "_w": "W",
    "_c": "°C",
    "_mhz": "MHz",
    "_pct": "%",
    "_tflops": "TFLOP/s",
    "_j": "J",
    "_per_s": "1/s",
    "_j_per_step": "J",
}
# The sign that joins the words of a list.
LIST = "+"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One column of one CSV."""

    name: str
    kind: str
    """Of ``KINDS``."""
    column: Column = Column()
    required: bool = False
    """Whether every row of the file has a value here; a file without such a column is no run's."""
    words: tuple[str, ...] = ()
    """The only valid words; none if any is valid."""
    record: type | None = None
    """The record that has the field, and its description as the field's docstring; None where it is
    derived."""

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
        text = self.unit or "number"
        return f"{text}, {self.column.sign}" if self.column.sign else text


def fields_of(record: type, *, part: bool = False) -> Iterator[Field]:
    """Yield the columns of a record in order, with those of the records in it.

    Args:
        record: a dataclass.
        part: whether it is a part of a row, which then needs none of its columns.
    """
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        kind = hints[field.name]
        column = Column()
        words = ()
        required = not part
        if get_origin(kind) in (Union, types.UnionType):  # with None
            (kind,) = set(get_args(kind)) - {types.NoneType}
            required = False
        if get_origin(kind) is Annotated:
            kind, column = get_args(kind)
        if dataclasses.is_dataclass(kind):
            yield from fields_of(cast(type, kind), part=True)
            continue
        if get_origin(kind) is Literal:
            kind, words = str, get_args(kind)
        kind = KINDS[get_origin(kind) or kind]
        if column.may_diverge or (kind != "number" and not words):
            required = False
        yield Field(
            name=field.name, kind=kind, column=column, required=required, words=words, record=record
        )


def _own(phase: Phase, *, stored: bool) -> dict[str, Field]:
    """Return a phase's own columns: those that its CSV has, or those that follow from them."""
    fields = fields_of(phase.row, part=True) if phase.row else ()
    return {field.name: field for field in fields if field.column.stored is stored}


def derived(phase: Phase) -> dict[str, Field]:
    """Return the columns that follow from the rows that a phase stores."""
    return _own(phase, stored=False)


def _columns() -> dict[str, dict[str, Field]]:
    columns = {}
    records: dict[str, type] = dict(SHARED)
    for phase in MEASURING.values():
        identity = {field.name: field for field in fields_of(Identity)}
        for key in {"replicate", "seed"} - {phase.key}:
            del identity[key]
        ran = {field.name: field for field in fields_of(Ran, part=True)}
        columns[phase.file] = identity | _own(phase, stored=True) | ran
        for record, name in phase.details.items():
            records[name] = record
    for name, record in records.items():
        columns[name] = {field.name: field for field in fields_of(record)}
    return columns


# The columns of each CSV, in order.
COLUMNS = _columns()
# The CSVs with one row for each arm of each trial of a phase; the others hold their details, and
# telemetry.
OF_PHASES = tuple(phase.file for phase in MEASURING.values())


def row_of(record: Any) -> dict[str, object]:
    """Return a record as a row of a CSV: bools are yes or no, floats keep all digits.

    None is left out. Texts are ``plain``, on one line, and ``quoted`` for spreadsheets.
    """
    row: dict[str, object] = {}
    for field in dataclasses.fields(record):  # dataclasses.asdict would make deep copies
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            row |= row_of(value)
        elif value is not None:
            row[field.name] = _cell(value)
    return row


def _cell(value: Any) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return value
    if isinstance(value, dict):
        return json.dumps(value)
    text = value if isinstance(value, str) else LIST.join(value)
    return quoted(plain(text.replace("\n", " ")))


def listed(cell: str) -> tuple[str, ...]:
    """Return the words of a cell that holds a list."""
    return tuple(cell.split(LIST)) if cell else ()


def whole_lines(path: Path) -> tuple[bytes, bool]:
    """Return a file without the torn row that a crash leaves, and whether there was one.

    A row is one line. A line that is alone is the header, and taken to be whole.
    """
    data = path.read_bytes() if path.is_file() else b""
    end = data.rfind(b"\n") + 1
    return data[: end or None], 0 < end < len(data)
