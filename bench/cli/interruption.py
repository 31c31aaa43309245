"""Ctrl-C, SIGTERM and the end of the terminal: the first stops the work, the next skips the report, a third ends all.

Imports nothing that takes a moment, because Ctrl-C may come in any.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType, TracebackType
    from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.02
"""When an interruption that Python has swallowed, or that had to wait, is raised again."""
IMPORT_S, SILENT_S = 10.0, 0.3
"""How long an interruption waits for an import to end, and after which time it says so."""
TOGETHER_S = 0.1
"""Signals that come so soon after another are the same: a key is held down, or a supervisor sends several."""
CLEAR_LINE = b"\r\x1b[K"


class Interrupted(KeyboardInterrupt):
    """The work was stopped, and the user has been told what is finished and how to go on."""

    def __init__(self, folder: Path | None = None) -> None:
        """Keep the folder of a run that can be reported on; None if there is none."""
        super().__init__()
        self.folder = folder


class Interruption:
    """A context manager in which signals that end a program raise KeyboardInterrupt in its main thread, once.

    What follows the first only counts while the work is stopped, until ``accept`` lets it raise again. A third ends the
    process at once; what it has started ends with it.
    """

    def __init__(self, *, for_good: bool, program: str = "") -> None:
        """Prepare.

        Args:
            for_good: nothing follows in this process, whose end then cannot be interrupted either.
            program: what it is called where it says that it stops.
        """
        self.came: list[int] = []
        self._last = -math.inf
        self._program, self._said = program, False
        self._for_good, self._accepts = for_good, True
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook
        self._terminals: list[int] = []

    def __enter__(self) -> Interruption:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may say what becomes of signals
        self._terminals = [descriptor for descriptor in (1, 2) if _is_terminal(descriptor)]
        for number in ENDING:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # others were chosen
                self._before[number] = signal.signal(number, self._take)
        if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._raise)
            sys.unraisablehook = self._swallowed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.unraisablehook = self._hook
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._for_good else handler)

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the first signal has stopped."""
        return 128 + (self.came[0] if self.came else signal.SIGINT)

    @property
    def again(self) -> bool:
        """Whether another signal came while the work was stopped."""
        return len(self.came) > 1

    def accept(self) -> None:
        """Let the next signal raise KeyboardInterrupt again."""
        self._accepts = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._tidy(number)
        if time.monotonic() - self._last < TOGETHER_S:
            return
        self.came.append(number)
        self._last = time.monotonic()
        if len(self.came) > 2:
            self._say("stopped")
            os._exit(self.exit_code)
        if self._accepts:
            self._accepts = False
            self._raise(number, frame)

    def _tidy(self, number: int) -> None:
        """Remove the ^C that a terminal has shown; stop writing to one that is gone."""
        for descriptor in self._terminals:
            if number == signal.SIGINT:
                try:
                    os.write(descriptor, b"\n" if os.environ.get("TERM", "dumb") == "dumb" else CLEAR_LINE)
                    return
                except OSError:
                    _silence_if_gone(descriptor)
            elif number == signal.SIGHUP:
                _silence_if_gone(descriptor)

    def _swallowed(self, report: Any) -> None:
        """Raise again what Python ignores where nobody could catch it, as in a callback of an import."""
        if self.came and issubclass(report.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            self._hook(report)

    def _raise(self, _number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, but within an import when that is finished.

        What an import has left half done is of no use to what is still to be said and reported, and C code that
        imports, as torch does numpy, ignores the exception.
        """
        waited_s = time.monotonic() - self._last
        if not (_imports(frame) and waited_s < IMPORT_S and signal.getsignal(signal.SIGALRM) == self._raise):
            raise KeyboardInterrupt
        if waited_s > SILENT_S and not self._said:
            self._said = True
            self._say("stopping")
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    def _say(self, word: str) -> None:
        try:  # noqa: SIM105 - contextlib takes a moment to import
            os.write(2, f"{self._program}: {word}.\n".encode())
        except OSError:  # nobody is left to read it
            pass


def invocation() -> str:
    """Return how this program was started, as a user types it."""
    import shlex

    program = sys.argv[0]
    return f"python {shlex.quote(program)}" if program.endswith(".py") else program.rpartition("/")[2]


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _silence_if_gone(descriptor: int) -> None:
    """Let what is written to a terminal that is gone go nowhere, so that it is no error."""
    if not _is_terminal(descriptor):
        try:  # noqa: SIM105 - contextlib takes a moment to import
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        except OSError:  # no descriptor is left
            pass


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
