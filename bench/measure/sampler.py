"""Telemetry in a process of its own.

So its Python never competes with a measurement for the GIL. The parent holds a ``Sampler``; the
child runs ``sample_forever``. Over the connection go, to the parent, lists of ``Sample`` and
``Lost``; to the child, ``"stop"``. Nothing heavy is imported, so that it is up soon.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from bench.devices.monitor import DeviceLostError, Monitor, open_monitor
from bench.results.records import Sample
from bench.spec import lifetime
from bench.spec.own_modules import own_modules_first

# NVML's own figures change every 0.1 s at most, and reading them disturbs the GPU.
PERIOD_S = 0.2
# How long stopping may take before the process is killed.
PATIENCE_S = 2.0
# The name of the process.
NAME = "ampmeter-sampler"

# Pairs of placement and UUID.
Gpus = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """The last message of a GPU that answers no more."""

    placement: str
    reason: str


def sample_forever(gpus: Gpus, connection: Connection, period_s: float) -> None:
    """Sample each period until the parent sends "stop" or hangs up, or until no GPU is left."""
    # Ctrl-C reaches the whole process group, but the parent decides when sampling ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with connection:
        monitor = open_monitor()
        if monitor is None:
            return
        with monitor, suppress(EOFError, OSError):  # The parent has closed its end.
            _sample_until_stopped(monitor, dict(gpus), connection, period_s)


def _sample_until_stopped(
    monitor: Monitor,
    gpus: dict[str, str],
    connection: Connection,
    period_s: float,
) -> None:
    parent = os.getppid()
    unsent = []
    while gpus and os.getppid() == parent:
        next_s = time.monotonic() + period_s
        unsent += _read(monitor, gpus)
        # A send that blocks would stop sampling while the parent is busy.
        _, writable, _ = select.select([], [connection], [], 0)
        if writable:
            connection.send(unsent)
            unsent = []
        # Waiting for the message also keeps the period.
        if connection.poll(max(0.0, next_s - time.monotonic())):
            connection.recv()  # "stop"
            break
    connection.send(unsent)


def _read(monitor: Monitor, gpus: dict[str, str]) -> list[Sample | Lost]:
    """Read every GPU once, and take lost ones out of ``gpus``."""
    batch: list[Sample | Lost] = []
    for placement, uuid in list(gpus.items()):
        try:
            batch.append(monitor.sample(uuid, placement))
        except DeviceLostError as failure:
            del gpus[placement]
            batch.append(Lost(placement=placement, reason=str(failure)))
    return batch


class Sampler:
    """The parent's end: starts the sampling process, receives from it, stops it.

    A context manager. Without GPUs, or without a driver, no samples come.
    """

    def __init__(self, gpus: Gpus) -> None:
        self.lost: dict[str, str] = {}
        """Why sampling ended early, by placement."""
        self.connection: Connection | None = None
        """To the child, for ``multiprocessing.connection.wait``; None when it has ended."""
        self._gpus = gpus
        self._process: multiprocessing.process.BaseProcess | None = None

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def __enter__(self) -> Sampler:
        if not self._gpus:
            return self
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=sample_forever,
            args=(self._gpus, theirs, PERIOD_S),
            name=NAME,
            daemon=True,
        )
        with own_modules_first(), lifetime.sigint_held():
            self._process.start()
        theirs.close()  # Else the stream would not end with the child.
        return self

    def drain(self) -> list[Sample]:
        """Return the samples that have come since the last time, without waiting."""
        samples = []
        try:
            while self.connection is not None and self.connection.poll():
                for item in self.connection.recv():
                    if isinstance(item, Lost):
                        self.lost[item.placement] = item.reason
                    else:
                        samples.append(item)
        except (EOFError, OSError):
            self._hang_up()
        return samples

    def stop(self) -> list[Sample]:
        """End the sampling process, and return the samples not yet drained.

        A second time returns none.
        """
        if self._process is None:
            return []
        deadline_s = time.monotonic() + PATIENCE_S

        def left_s() -> float:
            return max(0.0, deadline_s - time.monotonic())

        if self.connection is not None:
            # It may have ended by itself; what it sent before can still be drained.
            with suppress(OSError):
                self.connection.send("stop")
        samples = []
        # Draining until it hangs up, because a sampler that waits in a full pipe reads no messages.
        while self.connection is not None and self.connection.poll(left_s()):
            samples += self.drain()
        self._hang_up()
        self._process.join(left_s())
        self._process.kill()  # does nothing to a process that has ended
        self._process.join()
        self._process = None
        return samples

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
