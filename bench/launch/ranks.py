"""A trial on several devices: its ranks run at the same time, each in a worker, here or on other nodes."""

from __future__ import annotations

import math
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from bench.launch import WAKE_S, Ending, OnMessage
from bench.phases.memory import MemoryPeak
from bench.results.records import Message, TrialResult

# How long the other ranks may take to report the cause after one has reported that it lost them.
GRACE_S = 5.0
# Endings that are a cause by themselves; others may follow from another rank's.
CAUSES = ("oom", "unsupported", "usage", "import", "timeout")
# Endings that concern all ranks alike, whose text names no device.
ALIKE = ("unsupported", "usage")


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

    Records of the first rank are passed on: progress as it comes, from a thread, and results with
    the memory of all ranks once every rank has ended well. When one rank fails, the others are
    halted.

    Raises:
        Exception: the first that a rank raised; the other ranks have ended.
    """
    results: list[TrialResult] = []
    peaks: defaultdict[str, list[MemoryPeak]] = defaultdict(list)
    failed = list[tuple[str, Ending]]()
    halt_s = math.inf  # when the ranks that still run are to end

    def hear(number: int, message: Message) -> None:
        if isinstance(message, TrialResult):
            if isinstance(message.row, MemoryPeak):
                peaks[message.precision].append(message.row)
            if number == 0:
                results.append(message)
        elif number == 0 and time.monotonic() < halt_s:
            on_message(message)

    with ThreadPoolExecutor(len(ranks)) as pool:
        jobs = {}
        for number, rank in enumerate(ranks):
            jobs[pool.submit(rank.run, partial(hear, number))] = rank
        running = set(jobs)
        try:
            while running and time.monotonic() < halt_s:
                ended, running = wait(running, WAKE_S, FIRST_COMPLETED)
                for job in ended:
                    ending = job.result()
                    if ending.kind != "done":
                        failed.append((jobs[job].name, ending))
                        halt_s = min(
                            halt_s, time.monotonic() + (grace_s if ending.secondary else 0.0)
                        )
        finally:  # also after Ctrl-C, or what a rank raised
            halt_s = 0.0
            while running:
                for job in running:  # again and again, for a process may have been about to start
                    jobs[job].halt()
                running = wait(running, WAKE_S).not_done
    if failed:
        # Last come those that report the loss of another rank, first those that are a cause by
        # themselves.
        name, ending = min(failed, key=lambda pair: (pair[1].secondary, pair[1].kind not in CAUSES))
        return ending if ending.kind in ALIKE else replace(ending, text=f"{name}: {ending.text}")
    for result in results:
        of_all = peaks[result.precision]
        on_message(replace(result, row=MemoryPeak.of_all(of_all)) if len(of_all) > 1 else result)
    return Ending(kind="done")


def free_port() -> int:
    """Return a free port of this machine, at which the ranks of a trial may meet."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
