"""Errors that a user can act on, and the sentences that they are made of."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

# Likeness, by difflib's ratio, from which on a word is suggested for another: of depth and width it
# is 0.60, of fp16 and amp-fp16 0.67.
SIMILAR = 0.65


class UsageError(Exception):
    """The request cannot be done; the message says why, what is available and what to do."""


class UnsupportedError(UsageError):
    """A technique cannot be used with this suite or on this device; the message says why."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop, or else its type."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return text.splitlines()[0].rstrip(".")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word most like ``word``, or an empty string if none is similar."""
    matches = difflib.get_close_matches(word.lower(), known, n=1, cutoff=SIMILAR)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def unknown(kind: str, word: str, known: Collection[str]) -> UsageError:
    """Return the error that there is nothing of a kind by some name."""
    available = ", ".join(known) or "none"
    return UsageError(f"There is no {kind} '{word}'.{nearest(word, known)} Available: {available}.")


def require(condition: bool, field: str, allowed: str, value: object) -> None:
    """Raise a UsageError that names the field and its allowed values, unless they hold."""
    if not condition:
        raise UsageError(f"{field} must be {allowed}, not {value!r}.")
