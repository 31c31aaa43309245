"""Errors that a user can act on, and the sentences that they are made of."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SIMILAR = 0.5
"""Likeness, by difflib's ratio, from which on a word is suggested for another."""


class UsageError(Exception):
    """The request cannot be done; the message says why, what is available and what to do."""


class UnsupportedError(UsageError):
    """A technique cannot be used with this suite or on this device; the message says why."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop, or its type where it has none."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word most like ``word``, or an empty string if none is similar.

    Case and the order of a word's parts do not count; of words equally like it the first is named.
    """

    def likeness(other: str) -> float:
        pairs = ((word.lower(), other.lower()), (_in_order(word), _in_order(other)))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    match = max(known, key=likeness, default="")
    return f" Did you mean '{match}'?" if likeness(match) >= SIMILAR else ""


def _in_order(word: str) -> str:
    return "-".join(sorted(re.split(r"[-_. ]", word.lower())))


def require(condition: bool, field: str, allowed: str, value: object) -> None:
    """Raise a UsageError that names the field and its allowed values, unless ``condition`` holds."""
    if not condition:
        raise UsageError(f"{field} must be {allowed}, not {value!r}.")
