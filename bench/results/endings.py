"""How the process of a trial ended, and what follows from it for the trial's rows.

A kind of ending is added to ``EndingKind``, and to those of the rules that it falls under.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bench.results.records import Status

# ``usage``, ``oom``, ``error`` and ``unsupported`` are what the process reported; of ``oom`` and
# ``unsupported`` it may also be known without a process. ``import``: no process can import its
# libraries. ``lost``: what ran the process is gone, by no fault of the process.
EndingKind = Literal[
    "done", "usage", "oom", "unsupported", "error", "import", "died", "timeout", "lost"
]

# The text says all: neither the process's output nor its last activity adds anything.
SELF_EXPLANATORY: tuple[EndingKind, ...] = ("done", "usage", "oom", "unsupported")
# Of several ranks that failed, these are a cause by themselves; other endings may only follow from
# another rank's.
CONCLUSIVE: tuple[EndingKind, ...] = ("oom", "unsupported", "usage", "import", "timeout")
# They concern all ranks alike, so the text names no device.
OF_ALL_RANKS: tuple[EndingKind, ...] = ("unsupported", "usage")
# An arm is not tried again in its cell: it would crash again, or hang for as long again.
BROKEN: tuple[EndingKind, ...] = ("died", "timeout")
# An arm's fault: of several arms, whose it is is shown by trying each apart.
FAULTS: tuple[EndingKind, ...] = (*BROKEN, "error")
# The statuses of rows by the kind of ending; of all others it is ``failed``.
STATUSES: dict[EndingKind, Status] = {
    "oom": "oom",
    "timeout": "timeout",
    "unsupported": "unsupported",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a process ended, its last word: ``done`` with a value, or why not."""

    kind: EndingKind
    value: Any = None
    text: str = ""
    log: str = ""
    """All that a process that failed has printed."""
    secondary: bool = False
    """Whether the process failed because it lost another rank of its trial, whose own error may
    arrive later."""
