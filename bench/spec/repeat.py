"""The command line of a run, repeated to measure something else of the same recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from bench.spec.phases import SWITCHES

OF_WHAT = ("--precisions", "--phases", "--techniques", "--epochs", "--seeds", "--within", "--out", "--resume")
"""Options with a value that say what of a recipe a run measures, or where it is stored."""


def repeated(request: Mapping[str, Any], *more: str) -> str:
    """Return the command of a run without what says what and how much it measures, and with other words instead."""
    words: list[str] = []
    argv = list(request.get("argv", ()))
    end = argv.index("--") if "--" in argv else len(argv)
    script = argv[end:]
    del argv[end:]
    if argv and not argv[0].startswith("-") and not script:
        del argv[0]  # a command that measures phases of its own
    is_value = False  # of an option that is left out
    for word in argv:
        name, equals, _ = word.partition("=")
        if is_value or name == "--quick" or name in SWITCHES:
            is_value = False
        elif name in OF_WHAT:
            is_value = not equals
        else:
            words.append(word)
    return f"`python run_bench.py {shlex.join([*words, *more, *script])}`"
