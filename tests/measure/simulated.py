"""Arms that run on a simulated clock and whose ratio is known, for measuring the measurement."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from bench.measure.rounds import compare
from bench.measure.warmup import prepare
from bench.spec.protocol import Protocol

MS = 1_000_000
"""Nanoseconds."""
STEP_NS = 3 * MS


def gaussian(seed, sigma):
    """Return multiplicative noise of relative size ``sigma``."""
    return Noise(random.Random(seed), sigma)


class SimulatedMachine:
    """A clock in nanoseconds that only running arms, and reading it, move on."""

    def __init__(self, look_ns=0):
        self.now_ns = 0
        self.look_ns = look_ns
        self.active = None

    def clock(self):
        """Read the clock; reading takes time too."""
        self.now_ns += self.look_ns
        return self.now_ns


def no_drift(_now_ns):
    return 1.0


def no_noise():
    return 1.0


def no_transient(_index):
    return 1.0


@dataclass(eq=False)
class SimulatedRunner:
    """An arm whose steps take ``step_ns`` times whatever the disturbances say."""

    name: str
    machine: SimulatedMachine
    step_ns: float
    drift: Callable = no_drift
    """By the clock."""
    noise: Callable = no_noise
    transient: Callable = no_transient
    """By the index of a step after a switch."""
    launch_ns: float = 0.0
    """The time that a synchronisation takes to drain the queue."""
    asynchronous: bool = False
    skip_every: int = 0
    """One of so many optimizer steps is skipped."""
    since_switch: int = 0
    steps: int = 0
    taken: int = 0
    queued: int = 0

    def activate(self):
        """Begin anew after a switch."""
        if self.machine.active is not self:
            self.machine.active = self
            self.since_switch = 0

    def run_steps(self, steps):
        """Move the clock on by that many steps."""
        for _ in range(steps):
            drift = self.drift(self.machine.now_ns)
            factor = drift * self.noise() * self.transient(self.since_switch)
            self.machine.now_ns += round(self.step_ns * factor)
            self.since_switch += 1
            self.steps += 1
            self.queued += 1
            if not self.skip_every or self.steps % self.skip_every:
                self.taken += 1

    def synchronize(self):
        """Pay for the draining of the pipeline, once per synchronisation."""
        if self.queued:
            self.machine.now_ns += round(self.launch_ns)
            self.queued = 0

    def fingerprint(self):
        """Allocate nothing."""

    def taken_steps(self):
        """Return how many steps were not skipped."""
        return self.taken


@dataclass
class Noise:
    """Relative noise of successive steps: normal, correlated from step to step, with spikes."""

    rng: random.Random
    sigma: float = 0.02
    correlation: float = 0.0
    spikes: float = 0.0
    """Share of steps that take five times as long."""
    state: float = 0.0

    def __call__(self):
        """Return the next step's factor."""
        fresh = self.rng.gauss(0, self.sigma * math.sqrt(1 - self.correlation**2))
        self.state = self.correlation * self.state + fresh
        factor = max(0.01, 1 + self.state)
        if self.rng.random() < self.spikes:
            factor *= 5
        return factor


DISTURBANCES = {
    "noise": {},
    "strong noise": {"sigma": 0.05},
    "drift": {"drift": lambda now_ns: math.exp(now_ns / 20e9)},
    "AR(1)": {"sigma": 0.05, "correlation": 0.7},
    "spikes": {"spikes": 0.02},
    # 1 % is left after 5 steps.
    "transient": {"transient": lambda index: 1 + 0.2 * math.exp(-index / 1.7)},
}
"""Disturbances of steps on real machines: arguments of ``estimate``."""


def estimate(seed, ratio, *, drift=no_drift, transient=no_transient, **noise):
    """Return the log-speedup that is measured of an arm that has ``ratio``.

    Args:
        seed: seed of the noise and of the rounds' orders.
        ratio: the true speedup.
        drift: of both runners.
        transient: of both runners.
        noise: shapes ``Noise``.
    """
    machine = SimulatedMachine()
    disturbances = {
        "drift": drift,
        "transient": transient,
        "noise": Noise(random.Random(seed), **noise),
    }
    fp32 = SimulatedRunner("fp32", machine, STEP_NS, **disturbances)
    narrow = SimulatedRunner("amp-bf16", machine, STEP_NS / ratio, **disturbances)
    return measured_log_speedup(machine, [fp32, narrow], seed)


def measured_log_speedup(machine, runners, seed):
    """Prepare two arms and time them as a process does; return the second's log-speedup."""
    protocol = Protocol()
    plans = prepare(runners, protocol.process_s, clock=machine.clock)
    sizes = [plan.sizes for plan in plans]
    return compare(runners, sizes, protocol, seed=seed, clock=machine.clock).logs[1]
