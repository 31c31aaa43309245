"""A pseudo-terminal for a script: it runs as in a user's terminal, and what it prints goes to a file."""

from __future__ import annotations

import os
import termios
import threading
from contextlib import suppress
from pathlib import Path

ROWS, COLUMNS = 24, 80
END_OF_INPUT = b"\x04"
"""Ctrl-D: a script that asks for input gets none, and does not wait for it."""
END_S = 5.0
"""How long to wait for the last of what was printed."""


class Terminal:
    """A terminal whose output is appended to a file as it comes.

    Processes that are to have it take ``user_side`` as standard input, output and error.
    """

    def __init__(self, log: Path) -> None:
        """Open a terminal of the usual size that changes nothing of what is printed."""
        self._other_side, self.user_side = os.openpty()
        attributes = termios.tcgetattr(self.user_side)
        attributes[1] &= ~termios.OPOST  # line feeds stay as they are
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self.user_side, termios.TCSANOW, attributes)
        termios.tcsetwinsize(self.user_side, (ROWS, COLUMNS))
        os.write(self._other_side, END_OF_INPUT)
        self._file = log.open("wb", buffering=0)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def started(self) -> None:
        """Read what is printed from now on, until no process has the terminal any more."""
        os.close(self.user_side)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # EIO: the last process has closed it
            while text := os.read(self._other_side, 65536):
                self._file.write(text)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the terminal after its processes have ended, or where none could be started."""
        if self._reader.ident is None:
            os.close(self.user_side)
        else:
            self._reader.join(END_S)
        os.close(self._other_side)
        self._file.close()
