"""A trial on several devices: its ranks run at the same time, each in a worker.

The workers run here or on other nodes.
"""

from __future__ import annotations

import math
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from bench.launch import WAKE_S, OnMessage
from bench.phases.memory import MemoryPeak
from bench.results.endings import CONCLUSIVE, OF_ALL_RANKS, Ending
from bench.results.records import Message, TrialResult

# How long the other ranks may take to report the cause after one has reported that it lost them.
GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One of the processes that train together."""

    name: str
    """Its device's, for error messages."""
    run: Callable[[OnMessage], Ending]
    """Runs the process and passes its records on; may raise, if what runs the process is gone."""
    halt: Callable[[], None]
    """Ends the process soon; may be called again."""


class _Records:
    """What the ranks of a trial send."""

    def __init__(self, on_message: OnMessage) -> None:
        self.on_message = on_message
        self.is_open = True
        """Whether progress is still passed on."""
        self._results: list[TrialResult] = []
        self._peaks: defaultdict[str, list[MemoryPeak]] = defaultdict(list)

    def take(self, number: int, message: Message) -> None:
        """Take a record of a rank, from its thread: results are kept, rank 0's others passed on."""
        if isinstance(message, TrialResult):
            if isinstance(message.row, MemoryPeak):
                self._peaks[message.arm].append(message.row)
            if number == 0:
                self._results.append(message)
        elif number == 0 and self.is_open:
            self.on_message(message)

    def send_results(self) -> None:
        """Pass on the results of the first rank, with the memory of all."""
        for result in self._results:
            peaks = self._peaks[result.arm]
            row = MemoryPeak.of_all(peaks) if len(peaks) > 1 else result.row
            self.on_message(replace(result, row=row))


def run_ranks(ranks: Sequence[Rank], on_message: OnMessage, grace_s: float = GRACE_S) -> Ending:
    """Run all ranks of a trial at the same time, and return how the trial ended.

    Records of the first rank are passed on: progress as it comes, from a thread, and results with
    the memory of all ranks once every rank has ended well. When one rank fails, the others are
    halted.

    Raises:
        Exception: the first that a rank raised; the other ranks have ended.
    """
    records = _Records(on_message)
    failed = _failures(ranks, records, grace_s)
    if not failed:
        records.send_results()
        return Ending(kind="done")
    # Last come those that report the loss of another rank, first those that are a cause by
    # themselves.
    name, ending = min(failed, key=lambda pair: (pair[1].secondary, pair[1].kind not in CONCLUSIVE))
    return ending if ending.kind in OF_ALL_RANKS else replace(ending, text=f"{name}: {ending.text}")


def _failures(ranks: Sequence[Rank], records: _Records, grace_s: float) -> list[tuple[str, Ending]]:
    """Run all ranks; return the name and the ending of each that did not end well by itself."""
    failed = []
    halt_s = math.inf  # when the ranks that still run are to end
    with ThreadPoolExecutor(len(ranks)) as pool:
        jobs = {}
        for number, rank in enumerate(ranks):
            jobs[pool.submit(rank.run, partial(records.take, number))] = rank
        running = set(jobs)
        try:
            while running and time.monotonic() < halt_s:
                ended, running = wait(running, WAKE_S, FIRST_COMPLETED)
                for job in ended:
                    ending = job.result()
                    if ending.kind != "done":
                        failed.append((jobs[job].name, ending))
                        patience_s = grace_s if ending.secondary else 0.0
                        halt_s = min(halt_s, time.monotonic() + patience_s)
        finally:  # also after Ctrl-C, or what a rank raised
            records.is_open = False
            while running:
                for job in running:  # again and again, for a process may have been about to start
                    jobs[job].halt()
                running = wait(running, WAKE_S).not_done
    return failed


def free_port() -> int:
    """Return a free port of this machine, at which the ranks of a trial may meet."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
