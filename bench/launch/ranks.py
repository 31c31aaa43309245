"""A trial on several devices: its ranks run at the same time, each in a worker, here or on other nodes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from bench.launch.launcher import Ending, OnMessage
from bench.results.records import MemoryPeak, Message, TrialResult

GRACE_S = 5.0
"""How long the other ranks may take to report the cause after one has reported that it lost them."""
HALT_S = 2.0
"""How often ranks that are to end are halted again."""
CAUSES = ("oom", "unsupported", "usage", "timeout")
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

    def run(number: int) -> None:
        try:
            inbox.put((number, ranks[number].run(lambda message: inbox.put((number, message)))))
        except Exception as error:
            inbox.put((number, error))

    trial = _JointTrial(ranks, on_message, grace_s)
    with ThreadPoolExecutor(len(ranks)) as pool:
        threads = [pool.submit(run, number) for number in range(len(ranks))]
        try:
            while trial.running:
                try:
                    number, message = inbox.get(timeout=trial.timeout_s())
                except Empty:
                    trial.halt()
                else:
                    trial.take(number, message)
        except BaseException:  # Ctrl-C
            trial.halt()
            while wait(threads, HALT_S).not_done:
                trial.halt()
            raise
    return trial.end()


class _JointTrial:
    """The state of a trial while its ranks run."""

    def __init__(self, ranks: Sequence[Rank], on_message: OnMessage, grace_s: float) -> None:
        self.ranks, self.on_message, self.grace_s = ranks, on_message, grace_s
        self.running = set(range(len(ranks)))
        self.results: list[list[TrialResult]] = [[] for _ in ranks]
        self.failed: list[tuple[str, Ending]] = []
        """Names and endings of the ranks that failed, in the order of their arrival."""
        self.errors: list[Exception] = []
        self.halt_s: float | None = None
        """When the ranks that still run are halted next."""
        self.halted = False

    def timeout_s(self) -> float | None:
        """Return how long to wait for the next message; None is without limit."""
        return None if self.halt_s is None else max(0.0, self.halt_s - time.monotonic())

    def take(self, number: int, message: Message | Ending | Exception) -> None:
        """Take a rank's message, its ending, or the error that it raised instead."""
        if isinstance(message, TrialResult):
            self.results[number].append(message)
        elif isinstance(message, Exception):
            self.running.discard(number)
            self.errors.append(message)
            self.halt()
        elif isinstance(message, Ending):
            self.running.discard(number)
            if message.kind == "done" or self.halted:  # a rank that is halted ends because of that
                return
            self.failed.append((self.ranks[number].name, message))
            if not message.secondary:
                self.halt()
            elif self.halt_s is None:
                self.halt_s = time.monotonic() + self.grace_s
        elif number == 0 and not self.halted:
            self.on_message(message)

    def halt(self) -> None:
        """End the ranks that still run; to be repeated, for a process may have been about to start."""
        self.halted, self.halt_s = True, time.monotonic() + HALT_S
        for number in self.running:
            self.ranks[number].halt()

    def end(self) -> Ending:
        """Return how the trial ended, after passing on the first rank's results if no rank failed."""
        if self.errors:
            raise self.errors[0]
        if self.failed:
            return cause(self.failed)
        for result in self.results[0]:
            alike = [other for results in self.results for other in results if other.precision == result.precision]
            peaks = [other.memory for other in alike if other.memory]
            several = result.memory and len(self.ranks) > 1
            self.on_message(replace(result, memory=MemoryPeak.of_all(peaks)) if several else result)
        return Ending(kind="done")


def cause(failed: Sequence[tuple[str, Ending]]) -> Ending:
    """Return why a trial failed, and where.

    Args:
        failed: name and ending of each rank that failed, in the order of their arrival. Those that report the loss of
            another rank come last, those that are a cause by themselves first.
    """
    name, ending = min(failed, key=lambda pair: (pair[1].secondary, pair[1].kind not in CAUSES))
    return ending if ending.kind in ALIKE else replace(ending, text=f"{name}: {ending.text}")


def free_port() -> int:
    """Return a free port of this machine, at which the ranks of a trial may meet."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
