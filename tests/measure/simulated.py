"""Arms that run on a simulated clock and whose ratio is known, for measuring the measurement."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.measure.rounds import Sizes, compare
from bench.measure.sustained import Clocks, each_alone
from bench.measure.warmup import prepare
from bench.spec.trial import Protocol
from bench.stats import Interval

MS = 1_000_000
"""Nanoseconds."""
STEP_NS = 3 * MS


def gaussian(seed: int, sigma: float) -> Callable[[], float]:
    """Return multiplicative noise of relative size ``sigma``."""
    rng = random.Random(seed)
    return lambda: max(0.01, 1 + rng.gauss(0, sigma))


class SimulatedMachine:
    """A clock in nanoseconds that only running arms, and reading it, move on."""

    def __init__(self, look_ns: int = 0) -> None:
        self.now_ns = 0
        self.look_ns = look_ns
        self.active: SimulatedRunner | None = None

    def clock(self) -> int:
        """Read the clock; reading takes time too."""
        self.now_ns += self.look_ns
        return self.now_ns


@dataclass(eq=False)
class SimulatedRunner:
    """An arm whose steps take ``step_ns`` times whatever the disturbances say."""

    name: str
    machine: SimulatedMachine
    step_ns: float
    drift: Callable[[int], float] = lambda _now_ns: 1.0
    """By the clock."""
    noise: Callable[[], float] = lambda: 1.0
    transient: Callable[[int], float] = lambda _index: 1.0
    """By the index of a step after a switch."""
    launch_ns: float = 0.0
    """The time that a synchronisation takes to drain the queue."""
    asynchronous: bool = False
    skip_every: int = 0
    """One of so many optimizer steps is skipped."""
    new_allocations: int = 0
    since_switch: int = 0
    steps: int = 0
    taken: int = 0
    queued: int = 0

    def activate(self) -> None:
        """Begin anew after a switch."""
        if self.machine.active is not self:
            self.machine.active = self
            self.since_switch = 0

    def run(self, steps: int) -> None:
        """Move the clock on by that many steps."""
        for _ in range(steps):
            factor = self.drift(self.machine.now_ns) * self.noise() * self.transient(self.since_switch)
            self.machine.now_ns += round(self.step_ns * factor)
            self.since_switch += 1
            self.steps += 1
            self.queued += 1
            if not self.skip_every or self.steps % self.skip_every:
                self.taken += 1

    def synchronize(self) -> None:
        """Pay for the draining of the pipeline, once per synchronisation."""
        if self.queued:
            self.machine.now_ns += round(self.launch_ns)
            self.queued = 0

    def fingerprint(self) -> object:
        """Return what a test may change."""
        return self.new_allocations

    def taken_steps(self) -> int:
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

    def __call__(self) -> float:
        """Return the next step's factor."""
        fresh = self.rng.gauss(0, self.sigma * math.sqrt(1 - self.correlation**2))
        self.state = self.correlation * self.state + fresh
        return max(0.01, 1 + self.state) * (5 if self.rng.random() < self.spikes else 1)


DISTURBANCES: dict[str, dict[str, Any]] = {
    "noise": {},
    "strong noise": {"sigma": 0.05},
    "drift": {"drift": lambda now_ns: math.exp(now_ns / 20e9)},
    "AR(1)": {"sigma": 0.05, "correlation": 0.7},
    "spikes": {"spikes": 0.02},
    "transient": {"transient": lambda index: 1 + 0.2 * math.exp(-index / 1.7)},  # 1 % is left after 5 steps
}
"""Disturbances of steps on real machines: arguments of ``estimate``."""


def estimate(seed: int, ratio: float, **disturbance: Any) -> Interval:
    """Return the speedup that the shipped warm-up, rounds and stopping rule find of an arm that has ``ratio``.

    Args:
        seed: seed of the noise and of the rounds' orders.
        ratio: the true speedup.
        disturbance: ``drift`` and ``transient`` of a ``SimulatedRunner``; the rest shapes ``Noise``.
    """
    machine = SimulatedMachine()
    parts = {name: disturbance.pop(name) for name in ("drift", "transient") if name in disturbance}
    shared = Noise(random.Random(seed), **disturbance)
    runners = [
        SimulatedRunner(name, machine, step_ns, noise=shared, **parts)
        for name, step_ns in (("fp32", STEP_NS), ("amp-bf16", STEP_NS / ratio))
    ]
    protocol = Protocol()
    cuts = prepare(runners, protocol.first_process_s, clock=machine.clock)
    paired = compare(runners, [cut.sizes for cut in cuts], protocol, seed=seed, clock=machine.clock)
    speedup = paired.speedups[1]
    assert speedup is not None  # nothing discards rounds here
    return speedup


ALPHA = 2.2
"""An H100 at 1.6 times its cap runs at 1580 instead of 1965 MHz, if power is as the clock to this power."""
IDLE_POWER = 0.2


@dataclass(eq=False)
class GovernedMachine(SimulatedMachine):
    """A machine whose clock falls where power, which its governor sees through a low-pass filter, exceeds the cap.

    Powers are over the cap, as at the full clock.
    """

    tau_s: float = 0.5
    noise: Callable[[], float] = lambda: 1.0
    """Of each turn of an arm, and of each reading."""
    now_ns: int = 0
    look_ns: int = 0
    seen: float = IDLE_POWER
    device_ns: float = 0.0
    """Until when steps are queued."""
    active: Any = None

    @property
    def rate(self) -> float:
        """The clock, 1 being the full one."""
        return min(1.0, self.seen ** (-1 / ALPHA))

    def read(self) -> float:
        """Read the clock as a wait of known cycles does."""
        return self.rate * (1 + 0.3 * (self.noise() - 1))

    def take(self, power: float, took_ns: float) -> None:
        """Draw so much power for so long, after what is queued."""
        idle_ns = max(0.0, self.now_ns - self.device_ns)
        self.device_ns = max(self.device_ns, self.now_ns) + took_ns
        for level, length_ns in ((IDLE_POWER, idle_ns), (power, took_ns)):
            self.seen = level + (self.seen - level) * math.exp(-length_ns / 1e9 / self.tau_s)

    def seconds(self) -> float:
        """Read the clock in seconds."""
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        """Sleep for so long, or until what is queued is nearly done."""
        self.now_ns = max(self.now_ns + round(seconds * 1e9), round(self.device_ns - 0.2e9))


@dataclass(eq=False)
class GovernedRunner:
    """An arm on a governed machine; a share of its step's time is as the clock."""

    name: str
    machine: GovernedMachine
    step_ns: float
    """At the full clock."""
    power: float
    share: float = 0.95
    asynchronous: bool = False
    factor: float = 1.0
    steps: int = 0

    def activate(self) -> None:
        """Begin a turn, with an error of its own."""
        self.factor = self.machine.noise()

    def run(self, steps: int) -> None:
        """Queue steps: few enough at a time that the clock hardly changes meanwhile."""
        machine, left = self.machine, steps
        while left:
            step_ns = self.step_ns * self.factor * (self.share / machine.rate + 1 - self.share)
            few = max(1, min(left, int(machine.tau_s * 2.5e7 / step_ns)))
            machine.take(self.power, few * step_ns)
            left -= few
        self.steps += steps

    def queue(self, steps: int) -> Callable[[], bool]:
        """Queue steps; return whether they are done."""
        self.run(steps)
        until_ns = self.machine.device_ns
        return lambda: self.machine.now_ns >= until_ns

    def synchronize(self) -> None:
        """Wait for what is queued."""
        self.machine.now_ns = max(self.machine.now_ns, round(self.machine.device_ns))

    def fingerprint(self) -> object:
        """Return nothing: it allocates nothing."""

    def taken_steps(self) -> int:
        """Return all steps."""
        return self.steps


@dataclass(frozen=True)
class Governed:
    """Speedups of the second arm over the first under a governor, as the shipped code measures them."""

    shared: float
    apart: float
    """The difference of the clocks that flags a cell, as a logarithm."""
    readings: int
    alone: Interval
    unsettled: str


def governed(
    seed: int,
    tau_s: float,
    powers: tuple[float, float],
    *,
    share: float = 0.95,
    gain: float = 1.8,
    noise: float = 0.003,
) -> Governed:
    """Measure two arms in turns in blocks of 10 ms, then each alone."""
    machine = GovernedMachine(tau_s=tau_s, noise=gaussian(seed, noise))
    runners = [
        GovernedRunner(name, machine, step_ns, power, share)
        for name, step_ns, power in (("fp32", 2 * MS, powers[0]), ("amp-bf16", 2 * MS / gain, powers[1]))
    ]
    clocks = Clocks(runners, machine.read, machine.clock)
    protocol = Protocol(time_budget_s=3.0, replicates=1, most_replicates=1)
    cuts = prepare(runners, protocol.first_process_s, clock=machine.clock, settle=clocks.settle)
    sizes = [
        Sizes(cut.sizes.switch_warmup, round(10 * MS / runner.step_ns))
        for cut, runner in zip(cuts, runners, strict=True)
    ]
    paired = compare(runners, sizes, protocol, seed=seed, clock=machine.clock, look=clocks.look)
    _, alone = each_alone(
        runners,
        [round(1e8 / runner.step_ns) for runner in runners],
        seed=seed,
        activate=lambda arm: runners[arm].activate(),
        clock=machine.seconds,
        sleep=machine.sleep,
    )
    return Governed(
        shared=paired.speedups[1].center,
        apart=clocks.apart(1),
        readings=min(map(len, clocks.turns.values())),
        alone=alone.log.exp(),
        unsettled=alone.unsettled,
    )


def sustained(powers: tuple[float, float], *, share: float = 0.95, gain: float = 1.8) -> float:
    """Return the true speedup of arms that have settled alone."""
    wide, narrow = (share * max(1.0, power) ** (1 / ALPHA) + 1 - share for power in powers)
    return gain * wide / narrow
