"""Ctrl-C, SIGTERM and the end of the terminal: the first stops the work, the next skips the report, a third ends all.

Also says what a run that was stopped has finished, and how to go on. Imports nothing that takes a moment, because
Ctrl-C may come in any.
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
    from collections.abc import Callable
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
        """Prepare; with ``for_good`` nothing follows in this process, whose end then cannot be interrupted either."""
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
        for descriptor in self._terminals:
            _silence_if_gone(descriptor)
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


def tell_interrupted(folder: Path | None) -> None:
    """Say that a run was stopped, how many of its trials are finished, and how to go on.

    There may be no folder yet.
    """
    finished, total = _progress(folder) if folder is not None else (0, 0)
    if finished:
        tell(f"Stopped: {finished} of {total} planned trials are finished, in {folder}.")
    else:
        tell("Stopped before a trial was finished.")
    if folder is None or not (folder / "run.json").exists():
        tell("Start it again with the same command.")
    else:
        import shlex

        tell(f"Go on with {invocation()} --resume {shlex.quote(str(folder))}")


def _progress(folder: Path) -> tuple[int, int]:
    """Return how many trials of a run's plan are finished, and how many it has; zeros if nobody can tell.

    What is left out because it does not fit, or is not supported, is finished too, as it is where the run goes on.
    """
    from bench.report.reading.completeness import finished  # with pandas, which a new run does without until its report
    from bench.results.run_json import read_run
    from bench.spec.errors import UsageError

    try:
        trials = list(read_run(folder).get("planned") or ())
        return finished(trials, folder / "trials.csv"), len(trials)
    except UsageError:
        return 0, 0


def report_interrupted(folder: Path | None, signals: Interruption, write: Callable[[Path], None]) -> None:
    """Let ``write`` report what a stopped run has finished, if it has a folder and the user wants to wait for it."""

    def write_part(folder: Path) -> None:
        signals.accept()
        if signals.again:
            raise KeyboardInterrupt
        tell("Writing a partial report of what is finished; Ctrl-C skips it.")
        write(folder)

    if folder is not None:
        try:  # noqa: SIM105 - contextlib takes a moment to import
            skippable(folder, write_part)
        except OSError:  # nobody reads it any more
            pass


def skippable(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a run's report; if Ctrl-C ends that, say how to write it later.

    Raises:
        Interrupted: Ctrl-C ended it.
    """
    try:
        write(folder)
    except Interrupted:  # it has been said where the report is
        raise
    except KeyboardInterrupt as stop:
        import shlex

        where = shlex.quote(str(folder))
        tell(f"No report was written. What was measured is in {folder}: {invocation()} report {where} writes one.")
        raise Interrupted from stop


def tell(text: str) -> None:
    """Print a line; to stderr if whoever reads the rest is gone, as after Ctrl-C the reader of a pipe is."""
    from bench.spec.text import print_plain

    try:
        print_plain(text)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # takes what is still buffered, which would be printed again
        sys.stdout = sys.stderr
        try:  # noqa: SIM105 - contextlib takes a moment to import
            print_plain(text)
        except OSError:
            pass
