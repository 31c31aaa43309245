"""Functions of a worker that hold everything a trial may hold, and then hang or end."""

import ctypes
import os
import subprocess
import time
from multiprocessing import resource_tracker
from pathlib import Path


def hang(note):
    """Start children of all kinds, write their ids and this process's to a file, and hang in C
    code.
    """
    children = [
        subprocess.Popen(["sleep", "600"]).pid,
        subprocess.Popen(["sleep", "600"], start_new_session=True).pid,
    ]
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
        os._exit(0)
    pids = " ".join(map(str, [os.getpid(), forked, *children]))
    draft = Path(note).with_suffix(".part")
    draft.write_text(pids)
    draft.rename(note)
    while True:  # a signal ends a sleep
        ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock: no thread of Python's runs


def draw_a_progress_bar():
    """Return the kinds of what the system would have to clean up after a progress bar if this
    process were killed.
    """
    from tqdm import tqdm  # torch has imported it, if it is there

    kinds = []
    resource_tracker.register = lambda _name, kind: kinds.append(kind)
    list(tqdm(range(1)))
    return kinds


def leave_a_child():
    """Return the id of a child that goes on."""
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid
