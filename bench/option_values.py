"""Words of the command line to values: numbers, times, shares and lists, each with its own error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.spec import UsageError, nearest
from bench.trial import PHASES

MAX = "max"
"""Among the batch sizes: the largest that fits."""


def listed(
    text: str | None,
    convert: Callable[[str], Any],
    option: str,
    split: Callable[[str], list[str]] = lambda text: text.split(","),
) -> tuple[Any, ...] | None:
    """Split at commas, convert each word, and drop repetitions."""
    if text is None:
        return None
    words = [word.strip() for word in split(text)]
    if not all(words):
        raise UsageError(f"{option} has an empty word in '{text}': put one comma between two values.")
    return tuple(dict.fromkeys(convert(word) for word in words))


def whole(word: str, option: str, least: int) -> int:
    """Read a whole number of ``least`` or more."""
    if not re.fullmatch(r"\d{1,9}", word) or int(word) < least:
        raise UsageError(f"{option} takes whole numbers from {least} to 999999999, not '{word}'.")
    return int(word)


def batch_size(word: str) -> int | str:
    """Read a batch size, or ``max``."""
    return MAX if word == MAX else whole(word, "--batch-sizes", 1)


def share(word: str) -> float:
    """Read a share such as 1% or 0.01."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(%?)", word)
    if match is None:
        raise UsageError(f"--target-ci takes a share such as 1% or 0.01, not '{word}'.")
    return float(match[1]) / (100 if match[2] else 1)


def percentage(word: str | None) -> float | None:
    """Read a percentage above 0 and up to 100."""
    if word is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)%?", word)
    if match is None or not 0 < float(match[1]) <= 100:
        raise UsageError(f"--target-accuracy takes a percentage above 0 and up to 100, such as 94%, not '{word}'.")
    return float(match[1])


def norm(word: str | None) -> float | None:
    """Read a norm above 0."""
    if word is None:
        return None
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", word) or float(word) == 0:
        raise UsageError(f"--clip-grad takes a norm above 0 such as 1.0, not '{word}'.")
    return float(word)


def seconds(word: str) -> float:
    """Read a time such as 10s, 2m or 1h, in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(s|m|h|)", word)
    if match is None:
        raise UsageError(f"--time-budget takes a time such as 10s, 2m or 1h, not '{word}'.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def phase(word: str) -> str:
    """Read a phase."""
    if word not in PHASES:
        raise UsageError(f"There is no phase '{word}'.{nearest(word, PHASES)} Available: {', '.join(PHASES)}.")
    return word


def parameters(words: list[str], weights: str | None) -> tuple[tuple[str, str], ...]:
    """Return the suites' parameters: those of ``--set``, and ``--weights``, a parameter that has an option."""
    given = tuple(assignment(word) for word in words)
    if weights is None:
        return given
    if "weights" in dict(given):
        raise UsageError("--weights and --set weights are the same: give one of the two.")
    return (*given, ("weights", weights if weights in ("none", "imagenet") else str(Path(weights).resolve())))


def sweep(words: list[str], settings: list[str], sizes: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Split each ``--sweep`` into a parameter's name and its values."""
    swept: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, text = assignment(word, "--sweep", "NAME=V1,V2")
        if name in swept or name in dict(assignment(setting) for setting in settings):
            raise UsageError(f"{name} is set twice: give it one --sweep, and no --set.")
        if name == "batch_size" and sizes:
            raise UsageError("--sweep batch_size and --batch-sizes say two things: give one of the two.")
        swept[name] = listed(text, str, "--sweep") or ()
        if len(swept[name]) <= text.count(","):
            raise UsageError(f"--sweep {name} has a value twice in '{text}': name each once.")
    return tuple(swept.items())


def assignment(word: str, option: str = "--set", form: str = "NAME=VALUE") -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"{option} takes {form}, not '{word}'.")
    return name, value
