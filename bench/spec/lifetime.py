"""How a process ends with the one that started it, however that ends: by the kernel, even if it hangs in C code.

Linux's parent-death signal (prctl(2), PR_SET_PDEATHSIG) is sent when the *thread* that started the
process ends. So it is asked for only where that is the main thread, or as long as the thread is
known to wait. Other systems have none: nothing happens there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

PR_SET_PDEATHSIG = 1
# The variable that tells the fork server its launcher's id: the launcher may be gone before the
# server can ask.
LAUNCHER = "AMPMETER_LAUNCHER"
_libc: Any = ctypes.CDLL(None)


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, of that id, ends; end at once if that has happened."""
    _ask_for(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive() -> None:
    """Take ``end_with`` back."""
    _ask_for(0)


def end_children() -> None:
    """Kill all that this process has started, and what that has started, in whatever session it is."""
    end_tree(os.getpid(), itself=False)


def end_group(process: Any) -> None:
    """Kill a child, a process of multiprocessing that leads a group, with all that it has started and its group."""
    if process.is_alive():
        end_tree(process.pid)
    with suppress(ProcessLookupError):  # nothing is left of its group, or it has not made it yet
        os.killpg(process.pid, signal.SIGKILL)


def end_tree(pid: int, *, itself: bool = True) -> None:
    """Kill a process with all that it has started, some of which may have left its group."""
    import psutil  # which takes time that the fork server has not before its parent is known

    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        tree = process.children(recursive=True)
        if itself:
            tree.insert(0, process)
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def group_members(group: int) -> list[int]:
    """Return the processes of a process group that still run."""
    import psutil

    members = []
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        for process in psutil.process_iter(["status"]):
            with suppress(ProcessLookupError):
                if (
                    process.info["status"] != psutil.STATUS_ZOMBIE
                    and os.getpgid(process.pid) == group
                ):
                    members.append(process.pid)
    return members


def tie_forks() -> None:
    """Let every process that this one forks from its main thread end with it, and so those that they fork."""
    before = {"pid": 0}

    def note() -> None:
        before["pid"] = os.getpid() if threading.current_thread() is threading.main_thread() else 0

    def tie() -> None:
        if before["pid"]:
            end_with(before["pid"])

    os.register_at_fork(before=note, after_in_child=tie)


def _ask_for(number: int) -> None:
    if hasattr(_libc, "prctl"):
        _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


@contextmanager
def sigint_held() -> Iterator[None]:
    """Let a child start with SIGINT blocked, so that Ctrl-C during its imports does not end it with a traceback."""
    resource_tracker.ensure_running()  # started later, it would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
