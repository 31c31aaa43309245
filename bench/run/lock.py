"""The lock of a run's folder, so that no two processes append to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.spec.errors import UsageError

LOCK = "run.lock"
WAIT_S, POLL_S = 0.2, 0.05
"""How long an owner that has just ended may take to be recognised as such, and how often that is tried."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder, which must exist.

    The lock names its owner's process, host and start. An owner that has ended on this host does not hold it any more;
    whether one on another host has ended cannot be known.

    Raises:
        UsageError: another process holds it; the message says which, and what to do.
        OSError: the folder cannot be written.
    """
    from filelock import SoftFileLock, Timeout  # not needed for --help

    path = folder / LOCK
    lock = SoftFileLock(path, timeout=WAIT_S, poll_interval=POLL_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(f"The run in '{folder}' {_holder(path)}") from error
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """Say who holds a lock, and what to do."""
    lines: list[str] = []
    with suppress(OSError, UnicodeDecodeError):  # it ended just now, or is no text
        lines = path.read_text().split()
    owner = f" by process {lines[0]} on {lines[1].partition('?')[0]}" if len(lines) > 1 else ""
    return f"is in use{owner}. Wait until that has ended; if it has, and left '{path}' behind, remove that file."
