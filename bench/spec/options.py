"""Options of the command line: metadata of the fields that they set, and readers of words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.spec.errors import UsageError

# Converts a word, given the option's name and the word, or raises a UsageError that names the
# option.
Reader = Callable[[str, str], Any]


def word(_option: str, text: str) -> str:
    """Return the text as it is."""
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """How a field is set on the command line."""

    help: str
    metavar: str = ""
    """The placeholder of its word in the help; empty where it takes none."""
    read: Reader = word
    name: str = ""
    """With its dashes; empty where it is the field's name."""
    group: str = ""
    """The heading in the help that begins with it; empty where the one before goes on."""
    repeatable: bool = False
    of_training: bool = False
    """Whether only training has a use for it."""
    with_resume: bool = False
    """Whether ``--resume`` takes it beside the options that the run was started with."""
    in_scripts: bool = False
    """Whether the command ``script`` has it, too."""
    repeated: Literal["always", "same", "never"] = "always"
    """Whether a command that is printed as the next step has it: only where it measures the
    ``same`` of a recipe, or ``never`` where it says how long the run may take, or where it is
    stored."""
    changes_nothing: bool = False
    """Whether a run may go on with another value: the question stays the same."""


def option(
    help: str, metavar: str = "", read: Reader = word, *, default: Any = None, **more: Any
) -> Any:
    """Return a dataclass's field that an ``Option`` sets."""
    return field(default=default, metadata={"option": Option(help, metavar, read, **more)})


def path(_option: str, text: str) -> Path:
    """Read a path."""
    return Path(text)


def listed(
    read: Reader, split: Callable[[str], list[str]] = lambda text: text.split(",")
) -> Reader:
    """Return a reader that splits at commas, reads each word, and drops repetitions."""

    def read_list(option: str, text: str) -> tuple[Any, ...]:
        words = [word.strip() for word in split(text)]
        if not all(words):
            raise UsageError(
                f"{option} has an empty word in '{text}': put one comma between two values."
            )
        return tuple(dict.fromkeys(read(option, word) for word in words))

    return read_list


def whole(least: int, also: str = "") -> Reader:
    """Return a reader of whole numbers; ``also`` is said of what else the option takes."""

    def read_whole(option: str, text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
            raise UsageError(
                f"{option} takes whole numbers from {least} to 999999999{also}, not '{text}'."
            )
        return int(text)

    return read_whole


def number(allowed: str, units: Mapping[str, float], most: float = math.inf) -> Reader:
    """Return a reader of numbers above 0 and up to ``most``.

    Args:
        allowed: what the option takes, in words.
        units: units that may follow the number, with their factors; the empty one is no unit.
        most: the largest value.
    """

    def read_number(option: str, text: str) -> float:
        value = 0.0
        match = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(\D*)", text)
        if match:
            value = float(match[1]) * units.get(match[2], 0.0)
        if not 0 < value <= most:
            raise UsageError(f"{option} takes {allowed}, not '{text}'.")
        return value

    return read_number


def assignment(option: str, text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Read a name and a value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{option} takes {form}, not '{text}'.")
    return name, value


def assigned_values(option: str, text: str) -> tuple[str, tuple[str, ...]]:
    """Read a name and several values."""
    name, values = assignment(option, text, "NAME=V1,V2")
    return name, listed(word)(option, values)


duration_s = number("a time above 0 such as 10s, 2m or 1h", {"": 1, "s": 1, "m": 60, "h": 3600})
norm = number("a norm above 0 such as 1.0", {"": 1})
SHARE = "a share such as 1% or 0.01, above 0 and up to 100%"


def share(option: str, text: str) -> float:
    """Read a share; 1 without a unit is refused, for it may be meant as 1 %."""
    value: float = number(SHARE, {"": 1, "%": 0.01}, most=1)(option, text)
    if value == 1 and "%" not in text:
        raise UsageError(f"{option} takes {SHARE}, not '{text}'.")
    return value
