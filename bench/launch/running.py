"""A process that one thread waits for and another may end."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress


class Running:
    """What is running now, by the number of the order that it follows."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._lock = threading.Lock()
        self._number: int | None = None
        self._pid: int | None = None
        self._stopped: set[int] = set()

    def begin(self, number: int) -> None:
        """Follow an order from now on."""
        with self._lock:
            self._number, self._pid = number, None

    def own(self, pid: int) -> None:
        """Remember the order's process; one that was to be stopped before it had begun is ended now."""
        with self._lock:
            self._pid = pid
            if self._number in self._stopped:
                self._kill()

    def end(self) -> None:
        """The order has been followed; its process is gone."""
        with self._lock:
            self._number = self._pid = None

    def stop(self, number: int | None = None) -> None:
        """End the process of an order, or of whichever is being followed."""
        with self._lock:
            number = self._number if number is None else number
            if number is not None:
                self._stopped.add(number)
            if number == self._number:
                self._kill()

    @property
    def number(self) -> int | None:
        """The order that is being followed."""
        return self._number

    def was_stopped(self, number: int) -> bool:
        """Say whether an order's process was ended, or was to be."""
        return number in self._stopped

    def _kill(self) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
