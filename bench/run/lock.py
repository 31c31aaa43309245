"""The lock of a run's folder, so that no two processes append to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.spec.errors import UsageError

LOCK = "run.lock"
WAIT_S, POLL_S = 0.2, 0.05
"""How long an owner that has just ended may take to be recognised as such, and how often that is tried."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder, which must exist.

    The lock names its owner's process, host and start. An owner that has ended on this host does not hold it any more,
    even where its parent has not noticed; whether one on another host has ended cannot be known.

    Raises:
        UsageError: another process holds it; the message says which, and what to do.
        OSError: the folder cannot be written.
    """
    from filelock import SoftFileLock, Timeout  # not needed for --help

    path = folder / LOCK
    lock = SoftFileLock(path, timeout=WAIT_S, poll_interval=POLL_S)
    try:
        try:
            lock.acquire()
        except Timeout:  # filelock takes a process that has ended for alive until its parent has noticed
            if not _has_ended(path):
                raise
            lock.break_lock()
            lock.acquire()
    except Timeout as error:
        raise UsageError(f"The run in '{folder}' {_holder(path)}") from error
    try:
        yield
    finally:
        lock.release()


def _has_ended(path: Path) -> bool:
    """Say whether a lock's owner has ended on this host, and its parent has not noticed: whether it is a zombie."""
    owner = _owner(path)
    with suppress(ValueError, psutil.Error):
        return (
            len(owner) > 1
            and psutil.Process(int(owner[0])).status() == psutil.STATUS_ZOMBIE
            and owner[1] == _host()
            and owner == _owner(path)  # nobody has taken it meanwhile
        )
    return False


def _host() -> str:
    """Return what a lock calls this host, containers told apart: what it says where this process holds one."""
    from filelock import SoftFileLock

    with tempfile.TemporaryDirectory(prefix="ampmeter-") as place, SoftFileLock(Path(place, LOCK)):
        return _owner(Path(place, LOCK))[1]


def _owner(path: Path) -> list[str]:
    """Return the words of a lock: its owner's process and host, and more; none where nobody can tell."""
    with suppress(OSError, UnicodeDecodeError):  # it ended just now, or is no text
        return path.read_text().split()
    return []


def _holder(path: Path) -> str:
    """Say who holds a lock, and what to do."""
    lines = _owner(path)
    owner = f" by process {lines[0]} on {lines[1].partition('?')[0]}" if len(lines) > 1 else ""
    return f"is in use{owner}. Wait until that has ended; if it has, and left '{path}' behind, remove that file."
