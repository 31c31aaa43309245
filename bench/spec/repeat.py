"""The command line of a run, repeated to measure something else of the same recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bench.spec.phases import SWITCHES

OF_WHAT = ("--precisions", "--phases", "--techniques", "--epochs", "--seeds", "--within", "--out", "--resume")
"""Options with a value that say what of a recipe a run measures, or where it is stored."""


STORED = ("--within", "--out", "--resume")
"""Those that say how long a run may take, or where it is stored."""


def repeated(request: Mapping[str, Any], *more: str) -> str:
    """Return the command of a run without what says what and how much it measures, and with other words instead."""
    argv, script = _divided(request)
    if argv and not argv[0].startswith("-") and not script:
        del argv[0]  # a command that measures phases of its own
    words = _without(argv, ("--quick", *SWITCHES), OF_WHAT)
    return f"`python run_bench.py {shlex.join([*words, *more, *script])}`"


def at_length(request: Mapping[str, Any]) -> str:
    """Return the command of a run with ``--quick``, without that: it measures the same at length."""
    argv, script = _divided(request)
    return f"`python run_bench.py {shlex.join([*_without(argv, ('--quick',), STORED), *script])}`"


def _divided(request: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the words of a request, and those of a script, which begin with ``--``."""
    argv = list(request.get("argv", ()))
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end], argv[end:]


def _without(argv: Sequence[str], flags: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return words without some flags, and without some options and their values."""
    words: list[str] = []
    is_value = False  # of an option that is left out
    for word in argv:
        name, equals, _ = word.partition("=")
        if is_value or name in flags:
            is_value = False
        elif name in options:
            is_value = not equals
        else:
            words.append(word)
    return words
