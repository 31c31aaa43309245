"""Ctrl-C and SIGTERM: the first stops the run, the second ends the process at once.

Either way what the run has stored stays, the processes that it has started end with it, and a
sentence says how it goes on. Imports nothing that takes a moment, because Ctrl-C may come in any.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

STOPPED = "run_bench: stopped.\n"
# Signals that come so soon after the first are the same: a key is held down, or a supervisor sends
# several.
TOGETHER_S = 0.1


class Interruption:
    """A context in which the first signal raises KeyboardInterrupt, and the second ends all."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """The run's, once it has one."""
        self.exit_code = 128 + signal.SIGINT
        """Of a process that the first signal has stopped."""
        self._came_s: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in defaults:  # another was chosen, as by nohup
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: object) -> None:
        if self._came_s is None:
            self._came_s = time.monotonic()
            self.exit_code = 128 + number
            raise KeyboardInterrupt
        if time.monotonic() - self._came_s > TOGETHER_S:
            self.tell_stopped()
            os._exit(self.exit_code)

    def tell_stopped(self) -> None:
        """Say that the run was stopped, and how it goes on if it has stored anything."""
        text = STOPPED
        if self.folder is not None and (self.folder / "run.json").exists():
            import shlex

            from bench.spec.text import plain

            where = shlex.quote(plain(str(self.folder)))
            text = f"Go on with: python run_bench.py --resume {where}\n{STOPPED}"
        with suppress(OSError):  # nobody is left to read it
            os.write(2, text.encode())
