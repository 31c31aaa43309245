"""Energy of continuous steps: from the GPU's energy counter, or else from its power; of several GPUs, their sum.

Steps are queued ahead in short bursts, so that the device never waits while the host reads the meter: no thread or
process is needed, and so none takes time from the queueing. A load is anything that can queue steps, and the tests
measure a simulated one on a simulated clock.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from bench.devices.monitor import POLL_S, SILENT_S, GpuMeter, Source
from bench.training import distributed

WINDOW_S = 5.0
"""Both ends of a window of the counter are known to some milliseconds, of power to its period: below 1 % of this. Where
the host waits for each step, a counter's are known to a tick, about 2 %."""
IDLE_S = 1.0
LEAD_IN_S = 1.0
"""Run before a window: power reaches its plateau, and a reading that averages a second forgets what was before."""
CAPPED_LEAD_IN_S = 10.0
"""The same where the power limit holds the clock down, which then takes seconds to settle."""
FEWEST_STEPS = 8
"""A window is longer than ``WINDOW_S`` where steps are so slow, for its ends fall within steps."""
POWER_PERIOD_S = 0.02
"""Power is read no more often than this, since the driver renews it every 20 to 100 ms."""
BURST_S = 0.02
DISAGREE = 0.1
"""Counter and power agree within 1 % (github.com/ml-energy/zeus, issue 12), and a sensor is right within 5 % (NVML);
where they differ by more than this, one of them is wrong."""
PART_TIME = ("A100", "H100", "GH200")
LOOK_S, LOOKS_EVERY_S = 0.025, 0.1
"""How long the sensors of these GPUs look, and how often (arXiv 2312.02741; a GH200's looks for 20 ms)."""
ABOVE_LIMIT = 1.25
"""A mean power above this multiple of the limit that is enforced is a sensor's fault."""
AHEAD = 3
"""Bursts that are queued at once: enough to keep the device busy while a meter is read, few enough to stop soon."""

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Done = Callable[[], bool]
"""Says whether some steps are done."""


class Load(Protocol):
    """Runs steps."""

    def queue(self, steps: int) -> Done:
        """Queue that many steps."""


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
        self._load, self._burst, self._clock, self._pause = load, burst, clock, sleep
        self._queued: deque[Done] = deque()
        self.times_s, self.done = [clock()], [0]
        """When a burst was seen to end, and how many steps were done then."""

    def finish_burst(self, poll: Callable[[], object] = lambda: None) -> None:
        """Wait for a burst to end, with others queued behind it, calling ``poll`` at least once meanwhile."""
        while len(self._queued) < AHEAD:
            self._queued.append(self._load.queue(self._burst))
        poll()
        self._wait(poll)

    def run(self, seconds: float) -> None:
        """Run bursts for that long."""
        until_s = self._clock() + seconds
        while self._clock() < until_s:
            self.finish_burst()

    def drain(self) -> None:
        """Wait for all that is queued."""
        while self._queued:
            self._wait(lambda: None)

    def steps_at(self, moment_s: float) -> float:
        """Return how many steps were done at a moment, at an even pace within each burst."""
        return float(np.interp(moment_s, self.times_s, self.done))

    def step_s(self, begin_s: float, end_s: float) -> float:
        """Return the mean time of a step between two moments."""
        return (end_s - begin_s) / (self.steps_at(end_s) - self.steps_at(begin_s))

    def _wait(self, poll: Callable[[], object]) -> None:
        done = self._queued.popleft()
        while not done():
            self._pause(POLL_S)
            poll()
        self.times_s.append(self._clock())
        self.done.append(self.done[-1] + self._burst)


def burst_steps(step_s: float) -> int:
    """Return how many steps of that length make a burst."""
    return max(1, math.ceil(BURST_S / step_s)) if step_s > 0 else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A stretch of continuous steps and its energy."""

    source: Source
    energy_j: float
    seconds: float
    steps: float
    """Steps done in it; where an end falls within a burst, the share of it that was done."""
    sampled_w: float | None = None
    """Mean of the power readings meanwhile, whatever the source; None if half of them are unknown."""
    readings: float = math.inf
    """How often power was read."""
    start_s: float | None = None
    """When it began, seconds since 1970."""

    @property
    def power_w(self) -> float:
        """Mean power."""
        return self.energy_j / self.seconds

    @property
    def step_s(self) -> float:
        """Mean time of a step."""
        return self.seconds / self.steps

    @property
    def is_in_step(self) -> bool:
        """Whether power was read at the same part of each of long steps, as where the host waits for each of them."""
        return self.step_s > LOOKS_EVERY_S and self.readings < 2 * self.steps


def measure(
    load: Load,
    *meters: GpuMeter,
    burst: int = 1,
    seconds: float | None = None,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> Window | None:
    """Return the energy of continuous steps, or None where neither all counters nor all powers are known.

    Args:
        load: the steps.
        meters: of all devices that run the steps, in one window.
        burst: steps queued at a time (``burst_steps``).
        seconds: least length of the window; ``WINDOW_S`` by default.
        clock: in seconds.
        sleep: waits on that clock.
    """
    length_s = WINDOW_S if seconds is None else seconds
    stream = Stream(load, burst, clock, sleep)
    stream.run(LEAD_IN_S)
    if any(meter.is_capped() for meter in meters):
        stream.run(CAPPED_LEAD_IN_S - LEAD_IN_S)
    window = _measure(stream, meters, length_s, clock)
    stream.drain()
    return window


def pace_s(load: Load, *, burst: int = 1, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> float:
    """Return the mean time of a step in ``WINDOW_S`` of continuous steps.

    No meter is read: where queueing is the limit, reading would slow the steps down. Call it after ``measure``,
    meanwhile a clock at the power limit has settled.
    """
    stream = Stream(load, burst, clock, sleep)
    stream.finish_burst()
    begin_s = stream.times_s[-1]
    stream.run(WINDOW_S)
    stream.drain()
    return stream.step_s(begin_s, stream.times_s[-1])


def doubt(window: Window, idle: Window | None, *, name: str, limit_w: float | None, disturbed: str = "") -> str:
    """Return why a GPU's energy is doubtful; an empty text where nothing speaks against it.

    Args:
        window: of the steps.
        idle: of the idle GPU; None if unknown.
        name: the vendor's name of the GPU.
        limit_w: the power limit that is enforced, of all its GPUs; None if unknown.
        disturbed: what disturbed it meanwhile; empty if nothing is known.
    """
    causes = []
    for when, stretch in (("while steps ran", window), ("idle", idle)):
        if stretch is None or stretch.source != "counter" or not stretch.sampled_w or stretch.is_in_step:
            continue
        counted_w, sampled_w = stretch.power_w, stretch.sampled_w
        if abs(counted_w / sampled_w - 1) > DISAGREE:
            causes.append(f"{when} its counter rose by {counted_w:.3g} W and its power read {sampled_w:.3g} W")
    if limit_w and window.power_w > ABOVE_LIMIT * limit_w:
        causes.append(f"{window.power_w:.3g} W is more than its power limit of {limit_w:.3g} W")
    if window.source == "power" and window.is_in_step:
        causes.append("its power was read at the same part of each step, because the host waits for each")
    if "GH200" in name:  # github.com/ml-energy/zeus, pull request 172, and arXiv 2312.02741
        causes.append("counter and power of a Grace Hopper are its module's, CPU and memory included")
    share = unseen(window.step_s, window.seconds) if any(gpu in name for gpu in PART_TIME) else 0.0
    if share > DISAGREE:
        step_ms = 1000 * window.step_s
        causes.append(f"steps of {step_ms:.3g} ms are in step with its sensor, which misses {100 * share:.0f} %")
    causes += [f"while steps ran {disturbed}"] if disturbed else []
    return f"the GPU's energy is doubtful: {'; '.join(causes)}" if causes else ""


def unseen(step_s: float, seconds: float) -> float:
    """Return the longest stretch of a step, as a share of it, that a part-time sensor never looks at.

    Steps of ``step_s`` follow each other for so many ``seconds``.
    """
    looks = np.sort(np.arange(0.0, seconds, LOOKS_EVERY_S) / step_s % 1.0)
    between = np.diff(looks, append=looks[0] + 1.0)
    return max(0.0, float(between.max()) - LOOK_S / step_s)


def integral_j(samples: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Integrate samples of power (seconds, watts) from ``begin_s`` to ``end_s``, by trapezoids between samples.

    Samples outside only tell the power at the two ends; before the first sample and after the last one that one is
    held, since nothing is known of power there.
    """
    times_s, powers_w = zip(*samples, strict=True)
    moments_s = [begin_s, *(time_s for time_s in times_s if begin_s < time_s < end_s), end_s]
    held_w = np.interp(moments_s, times_s, powers_w)
    return float(np.sum(np.diff(moments_s) * (held_w[1:] + held_w[:-1]) / 2))


@dataclass(slots=True)
class _Counter:
    """An energy counter while steps run."""

    meter: GpuMeter
    clock: Clock
    ticks: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and joules."""
    sound: bool = True
    """Known, rising and ticking so far; a counter that falls has wrapped."""
    reading: float | None = None
    quiet_s: float = 0.0

    def __post_init__(self) -> None:
        self.reading, self.quiet_s = self.meter.energy_j(), self.clock()
        self.sound = self.reading is not None

    def poll(self) -> None:
        """Read it."""
        now = self.meter.energy_j()
        self.sound = self.sound and now is not None and self.reading is not None and now >= self.reading
        if self.sound and now != self.reading:
            self.quiet_s = self.clock()
            self.ticks.append((self.quiet_s, now or 0.0))
        self.reading, self.sound = now, self.sound and self.clock() - self.quiet_s <= SILENT_S

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the joules between two moments, at an even power between ticks."""
        moments, joules = zip(*self.ticks, strict=True)
        first, last = np.interp([begin_s, end_s], moments, joules)
        return float(last - first)


@dataclass(slots=True)
class _Powers:
    """The sum of the meters' powers, sampled while steps run."""

    meters: Sequence[GpuMeter]
    clock: Clock
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and watts."""
    readings: int = 0
    next_s: float = 0.0

    def poll(self) -> None:
        """Read them, if the driver may have renewed them since the last time."""
        if self.clock() < self.next_s:
            return
        self.next_s = self.clock() + POWER_PERIOD_S
        self.readings += 1
        power_w = distributed.total([meter.power_w() or None for meter in self.meters])
        if power_w:
            self.samples.append((self.clock(), power_w))

    def mean_w(self, begin_s: float, end_s: float) -> float | None:
        """Return the mean power between two moments; None if half the readings are unknown."""
        if len(self.samples) <= self.readings / 2:
            return None
        return integral_j(self.samples, begin_s, end_s) / (end_s - begin_s)


def _measure(stream: Stream, meters: Sequence[GpuMeter], length_s: float, clock: Clock) -> Window | None:
    """Measure from one tick of the counters to another; where one is not sound, integrate the power of all instead.

    Several counters tick at different moments: the window begins when each has ticked, and ends at the earliest of
    their last ticks. That of power is from the end of one burst to the end of another. None if a counter is not sound
    and half the readings of power are unknown.
    """
    counters, powers = [_Counter(meter, clock) for meter in meters], _Powers(meters, clock)
    started_s = stream.times_s[-1]

    def poll() -> None:
        for counter in counters:
            counter.poll()
        powers.poll()

    while True:
        stream.finish_burst(poll)
        source: Source = "counter" if all(counter.sound for counter in counters) else "power"
        if source == "power":
            begin_s, end_s = started_s, stream.times_s[-1]
        elif all(len(counter.ticks) > 1 for counter in counters):
            begin_s = max(counter.ticks[0][0] for counter in counters)
            end_s = min(counter.ticks[-1][0] for counter in counters)
        else:
            continue
        seconds, steps = end_s - begin_s, stream.steps_at(end_s) - stream.steps_at(begin_s)
        if seconds >= length_s and steps >= FEWEST_STEPS:
            break
    sampled_w, readings = powers.mean_w(begin_s, end_s), sum(begin_s <= at_s <= end_s for at_s, _ in powers.samples)
    if source == "counter":
        energy_j = sum(counter.between(begin_s, end_s) for counter in counters)
    elif sampled_w is None:
        return None
    else:
        energy_j = sampled_w * seconds
    start_s = time.time() - (clock() - begin_s)
    window = Window(source=source, energy_j=energy_j, seconds=seconds, steps=steps, readings=readings)
    return replace(window, sampled_w=sampled_w, start_s=start_s)
