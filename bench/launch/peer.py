"""Another node as node 0 knows it: what it was asked, what it has answered, and whether it is still there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from bench.launch.local import Ending
from bench.launch.merge import Fate
from bench.launch.orders import Answer, Order
from bench.launch.wire import LostError, Wire
from bench.results.records import TrialResult

LEAVE_S = 2.0
"""How long it may take to hang up."""


class Peer:
    """Node 0's end of the line to a node that follows it."""

    def __init__(self, rank: int, host: str, connection: Connection, on_trouble: Callable[[int | None], None]) -> None:
        """Listen to it from now on.

        Args:
            rank: its number.
            host: its name.
            connection: to it.
            on_trouble: told the number of an order that failed there, or None when the node is lost.
        """
        self.rank, self.name = rank, f"node {rank} ({host})"
        self.lost = ""
        """Why it is gone; empty while it is there."""
        self._wire, self._on_trouble = Wire(connection), on_trouble
        self._answers: dict[int, tuple[Answer, float]] = {}
        self._news = threading.Condition()
        self._lost_s = 0.0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def ask(self, order: Order) -> None:
        """Send an order; if nobody takes it, the node turns out to be lost."""
        with suppress(LostError):
            self._wire.send(order)

    def answered(self, number: int, patience_s: float | None) -> bool:
        """Wait for the answer to an order, or for the node's loss; say whether there is one of them."""
        with self._news:
            return self._news.wait_for(lambda: number in self._answers or bool(self.lost), patience_s)

    def fate(self, number: int) -> Fate:
        """Return how an order ended here."""
        answer, heard = self._answers.get(number, (None, self._lost_s))
        if answer is not None:
            return Fate(node=self.name, ending=answer.ending, time_s=heard)
        return Fate(node=self.name, ending=Ending(kind="died", text=self.lost), time_s=heard, lost=True)

    def memory(self, number: int) -> tuple[TrialResult, ...]:
        """Return what an order found out about this node's memory."""
        return self._answers[number][0].memory

    def lose(self, why: str) -> None:
        """Count on it no more."""
        with self._news:
            self.lost, self._lost_s = self.lost or why, self._lost_s or time.monotonic()
            self._news.notify_all()
        self._wire.close()

    def close(self) -> None:
        """Let it hang up, and then do so too."""
        self._thread.join(LEAVE_S)
        self._wire.close()

    def _listen(self) -> None:
        try:
            while True:
                answer: Answer = self._wire.receive()
                with self._news:
                    self._answers[answer.number] = (answer, time.monotonic())
                    self._news.notify_all()
                if answer.ending.kind != "done":
                    self._on_trouble(answer.number)
        except LostError as error:
            self.lose(str(error))
            self._on_trouble(None)
