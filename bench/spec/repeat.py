"""The command line of a run, repeated at length or to measure something else of the same recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from bench.spec.phases import SWITCHES

FLAGS = ("--quick", *SWITCHES)
STORED = ("--quick", "--within", "--out", "--resume")
"""Options that say how long a run may take, or where it is stored."""
OF_WHAT = (*STORED, *SWITCHES, "--precisions", "--phases", "--techniques", "--epochs", "--seeds")
"""Those, and options that say what of a recipe a run measures."""


def repeated(request: Mapping[str, Any], *more: str) -> str:
    """Return the command of a run without ``--quick``, or one that measures what ``more`` words say instead."""
    argv = list(request.get("argv", ()))
    end = argv.index("--") if "--" in argv else len(argv)
    argv, script = argv[:end], argv[end:]
    if more and not script and argv and not argv[0].startswith("-"):
        del argv[0]  # a command that measures phases of its own
    words: list[str] = []
    is_value = False  # of an option that is left out
    for word in argv:
        name, equals, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in (OF_WHAT if more else STORED):
            is_value = name not in FLAGS and not equals
        else:
            words.append(word)
    return f"`python run_bench.py {shlex.join([*words, *more, *script])}`"
