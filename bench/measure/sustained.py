"""Speed at each arm's own clock: whether arms that take turns share a clock that neither has alone, and each one alone.

A GPU at its power cap lowers its clock over some tenths of a second to seconds. Arms that take turns in blocks of
milliseconds then run at one clock, between those that each settles at alone (docs/measuring.md). Independent of torch:
the tests measure simulated arms under a simulated governor.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure.energy import Clock as Seconds
from bench.measure.energy import Load, Sleep, Stream
from bench.measure.rounds import Clock, Runner, palindrome
from bench.stats import Interval, round_log_ratio, student_interval

WARM_S = 2.0
"""An arm runs alone for so long before the clock is read."""
ALONE_READINGS, READINGS = 5, 8
OFTEN, RARELY = 2, 8
"""Taking turns, the clock is read in every second round until each arm has its readings, then in every eighth."""
APART = 0.01
"""Clocks taking turns and alone that differ by more, of two arms together, as logarithms, may bias their speedup."""
ROUNDS = 3
RUN_S, LONGEST_S = 10.0, 60.0
"""A run of one arm takes the one, or twice as long until it has settled, at most the other."""
SETTLED = 0.003
"""A run has settled when the step times of its last two quarters agree within this."""
FEWEST_BURSTS = 8
"""Of a run with fewer, the quarters are not told apart."""
WIDEST = 0.02
"""Nor has it where its rounds' interval is wider to either side: a first run may end before power reaches the cap."""
UNSETTLED = "not settled"
QUEUED_S = 0.1
POLL_S = 5e-4
"""How often the end of a burst is looked for."""


class Clocks:
    """Readings of the device's clock, in Hz: after each arm has run alone, and while the arms take turns."""

    def __init__(self, runners: Sequence[Runner], read: Callable[[], float | None], clock: Clock) -> None:
        """Take the arms, and a function that reads the clock, or returns None where there is none to read."""
        self._runners, self._read, self._clock = runners, read, clock
        self.alone: dict[int, float] = {}
        self.turns: dict[int, list[float]] = defaultdict(list)

    def settle(self, arm: int, step_ns: float) -> None:
        """Run a warm arm alone for two seconds, then read the clock; do nothing where there is none to read."""
        if all(self._read() is None for _ in range(ALONE_READINGS)):
            return
        until_ns = self._clock() + WARM_S * 1e9
        while self._clock() < until_ns:
            self._runners[arm].run(max(1, int(QUEUED_S * 1e9 / step_ns)))
            self._runners[arm].synchronize()
        if readings := [hz for _ in range(ALONE_READINGS) if (hz := self._read()) is not None]:
            self.alone[arm] = statistics.median(readings)

    def look(self, number: int, arm: int) -> None:
        """Read the clock after an arm's second block of a round, by the round's number, if it is time to."""
        often = OFTEN if len(self.turns[arm]) < READINGS else RARELY
        if arm in self.alone and number % often == 1 and (reading := self._read()) is not None:
            self.turns[arm].append(reading)

    @property
    def flags(self) -> bool:
        """Whether the clocks taking turns and alone differ enough to bias a speedup."""
        return any((self.apart(arm) or 0.0) > APART for arm in range(len(self._runners)))

    def apart(self, arm: int) -> float | None:
        """Return by how much the clock taking turns differs from that alone, of an arm and the first together.

        The sum of two absolute logarithms: the speedup at a shared clock is biased by no more. None if unknown.
        """
        arms = {0, arm}
        if not all(each in self.alone and self.turns[each] for each in arms):
            return None
        return sum(abs(math.log(statistics.median(self.turns[each]) / self.alone[each])) for each in arms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sustained:
    """One arm, running alone until it has settled."""

    step_s: float
    """Median over its runs of the mean time of a step."""
    log: Interval
    """The log-speedup over the first arm, Student's over the rounds."""
    unsettled: str
    """Why the figures do not count, such as a run that did not settle; or empty."""


def each_alone(
    loads: Sequence[Load],
    bursts: Sequence[int],
    *,
    seed: int,
    activate: Callable[[int], object],
    poll: Callable[[], str] = lambda: "",
    wait: Callable[[], None] = lambda: None,
    clock: Seconds = time.monotonic,
    sleep: Sleep = lambda _seconds: time.sleep(POLL_S),
) -> list[Sustained]:
    """Measure each arm alone, in ABBA rounds of runs until it has settled; the second half of each run counts.

    Args:
        loads: the arms' steps, the baseline's first.
        bursts: steps that each queues at a time (``energy.burst_steps``).
        seed: of the rounds' orders.
        activate: sets the process's switches to an arm's.
        poll: called after each run; names what disturbed it, or returns an empty text.
        wait: called after the last run, before the last poll; returns when that run's disturbance is known.
        clock: in seconds.
        sleep: waits on that clock.
    """
    rng, causes = random.Random(seed), defaultdict[int, list[str]](list)
    steps_s: list[list[float]] = [[] for _ in loads]
    poll()
    for _ in range(ROUNDS):
        for arm in palindrome(len(loads), rng):
            activate(arm)
            step_s, has_settled = _settled_step_s(Stream(loads[arm], bursts[arm], clock, sleep))
            steps_s[arm].append(step_s)
            causes[arm] += filter(None, [poll(), "" if has_settled else UNSETTLED])
    wait()
    causes[0] += filter(None, [poll()])
    pairs = [list(zip(times[::2], times[1::2], strict=True)) for times in steps_s]
    results = []
    for times, of_arm, own in zip(steps_s, pairs, (causes[arm] for arm in range(len(loads))), strict=True):
        log = student_interval([round_log_ratio(*both) for both in zip(pairs[0], of_arm, strict=True)])
        wide = [UNSETTLED] if (log.half_width or 0.0) > WIDEST else []
        unsettled = "; ".join(dict.fromkeys(causes[0] + own + wide))
        results.append(Sustained(step_s=statistics.median(times), log=log, unsettled=unsettled))
    return results


def _settled_step_s(stream: Stream) -> tuple[float, bool]:
    """Return the mean time of a step in the second half of a run, and whether its last two quarters agree."""
    begin_s, length_s, more_s = stream.times_s[0], RUN_S, RUN_S
    while True:
        stream.run(more_s)
        end_s = stream.times_s[-1]
        half_s, last_s = (end_s - (end_s - begin_s) / parts for parts in (2, 4))
        quarters_s = stream.step_s(half_s, last_s), stream.step_s(last_s, end_s)
        has_settled = len(stream.done) > FEWEST_BURSTS and abs(math.log(quarters_s[1] / quarters_s[0])) <= SETTLED
        if has_settled or length_s >= LONGEST_S:
            break
        more_s = min(length_s, LONGEST_S - length_s)
        length_s += more_s
    stream.drain()
    return stream.step_s(half_s, end_s), has_settled
