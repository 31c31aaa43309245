"""Ctrl-C and SIGTERM: the first stops the work, the second ends the process at once.

However a run ends, what it has stored stays, and the processes that it has started end with it. Imports nothing that
takes a moment, because Ctrl-C may come in any.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

TOGETHER_S = 0.1
"""Signals that come so soon after the first are the same: a key is held down, or a supervisor sends several."""


class Interruption:
    """A context manager in which the first signal raises KeyboardInterrupt, and the second ends the process."""

    def __init__(self, said: str) -> None:
        """Prepare; ``said`` is what a process says that is ended at once."""
        self._said = said
        self._number, self._came_s = 0, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # others were chosen
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the first signal has stopped."""
        return 128 + (self._number or signal.SIGINT)

    def _take(self, number: int, _frame: object) -> None:
        if not self._number:
            self._number, self._came_s = number, time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self._came_s > TOGETHER_S:
            self._end()

    def _end(self) -> None:
        with suppress(OSError):  # nobody is left to read it
            os.write(2, self._said.encode())
        os._exit(self.exit_code)


def tell_stopped(folder: Path | None) -> None:
    """Say how to go on with a run that was stopped; nothing of one that has stored nothing yet."""
    import shlex

    from bench.spec.text import print_plain

    if folder is None or not (folder / "run.json").exists():
        return
    program, where = _invocation(), shlex.quote(str(folder))
    with suppress(OSError):  # nobody is left to read it
        print_plain(
            f"What was measured is kept in {folder}: {program} --resume {where} goes on, and {program} report {where} "
            "reports it.",
            error=True,
        )


def _invocation() -> str:
    """Return how this program was started, as a user types it."""
    import shlex

    program = sys.argv[0]
    return f"python {shlex.quote(program)}" if program.endswith(".py") else program.rpartition("/")[2]
