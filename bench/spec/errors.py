"""Errors that a user can act on, and the sentences that they are made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """The request cannot be done; the message says why, what is available and what to do."""


class UnsupportedError(UsageError):
    """A technique cannot be used with this suite or on this device; the message says why."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word most like ``word``, in whatever case, or an empty string if none is similar."""
    words = {one.lower(): one for one in known}
    match = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.5)
    return f" Did you mean '{words[match[0]]}'?" if match else ""


def require(condition: bool, field: str, allowed: str, value: object) -> None:
    """Raise a UsageError that names the field and its allowed values, unless ``condition`` holds."""
    if not condition:
        raise UsageError(f"{field} must be {allowed}, not {value!r}.")
