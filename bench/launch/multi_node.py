"""A trial whose processes are started in several places: the records of its first part, and how all parts ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from bench.launch.launcher import Ending
from bench.launch.merge import merge_results
from bench.results.records import Message, TrialResult

GRACE_S = 5.0
"""How long the other parts may take to fail by themselves, and say why, after one has failed."""
END_S = 60.0
"""How long the other parts may take to end after the first part has ended well."""
HALT_S = 2.0
"""How often parts that are to end are halted again."""
CAUSES = ("oom", "unsupported", "usage", "timeout")
"""Endings that are a cause by themselves; others may follow from another part's, such as a closed connection."""


class NodeLostError(Exception):
    """A supervisor, or the machine it runs on, is gone."""


class CancelledError(Exception):
    """The run was stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The processes of a trial that one supervisor starts."""

    name: str
    """The supervisor's, for error messages."""
    run: Callable[[], Iterable[Message | Ending]]
    """Starts the processes and yields their records, the ending last; raises NodeLostError."""
    halt: Callable[[], None]
    """Ends the processes soon; may be called again."""


def run_parts(
    parts: Sequence[Part], on_message: Callable[[Message], None], grace_s: float = GRACE_S, end_s: float = END_S
) -> Ending:
    """Run all parts of a trial at the same time, and return how the trial ended.

    Records of the first part are passed on: progress as it comes, results with the memory of all parts once every part
    has ended well. When one part fails, the others are halted.

    Raises:
        NodeLostError: a supervisor is gone; the other parts have ended.
        CancelledError: the run was stopped; the other parts have ended.
    """
    inbox: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def listen(number: int) -> None:
        try:
            for message in parts[number].run():
                inbox.put((number, message))
            inbox.put((number, NodeLostError(f"{parts[number].name} ended without a word")))
        except Exception as error:  # the receiver waits for an ending
            inbox.put((number, error))

    with ThreadPoolExecutor(len(parts)) as pool:
        listening = [pool.submit(listen, number) for number in range(len(parts))]
        trial = _MultiNodeTrial(parts, on_message, grace_s, end_s)
        try:
            while trial.running:
                try:
                    number, message = inbox.get(timeout=trial.timeout_s())
                except Empty:
                    trial.halt()
                else:
                    trial.take(number, message)
        except BaseException:  # Ctrl-C
            while wait(listening, HALT_S).not_done:
                trial.halt()
            raise
    return trial.end()


def failure(endings: Sequence[tuple[str, Ending]]) -> Ending | None:
    """Return why a trial failed, and where; None if no part failed.

    Args:
        endings: each part's name and ending, in the order in which they arrived.

    An ending that is a cause by itself comes first, then the one that arrived first. The other endings are secondary
    failures, which are appended only if no ending is sure to be the cause.
    """
    failed = [(name, ending) for name, ending in endings if ending.kind != "done"]
    if not failed:
        return None
    (name, first), *others = sorted(failed, key=lambda pair: pair[1].kind not in CAUSES)
    texts = [f"{name}: {first.text}"]
    if first.kind not in CAUSES:
        texts += [f"{other}: {ending.text.partition(' | ')[0]}" for other, ending in others]
    return Ending(kind=first.kind, text="; ".join(texts))


class _MultiNodeTrial:
    """The state of a trial in several parts."""

    def __init__(
        self, parts: Sequence[Part], on_message: Callable[[Message], None], grace_s: float, end_s: float
    ) -> None:
        self.parts, self.on_message, self.grace_s, self.end_s = parts, on_message, grace_s, end_s
        self.running = set(range(len(parts)))
        self.results: dict[int, list[TrialResult]] = {number: [] for number in self.running}
        self.endings: list[tuple[str, Ending]] = []
        self.error: Exception | None = None
        self.deadline_s: float | None = None
        self.halted = False

    def timeout_s(self) -> float | None:
        """Return how long to wait for the next message; None is without limit."""
        if self.halted:
            return HALT_S
        return None if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())

    def take(self, number: int, message: Any) -> None:
        """Take a part's message, its ending, or the error that it raised instead."""
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
            self.results[number].append(message)
        elif number == 0 and not self.halted:
            self.on_message(message)

    def halt(self) -> None:
        """End the parts that still run."""
        if not self.halted and all(ending.kind == "done" for _, ending in self.endings) and self.error is None:
            late = [(self.parts[number].name, "did not end with the others") for number in self.running]
            self.endings += [(name, Ending(kind="died", text=text)) for name, text in late]
        self.halted = True
        for number in self.running:
            self.parts[number].halt()

    def end(self) -> Ending:
        """Return how the trial ended, after passing on its results if it did not fail."""
        if self.error is not None:
            raise self.error
        if (failed := failure(self.endings)) is not None:
            return failed
        others = [result for number, results in self.results.items() if number for result in results]
        for result in merge_results(self.results[0], others):
            self.on_message(result)
        return Ending(kind="done")

    def _ended(self, number: int, ending: Ending) -> None:
        if self.halted:
            return  # because of which it ended
        self.endings.append((self.parts[number].name, ending))
        now = time.monotonic()
        if ending.kind in CAUSES:
            self.halt()
        elif ending.kind != "done":
            self.deadline_s = min(self.deadline_s or now + self.grace_s, now + self.grace_s)
        elif number == 0 and self.deadline_s is None:
            self.deadline_s = now + self.end_s
