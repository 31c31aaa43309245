"""The line between node 0 and another node: messages both ways, and signs of life between them."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

BEAT_S = 5.0
"""How often each end says that it is there."""
SILENCE_S = 60.0
"""After so long without a sign the other end is taken to be lost."""

HELLO_BYTES = 1 << 16
"""The longest greeting that is read."""


class LostError(Exception):
    """The other end is gone."""


class Wire:
    """One end. Messages are pickled, so both ends run the same code, and know the job's word."""

    def __init__(self, connection: Connection, *, beat_s: float = BEAT_S, silence_s: float = SILENCE_S) -> None:
        """Begin to send signs of life.

        Args:
            connection: to the other end.
            beat_s: how often to send one.
            silence_s: how long the other end may say nothing.
        """
        self._connection, self._silence_s = connection, silence_s
        self._sending = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._beat, args=(beat_s,), daemon=True).start()

    def send(self, message: object) -> None:
        """Send a message.

        Raises:
            LostError: nobody takes it.
        """
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            raise LostError(f"the connection is gone ({error})") from error

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            LostError: there will be none.
        """
        try:
            while self._connection.poll(self._silence_s):
                if (message := self._connection.recv()) is not None:
                    return message
        except (EOFError, OSError) as error:
            raise LostError("the connection has ended") from error
        raise LostError(f"no sign of life for {self._silence_s:.0f} s")

    def close(self) -> None:
        """End the line; the other end hears of it, and so does who waits in ``receive`` at this one."""
        self._closed.set()
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def _beat(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            with suppress(LostError):  # whoever receives will hear of it
                self.send(None)


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address of this machine.

    Raises:
        OSError: it is none, or the port is taken.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def admit(found: socket.socket, word: str) -> Connection:
    """Return the connection to one that has called, if it knows the job's word.

    Raises:
        AuthenticationError: it knows another.
        OSError, EOFError: it is gone.
    """
    connection = Connection(found.detach())
    deliver_challenge(connection, word.encode())
    answer_challenge(connection, word.encode())
    return connection


def connect(host: str, port: int, word: str, patience_s: float) -> Connection:
    """Connect to node 0 as soon as it listens.

    Raises:
        AuthenticationError: it knows another word, or is no node 0 at all.
        OSError: it did not answer in time.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            found = socket.create_connection((host, port), timeout=max(1.0, end - time.monotonic()))
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    found.settimeout(None)
    connection = Connection(found.detach())
    try:
        if not connection.poll(SILENCE_S):
            raise AuthenticationError("it says nothing")
        answer_challenge(connection, word.encode())
        deliver_challenge(connection, word.encode())
    except (AssertionError, EOFError) as error:  # before Python 3.12 an odd greeting is an AssertionError
        raise AuthenticationError(str(error) or "it hung up") from error
    return connection
