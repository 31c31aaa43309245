"""A trial on several devices: its ranks run at the same time, each in a worker, here or on other nodes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from bench.launch import Ending, OnMessage
from bench.phases.memory import MemoryPeak
from bench.results.records import TrialResult

GRACE_S = 5.0
"""How long the other ranks may take to report the cause after one has reported that it lost them."""
HALT_S = 2.0
"""How often ranks that are to end are halted again: a process may have been about to start."""
CAUSES = ("oom", "unsupported", "usage", "import", "timeout")
"""Endings that are a cause by themselves; others may follow from another rank's."""
ALIKE = ("unsupported", "usage")
"""Endings that concern all ranks alike, whose text names no device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One of the processes that train together."""

    name: str
    """Its device's, for error messages."""
    run: Callable[[OnMessage], Ending]
    """Runs the process and passes its records on; may raise, if what runs the process is gone."""
    halt: Callable[[], None]
    """Ends the process soon; may be called again."""


def run_ranks(ranks: Sequence[Rank], on_message: OnMessage, grace_s: float = GRACE_S) -> Ending:
    """Run all ranks of a trial at the same time, and return how the trial ended.

    Records of the first rank are passed on: progress as it comes, results with the memory of all ranks once every rank
    has ended well. When one rank fails, the others are halted.

    Raises:
        Exception: the first that a rank raised; the other ranks have ended.
    """
    inbox: SimpleQueue[tuple[int, Any]] = SimpleQueue()
    running, failed = set(range(len(ranks))), list[tuple[str, Ending | Exception]]()
    results: list[list[TrialResult]] = [[] for _ in ranks]
    halted, halt_s = False, threading.TIMEOUT_MAX  # whether the other ranks are to end, and when they are halted next

    def run(number: int) -> None:
        try:
            inbox.put((number, ranks[number].run(lambda message: inbox.put((number, message)))))
        except Exception as error:
            inbox.put((number, error))

    def halt() -> None:
        for number in running:
            ranks[number].halt()

    with ThreadPoolExecutor(len(ranks)) as pool:
        threads = [pool.submit(run, number) for number in running]
        try:
            while running:
                try:
                    number, message = inbox.get(timeout=max(0.0, halt_s - time.monotonic()))
                except Empty:
                    halted, halt_s = True, time.monotonic() + HALT_S
                    halt()
                    continue
                if isinstance(message, Ending | Exception):
                    running.discard(number)
                    if not halted and getattr(message, "kind", "") != "done":  # what is halted ends because of that
                        failed.append((ranks[number].name, message))
                        wait_s = grace_s if getattr(message, "secondary", False) else 0.0
                        halt_s = min(halt_s, time.monotonic() + wait_s)
                elif isinstance(message, TrialResult):
                    results[number].append(message)
                elif number == 0 and not halted:
                    on_message(message)
        except BaseException:  # Ctrl-C
            halt()
            while wait(threads, HALT_S).not_done:
                halt()
            raise
    if failed:
        return cause(failed)
    for result in results[0]:
        alike = [other for each in results for other in each if other.precision == result.precision]
        peaks = [other.row for other in alike if isinstance(other.row, MemoryPeak)]
        on_message(replace(result, row=MemoryPeak.of_all(peaks)) if len(peaks) > 1 else result)
    return Ending(kind="done")


def cause(failed: Sequence[tuple[str, Ending | Exception]]) -> Ending:
    """Return why a trial failed, and where.

    Args:
        failed: name and ending of each rank that failed, in the order of their arrival. Those that report the loss of
            another rank come last, those that are a cause by themselves first.

    Raises:
        Exception: the first that a rank raised instead of ending.
    """
    endings = list[tuple[str, Ending]]()
    for name, ending in failed:
        if isinstance(ending, Exception):
            raise ending
        endings.append((name, ending))
    name, ending = min(endings, key=lambda pair: (pair[1].secondary, pair[1].kind not in CAUSES))
    return ending if ending.kind in ALIKE else replace(ending, text=f"{name}: {ending.text}")


def free_port() -> int:
    """Return a free port of this machine, at which the ranks of a trial may meet."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
