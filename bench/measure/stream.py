"""Continuous steps: queued ahead in short outliers, so that the device never waits while the host looks at something.

No thread or process is needed for that, and so none takes time from the queueing.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol as Interface

import numpy as np

from bench.devices.energy import POLL_S

BURST_S = 0.02
AHEAD = 3
"""Bursts that are queued at once: enough to keep the device busy while a meter is read, few enough to stop soon."""

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Done = Callable[[], bool]


class Load(Interface):
    """What can run steps."""

    def queue(self, steps: int) -> Done:
        """Queue that many steps, and return what says whether they are done."""


class Nap:
    """A load that leaves the device idle: a step is 20 ms of nothing."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._until_s = clock, clock()

    def queue(self, steps: int) -> Done:
        """Wait that many times 20 ms after what is queued already."""
        until_s = self._until_s = max(self._clock(), self._until_s) + steps * BURST_S
        return lambda: self._clock() >= until_s


class Stream:
    """A load kept busy, and how many of its steps were done when."""

    def __init__(self, load: Load, burst: int, clock: Clock, sleep: Sleep) -> None:
        self._load, self._burst, self._clock, self._sleep = load, burst, clock, sleep
        self._queued: deque[Done] = deque()
        self.times_s, self.done = [clock()], [0]
        """When a burst was seen to end, and how many steps were done then."""

    def turn(self, look: Callable[[], object]) -> None:
        """Wait for a burst to end, with others queued behind it, calling ``look`` at least once meanwhile."""
        while len(self._queued) < AHEAD:
            self._queued.append(self._load.queue(self._burst))
        look()
        self._wait(look)

    def run(self, seconds: float) -> None:
        """Turn for that long."""
        until_s = self._clock() + seconds
        while self._clock() < until_s:
            self.turn(lambda: None)

    def drain(self) -> None:
        """Wait for all that is queued."""
        while self._queued:
            self._wait(lambda: None)

    def steps_at(self, moment_s: float) -> float:
        """Return how many steps were done at a moment, at an even pace within each burst."""
        return float(np.interp(moment_s, self.times_s, self.done))

    def _wait(self, look: Callable[[], object]) -> None:
        done = self._queued.popleft()
        while not done():
            self._sleep(POLL_S)
            look()
        self.times_s.append(self._clock())
        self.done.append(self.done[-1] + self._burst)


def burst_steps(step_s: float) -> int:
    """Return how many steps of that length make a burst."""
    return max(1, math.ceil(BURST_S / step_s)) if step_s > 0 else 1
