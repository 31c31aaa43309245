"""Arms that run on a simulated clock, for measuring the measurement."""

from __future__ import annotations

import random
from collections.abc import Callable


class SimulatedMachine:
    """A clock in nanoseconds that only running arms, and looking at it, move on."""

    def __init__(self, look_ns: int = 0) -> None:
        self.now_ns = 0
        self.look_ns = look_ns
        self.active: SimulatedRunner | None = None

    def clock(self) -> int:
        """Read the clock; reading takes time too."""
        self.now_ns += self.look_ns
        return self.now_ns


class SimulatedRunner:
    """An arm whose steps take ``step_ns`` times whatever the given disturbances say."""

    def __init__(
        self,
        name: str,
        machine: SimulatedMachine,
        step_ns: float,
        *,
        drift: Callable[[int], float] = lambda _now_ns: 1.0,
        noise: Callable[[], float] = lambda: 1.0,
        transient: Callable[[int], float] = lambda _index: 1.0,
        launch_ns: float = 0.0,
        asynchronous: bool = False,
        skip_every: int = 0,
    ) -> None:
        """Args say how a step's time varies: with the clock, at random, and with its index after a switch."""
        self.name, self.machine, self.step_ns = name, machine, step_ns
        self.drift, self.noise, self.transient = drift, noise, transient
        self.launch_ns, self.asynchronous = launch_ns, asynchronous
        self.skip_every = skip_every
        self.since_switch = self.steps = self.taken = 0
        self.new_allocations = 0
        self.queued = 0

    def activate(self) -> None:
        if self.machine.active is not self:
            self.machine.active = self
            self.since_switch = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            factor = self.drift(self.machine.now_ns) * self.noise() * self.transient(self.since_switch)
            self.machine.now_ns += round(self.step_ns * factor)
            self.since_switch += 1
            self.steps += 1
            self.queued += 1
            if not self.skip_every or self.steps % self.skip_every:
                self.taken += 1

    def synchronize(self) -> None:
        if self.queued:
            self.machine.now_ns += round(self.launch_ns)  # the pipeline drains once per synchronisation
            self.queued = 0

    def fingerprint(self) -> object:
        return self.new_allocations

    def taken_steps(self) -> int:
        return self.taken


def gaussian(seed: int, sigma: float) -> Callable[[], float]:
    """Return multiplicative noise of relative size ``sigma``."""
    chance = random.Random(seed)
    return lambda: max(0.01, 1 + chance.gauss(0, sigma))
