"""A pseudo-terminal: a script runs as in a user's, and what it prints goes to a file."""

from __future__ import annotations

import os
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROWS, COLUMNS = 24, 80
# Ctrl-D: a script that asks for input gets none, and does not wait for it.
END_OF_INPUT = b"\x04"
# How long to wait for the last of what was printed.
END_S = 5.0


@contextmanager
def terminal(log: Path) -> Iterator[int]:
    """Open a terminal of the usual size, whose output is appended to a file as it comes.

    Yields:
        The descriptor that processes take as standard input, output and error; they have ended when
        the block ends.
    """
    ours, theirs = os.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # line feeds stay as they are
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    os.write(ours, END_OF_INPUT)
    with log.open("wb", buffering=0) as file:

        def read() -> None:
            with suppress(OSError):  # EIO: nobody has the terminal any more
                while text := os.read(ours, 65536):
                    file.write(text)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield theirs
        finally:
            os.close(theirs)
            reader.join(END_S)
            os.close(ours)
