"""How a process ends with the one that started it, however that ends.

The kernel ends it, even if it hangs in C code.

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
    """Let the kernel kill this process when its parent, of that id, ends.

    It ends at once if that has happened.
    """
    _ask_for(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive() -> None:
    """Take ``end_with`` back."""
    _ask_for(0)


def end_children() -> None:
    """Kill all that this process has started, and what that has started, in any session."""
    end_tree(os.getpid(), itself=False)


def end_group(process: Any) -> None:
    """Kill a child with all that it has started and its group.

    Args:
        process: of multiprocessing; it leads a group.
    """
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
            is_running = process.info["status"] != psutil.STATUS_ZOMBIE
            with suppress(ProcessLookupError):
                if is_running and os.getpgid(process.pid) == group:
                    members.append(process.pid)
    return members


def tie_forks() -> None:
    """Let every process that this one forks from its main thread end with it.

    So do those that they fork.
    """
    parent = 0  # none: the signal would come with the end of another thread

    def note() -> None:
        nonlocal parent
        is_main = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if is_main else 0

    def tie() -> None:
        if parent:
            end_with(parent)

    os.register_at_fork(before=note, after_in_child=tie)


def _ask_for(number: int) -> None:
    if hasattr(_libc, "prctl"):
        _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


@contextmanager
def sigint_held() -> Iterator[None]:
    """Let a child start with SIGINT blocked.

    Ctrl-C during its imports would end it with a traceback.
    """
    resource_tracker.ensure_running()  # started later, it would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
