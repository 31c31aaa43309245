"""run.json as a checked object: what the fields of the records say it holds, for whoever reads a run.

Parts that an earlier version did not write may be missing; what is there is of its type.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from bench.results.records import Device, Environment, Node
from bench.spec.errors import UsageError
from bench.spec.trial import Request, SuiteRef

MOST = 1e18
"""Above any number of a machine or a request."""
SHOWN = 40
"""Characters of a wrong value that are shown."""
REQUIRED: dict[type, tuple[str, ...]] = {Device: ("placement", "name"), Node: ("accelerator",), SuiteRef: ("name",)}
"""Fields of records that a part cannot do without; others may have been added later."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTrial:
    """A trial of the plan, as ``bench.results.store.planned`` writes it."""

    trial: str
    cell: str
    phase: str
    replicate: int
    seed: int
    arms: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSource:
    """A source of data whose images or text were looked at."""

    source: str
    classes: int | None
    train_samples: int | None
    train_tokens: int | None
    validation_tokens: int | None
    fingerprint: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WrittenRequest(Request):
    """A request as it is written: its suites are found by then."""

    suites: tuple[SuiteRef, ...] = ()  # type: ignore[assignment]  # names in the request itself


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunFile:
    """run.json."""

    schema: int
    run: str
    version: str
    request: WrittenRequest
    environment: Environment
    data: tuple[PreparedSource, ...]
    planned: tuple[PlannedTrial, ...]
    warnings: tuple[str, ...]
    started: str | None
    finished: str | None


REQUIRED |= {PlannedTrial: tuple(field.name for field in dataclasses.fields(PlannedTrial)), PreparedSource: ("source",)}


def parse(path: Path) -> dict[str, Any]:
    """Return what run.json holds, checked; its ``schema`` is the caller's to judge.

    Raises:
        UsageError: it is no JSON object, or a value is of another type than it is written in.
    """
    try:
        run = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
        if not isinstance(run, dict):
            raise ValueError(f"it holds {_kind(run)}, not an object")
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"'{path}' cannot be read ({why}). Restore it, or start a new run.") from error
    return run


def check(path: Path, run: dict[str, Any]) -> None:
    """Refuse values of other types than those that a run writes.

    Raises:
        UsageError: the message names the first field that is wrong.
    """
    for where, wanted, value in _wrong(run, RunFile, ""):
        shown = json.dumps(value, ensure_ascii=False, default=str)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        raise UsageError(f"'{path}': {where} must be {wanted}, not {shown}. Restore the file, or start a new run.")


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of a run")


def _wrong(value: Any, hint: Any, where: str) -> Iterator[tuple[str, str, Any]]:
    """Yield what is wrong: the path of a field, what it must be, and its value."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        yield from _wrong_choice(value, choices, where)
    elif origin is Literal:
        if value not in choices:
            yield where, f"one of {', '.join(map(str, choices))}", value
    elif origin in (tuple, list):
        yield from _wrong_list(value, choices, where)
    elif origin is dict:
        if not isinstance(value, dict):
            yield where, "an object", value
        for name, one in value.items() if isinstance(value, dict) else ():
            yield from _wrong(one, choices[1], f"{where}.{name}")
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield from _wrong_object(value, hint, where)
    elif not _fits(value, hint):
        yield where, _called(hint), value


def _wrong_choice(value: Any, choices: tuple[Any, ...], where: str) -> Iterator[tuple[str, str, Any]]:
    if any(not list(_wrong(value, choice, where)) for choice in choices):
        return
    named = [choice for choice in choices if choice is not types.NoneType]
    if len(named) == 1 and value is not None:
        yield from _wrong(value, named[0], where)
    else:
        yield where, " or ".join(map(_called, choices)), value


def _wrong_list(value: Any, choices: tuple[Any, ...], where: str) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(value, list):
        yield where, "a list", value
        return
    pair = len(choices) > 1 and choices[1] is not Ellipsis
    if pair and len(value) != len(choices):
        yield where, f"a list of {len(choices)}", value
        return
    for number, one in enumerate(value):
        yield from _wrong(one, choices[number] if pair else choices[0], f"{where}[{number}]")


def _wrong_object(value: Any, record: type, where: str) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(value, dict):
        yield where or "it", "an object", value
        return
    hints = _hints(record)
    lacking = [name for name in REQUIRED.get(record, ()) if name not in value]
    if lacking:
        yield where, f"an object with {lacking[0]}", value
        return
    for name, one in value.items():
        if name in hints:
            yield from _wrong(one, hints[name], f"{where}.{name}".lstrip("."))


@cache
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record, include_extras=True)


def _fits(value: Any, hint: Any) -> bool:
    if hint is types.NoneType:
        return value is None
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool)
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and abs(value) <= MOST and math.isfinite(value)
    return isinstance(value, str)  # texts, and paths, which are written as such


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"{value!r:.{SHOWN}}"


def _called(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}
    return names.get(hint, "a text") if not get_origin(hint) else "a list"
