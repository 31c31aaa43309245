"""Energy and time of continuous steps, on one GPU or on several that train together.

After a lead-in come two stretches of equal length. In the first, power is sampled. In the second
nothing is read, because reading a meter takes host time and so slows steps down; it gives the time
of a step. The energy counter is read until it ticks, right before the second stretch and right
after it: that gives the mean power. Of a GPU without a sound counter, the power of the first
stretch is the mean power.

Steps are queued ahead in short bursts, so that the device never waits while the host reads a meter:
no thread or process is needed, and so none takes time from the queueing. A load is anything that
can queue steps, and the tests measure a simulated one on a simulated clock.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.devices.monitor import POLL_S, SILENT_S, GpuMeter, Source
from bench.training import distributed

# Both ticks of a counter are known to some milliseconds: below 1 % of this. Where the host waits
# for each step, they are known to a tick, about 2 %.
STRETCH_S = 5.0
IDLE_S = 0.5
# Run before: power reaches its plateau, and a reading that averages a second forgets what was
# before.
LEAD_IN_S = 1.0
# A stretch is longer than ``STRETCH_S`` where steps are so slow, for the counter's ticks fall
# within steps.
FEWEST_STEPS = 8
# Power is read no more often than this, since the driver renews it every 20 to 100 ms.
POWER_PERIOD_S = 0.05
BURST_S = 0.02
# Counter and power agree within 1 % (github.com/ml-energy/zeus, issue 12), and a sensor is right
# within 5 % (NVML); where they differ by more than this, one of them is wrong.
DISAGREE = 0.1
# Where the host waits for each of longer steps, power is read at the same part of each.
LONG_STEP_S = 0.1
# A mean power above this multiple of the limit that is enforced is a sensor's fault.
ABOVE_LIMIT = 1.25
# Bursts that are queued at once: enough to keep the device busy while a meter is read, few enough
# to stop soon.
AHEAD = 3

# Says whether some steps are done.
Done = Callable[[], bool]
# Queues that many steps.
Load = Callable[[int], Done]


def rest(_steps: int) -> Done:
    """Leave the device idle for a burst's time: a load for the power with nothing running."""
    until_s = time.monotonic() + BURST_S
    return lambda: time.monotonic() >= until_s


class Stream:
    """A load kept busy, and how many of its steps are done."""

    def __init__(self, load: Load, burst: int) -> None:
        self._load = load
        self._burst = burst
        self._queued: deque[Done] = deque()
        self.done = 0
        """How many steps were done when a burst was last seen to end."""
        self.at_s = time.monotonic()
        """When that was."""

    def advance(self) -> None:
        """Queue what is to be queued; count a burst that has ended, or else wait for a moment."""
        while len(self._queued) < AHEAD:
            self._queued.append(self._load(self._burst))
        if self._queued[0]():
            self._queued.popleft()
            self.done += self._burst
            self.at_s = time.monotonic()
        else:
            time.sleep(POLL_S)

    def run(
        self, seconds: float, meanwhile: Callable[[], object] = lambda: None
    ) -> tuple[float, int]:
        """Run bursts for so many seconds at least, and ``FEWEST_STEPS``.

        Returns:
            How many seconds and how many steps it was.
        """
        begin_s = self.at_s
        begin = self.done
        while self.at_s - begin_s < seconds or self.done - begin < FEWEST_STEPS:
            meanwhile()
            self.advance()
        return self.at_s - begin_s, self.done - begin

    def tick(self, meter: GpuMeter) -> tuple[float, float] | None:
        """Run bursts until an energy counter moves.

        Returns:
            When it did, in seconds, and its joules; None if it does not.
        """
        before = meter.energy_j()
        until_s = time.monotonic() + SILENT_S
        while before is not None and time.monotonic() < until_s:
            self.advance()
            now = meter.energy_j()
            if now is None:
                break
            if now != before:
                return time.monotonic(), now
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A stretch of continuous steps and its power."""

    source: Source
    power_w: float
    """Mean power."""
    seconds: float
    steps: int
    start_s: float
    """When it began, seconds since 1970."""
    sampled_w: float | None = None
    """Mean of the power readings before it, whatever the source; None if half of them are
    unknown."""

    @property
    def step_s(self) -> float:
        """Mean time of a step."""
        return self.seconds / self.steps


def measure(
    load: Load, meters: Sequence[GpuMeter], seconds: float, burst: int = 1
) -> Window | None:
    """Return the power and the pace of continuous steps.

    None where neither all counters nor all powers are known.

    Args:
        load: the steps.
        meters: of all devices that run the steps.
        seconds: least length of each of the two stretches.
        burst: steps queued at a time.
    """
    stream = Stream(load, burst)
    powers = _Powers(meters, next_s=time.monotonic() + LEAD_IN_S)
    stream.run(LEAD_IN_S + seconds, powers.read)
    first = [stream.tick(meter) for meter in meters]
    start_s = time.time()
    length_s, steps = stream.run(seconds)
    counted_w = _mean_power_w(first, [stream.tick(meter) for meter in meters])
    sampled_w = powers.mean_w()
    power_w = counted_w or sampled_w
    if power_w is None:
        return None
    return Window(
        source="counter" if counted_w else "power",
        power_w=power_w,
        seconds=length_s,
        steps=steps,
        start_s=start_s,
        sampled_w=sampled_w,
    )


def doubt(
    window: Window, idle: Window | None, *, name: str, limit_w: float | None, disturbed: str = ""
) -> str:
    """Return why a GPU's energy is doubtful; an empty text where nothing speaks against it.

    Args:
        window: of the steps.
        idle: of the idle GPU; None if unknown.
        name: the vendor's name of the GPU.
        limit_w: the power limit that is enforced, of all its GPUs; None if unknown.
        disturbed: what disturbed it meanwhile; empty if nothing is known.
    """
    causes = []
    is_long = window.step_s > LONG_STEP_S
    for when, stretch in (("while steps ran", None if is_long else window), ("idle", idle)):
        if stretch is None or stretch.source != "counter" or not stretch.sampled_w:
            continue
        counted_w = stretch.power_w
        sampled_w = stretch.sampled_w
        if abs(counted_w / sampled_w - 1) > DISAGREE:
            powers = f"rose by {counted_w:.3g} W and its power read {sampled_w:.3g} W"
            causes.append(f"{when} its counter {powers}")
    if limit_w and window.power_w > ABOVE_LIMIT * limit_w:
        causes.append(f"{window.power_w:.3g} W is more than its power limit of {limit_w:.3g} W")
    if window.source == "power" and is_long:
        part = "perhaps always at the same part"
        causes.append(f"its power was read a few times in each step, {part}")
    if "GH200" in name:  # github.com/ml-energy/zeus, pull request 172, and arXiv 2312.02741
        whole = "its module's, CPU and memory included"
        causes.append(f"counter and power of a Grace Hopper are {whole}")
    if disturbed:
        causes.append(f"while steps ran {disturbed}")
    if not causes:
        return ""
    return f"the GPU's energy is doubtful: {'; '.join(causes)}"


@dataclass(slots=True)
class _Powers:
    """The sum of the meters' powers, sampled while steps run."""

    meters: Sequence[GpuMeter]
    next_s: float
    """When to read next."""
    samples_w: list[float | None] = field(default_factory=list)

    def read(self) -> None:
        """Read them, if the driver may have renewed them since the last time."""
        if time.monotonic() < self.next_s:
            return
        self.next_s = time.monotonic() + POWER_PERIOD_S
        self.samples_w.append(distributed.total([meter.power_w() or None for meter in self.meters]))

    def mean_w(self) -> float | None:
        """Return the mean of the readings, which come at an even pace.

        None if half of them are unknown.
        """
        known = [power_w for power_w in self.samples_w if power_w is not None]
        if 2 * len(known) <= len(self.samples_w):
            return None
        return statistics.fmean(known)


def _mean_power_w(
    first: Sequence[tuple[float, float] | None], last: Sequence[tuple[float, float] | None]
) -> float | None:
    """Return the sum of the mean powers between two ticks of each counter.

    None if one is unknown.
    """
    sum_w = 0.0
    for begin, end in zip(first, last, strict=True):
        if begin is None or end is None:
            return None
        seconds = end[0] - begin[0]
        joules = end[1] - begin[1]
        if joules < 0:  # the counter has wrapped
            return None
        sum_w += joules / seconds
    return sum_w
