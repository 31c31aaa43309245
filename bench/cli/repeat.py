"""The command line of a run, repeated at length or to measure something else of its recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from bench.cli.parser import option_name, run_options


def repeated(request: Mapping[str, Any], *more: str) -> str:
    """Return the command of a run as the next step.

    Args:
        request: of run.json.
        more: words that say what to measure instead; without any only ``--quick`` and its like go.
    """
    argv = list(request.get("argv", ()))
    script = []
    if "--" in argv:  # a script's own options look like these, and stay
        mark = argv.index("--")
        script = argv[mark:]
        argv = argv[:mark]
    is_command = bool(argv) and not argv[0].startswith("-")
    if more and not script and is_command:
        del argv[0]  # a command that measures phases of its own
    left_out = {}
    for field, option in run_options().items():
        if (more and option.repeated == "same") or option.repeated == "never":
            name = option_name(field, option)
            left_out[name] = option
    words = []
    is_value = False  # of an option that is left out
    for word in argv:
        name, equals, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in left_out:
            is_value = bool(left_out[name].metavar) and not equals
        else:
            words.append(word)
    command = shlex.join([*words, *more, *script])
    return f"`python run_bench.py {command}`"
