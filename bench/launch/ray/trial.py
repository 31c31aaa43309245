"""A trial on several nodes at the same time: the records of its first part, and how all of them ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from bench.launch.local import Ending
from bench.launch.merge import TELLING, Fate, failure, results
from bench.results.records import Message, TrialResult

GRACE_S = 5.0
"""How long the others may take to say why they failed, too, before they are ended."""
HALT_S = 2.0
"""How often those that are to end are told so."""


class NodeLostError(Exception):
    """The node, or the actor on it, is gone."""


class CancelledError(Exception):
    """The run was stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One node's part of a trial."""

    name: str
    """Of the node."""
    listen: Callable[[], Iterable[Message | Ending]]
    """Starts it and yields what it says, its ending last."""
    halt: Callable[[], None]
    """Makes it end soon; may be called again."""


def spread(sources: Sequence[Source], on_message: Callable[[Message], None], grace_s: float = GRACE_S) -> Ending:
    """Run all parts of a trial at the same time, and return how it ended.

    The first part's records are handed on: its signs of life as they come, its results with the memory of all parts.
    When one has failed, those that wait for it in vain are ended.

    Raises:
        NodeLostError: a node is gone; the others have ended.
        CancelledError: the run was stopped; the others have ended.
    """
    heard: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def listen(number: int) -> None:
        try:
            for message in sources[number].listen():
                heard.put((number, message))
            heard.put((number, NodeLostError(f"{sources[number].name} ended without a word")))
        except Exception as error:  # whoever waits for the ending must get one
            heard.put((number, error))

    with ThreadPoolExecutor(len(sources)) as pool:
        for number in range(len(sources)):
            pool.submit(listen, number)
        hearing = _Hearing(sources, on_message, grace_s)
        while hearing.running:
            try:
                number, message = heard.get(timeout=hearing.patience_s)
            except Empty:
                hearing.halt()
                continue
            hearing.take(number, message)
    return hearing.end()


class _Hearing:
    """What has been heard of the parts of a trial."""

    def __init__(self, sources: Sequence[Source], on_message: Callable[[Message], None], grace_s: float) -> None:
        self.sources, self.on_message, self.grace_s = sources, on_message, grace_s
        self.running = set(range(len(sources)))
        self.kept: dict[int, list[TrialResult]] = {number: [] for number in self.running}
        self.fates: list[Fate] = []
        self.error: Exception | None = None
        self.failed_s: float | None = None
        self.halted = False

    @property
    def patience_s(self) -> float | None:
        """How long to wait for a word; None is as long as it takes."""
        if self.failed_s is None:
            return None
        return HALT_S if self.halted else max(0.0, self.failed_s + self.grace_s - time.monotonic())

    def take(self, number: int, message: Any) -> None:
        """Take a part's message, its ending, or the error in place of that."""
        if number not in self.running:
            return
        if isinstance(message, Ending):
            self.running.discard(number)
            self._ended(number, message)
        elif isinstance(message, Exception):
            self.running.discard(number)
            self.error = self.error or message
            self.halt()
        elif isinstance(message, TrialResult):
            self.kept[number].append(message)
        elif number == 0 and not self.halted:
            self.on_message(message)

    def halt(self) -> None:
        """End the parts that run."""
        self.halted, self.failed_s = True, self.failed_s or time.monotonic()
        for number in self.running:
            self.sources[number].halt()

    def end(self) -> Ending:
        """Say how the trial ended, and hand its results on if it did not fail."""
        if self.error is not None:
            raise self.error
        if (failed := failure(self.fates)) is not None:
            return failed
        others = [result for number, kept in self.kept.items() if number for result in kept]
        for result in results(self.kept[0], others):
            self.on_message(result)
        return Ending(kind="done")

    def _ended(self, number: int, ending: Ending) -> None:
        if self.halted:
            return  # which is why it ended
        now = time.monotonic()
        self.fates.append(Fate(node=self.sources[number].name, ending=ending, time_s=now))
        if ending.kind != "done":
            self.failed_s = self.failed_s or now
            if ending.kind in TELLING:
                self.halt()
