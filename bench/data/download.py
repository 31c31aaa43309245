"""What downloads have in common."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager

STALLED_S = 30.0
"""A server that says nothing for so long is given up."""
FAILURES = (OSError, RuntimeError, http.client.HTTPException)
"""What torch's and torchvision's downloads raise: no network, a wrong checksum, a broken answer."""


@contextmanager
def patience(seconds: float = STALLED_S) -> Iterator[None]:
    """Give up on a connection that says nothing for so long: the libraries set no limit, and would wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
