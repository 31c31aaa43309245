"""ABBA rounds of timed blocks until the speedups' intervals are narrow enough.

Independent of torch: an arm is anything that can run steps, so that the tests can measure simulated arms on a
simulated clock with the very code that measures real ones (docs/measuring.md).
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple
from typing import Protocol as Interface

from bench.spec.trial import Protocol
from bench.stats import Interval, count_outliers, round_log_ratio, rounds_interval

MAX_ROUNDS = 5000
"""Most rounds; an interval that is still too wide then would not get narrow enough with more."""
HARD_LIMIT = 5
"""Timing ends after this many times the budget, even with fewer than the required rounds."""
ANALYSES = 3
"""Interim analyses in a row at which every interval must be narrow enough."""
ANALYSIS_SHARE = 5
"""Between two interim analyses the number of rounds grows by a fifth, and by at least four."""
WATCH_NS = 500_000_000
"""After this long without an analysis, the running speedups are updated."""
LATE_NS = 100_000_000
"""The driver reports a slowdown up to this much later."""

Clock = Callable[[], int]
"""A clock in nanoseconds."""
Window = Callable[[], tuple[float, float]]
"""Returns how many seconds before the last poll that which it named began and ended."""


class Runner(Interface):
    """An arm that can be timed."""

    name: str
    asynchronous: bool
    """Whether ``run`` returns before the device is done."""

    def activate(self) -> None:
        """Set the process's switches to this arm's."""

    def run(self, steps: int) -> None:
        """Run, or queue, that many steps."""

    def synchronize(self) -> None:
        """Wait until every queued step is done."""

    def fingerprint(self) -> object:
        """Return the state that stays the same in a steady state: allocations, compilations, loss scale."""

    def taken_steps(self) -> int:
        """Return how many optimizer steps have taken effect so far."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an arm's blocks."""

    switch_warmup: int
    """Untimed steps at the head of a block."""
    steps: int
    """Timed steps."""


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """A timed run of steps."""

    arm: int
    """Index of the arm."""
    round: int
    position: int
    steps: int
    time_ns: int
    start_s: float
    skipped_steps: int
    invalid: str = ""
    """The disturbance of its round, or empty."""

    @property
    def step_ns(self) -> float:
        """Time per step."""
        return self.time_ns / self.steps


def time_block(runner: Runner, sizes: Sizes, clock: Clock = time.perf_counter_ns, *, warm: bool = False) -> int:
    """Return the nanoseconds of one block's timed steps; ``warm``, of an arm that has just run, skips the warm-up."""
    runner.activate()
    runner.run(0 if warm else sizes.switch_warmup)
    runner.synchronize()
    start = clock()
    runner.run(sizes.steps)
    runner.synchronize()
    return clock() - start


def palindrome(arms: int, rng: random.Random) -> list[int]:
    """Return a random order of the arms, and the same order backwards.

    With two arms it is ABBA or BAAB. With more, every arm's two blocks still have the same mean position, so that
    linear drift cancels between any two of them and all share the baseline's blocks.
    """
    order = list(range(arms))
    rng.shuffle(order)
    return order + order[::-1]


def time_round(
    runners: Sequence[Runner], sizes: Sequence[Sizes], rng: random.Random, clock: Clock, *, number: int
) -> list[TimedBlock]:
    """Time one ABBA round: two blocks of each arm, in an order that ``rng`` draws and that cancels drift.

    Between rounds the device idles for a moment, so the first block always has a switch warm-up; within a round, a
    block that follows one of the same arm needs none.
    """
    blocks: list[TimedBlock] = []
    for position, arm in enumerate(palindrome(len(runners), rng)):
        runner, size = runners[arm], sizes[arm]
        warm = bool(blocks) and arm == blocks[-1].arm
        taken, start_s = runner.taken_steps(), time.time()
        time_ns = time_block(runner, size, clock, warm=warm)
        run = (0 if warm else size.switch_warmup) + size.steps
        skipped = run - (runner.taken_steps() - taken)
        blocks.append(TimedBlock(arm, number, position, size.steps, time_ns, start_s, skipped))
    return blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The ABBA rounds of a process."""

    blocks: tuple[TimedBlock, ...]
    """All blocks, those of discarded rounds too."""
    logs: tuple[Interval | None, ...]
    """For each arm the log-speedup over the first; for the first, its own log-time in ns. None if no round counts."""
    converged: tuple[bool, ...]
    """For each arm whether its interval is narrow enough, over enough rounds; for the first, whether all are."""
    outliers: tuple[int, ...]
    """For each arm the number of rounds that lie far from the others."""
    rounds: int
    """Rounds that count."""
    invalid: tuple[str, ...] = ()
    """The disturbance of each discarded round."""

    @property
    def speedups(self) -> tuple[Interval | None, ...]:
        """For each arm the speedup over the first; None for the first itself."""
        return (None, *(None if log is None else log.exp() for log in self.logs[1:]))


def compare(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    protocol: Protocol,
    *,
    seed: int,
    clock: Clock = time.perf_counter_ns,
    poll: Callable[[], str] = lambda: "",
    window: Window | None = None,
    wait: Callable[[], None] = lambda: None,
    watch: Callable[[int, Sequence[Interval | None]], None] = lambda _rounds, _speedups: None,
) -> Comparison:
    """Time the runners in ABBA rounds until every speedup over the first has a narrow enough interval, or time is up.

    With one runner, the interval is that of its time per step. Interim analyses grow rarer, and every interval must be
    narrow enough at three of them in a row: stopping at the first would favour intervals that are too narrow by chance.

    Args:
        runners: the arms, the baseline first.
        sizes: the block sizes of each arm.
        protocol: when to stop.
        seed: of the rounds' orders.
        clock: in nanoseconds.
        poll: called after each round; names the disturbance since the last call, or returns an empty text.
        window: returns how many seconds before the last poll that which it named began and ended; if None, what it
            names may have disturbed all rounds that ended up to a tenth of a second before the last one.
        wait: called after the last round, before the last poll; returns when that round's disturbance is known.
        watch: called with the number of rounds and the running speedups, outside the timed blocks.
    """
    rng = random.Random(seed)
    arms = len(runners)
    blocks: list[TimedBlock] = []
    counted: list[_Round] = []
    invalid: dict[int, str] = {}
    estimates: list[Interval | None] = [None for _ in runners]
    budget_ns = int(protocol.process_s * 1e9) * arms
    start = analysed = clock()
    next_analysis, narrow, narrow_analyses = protocol.min_rounds, [False for _ in runners], 0

    def analyse() -> tuple[list[Interval | None], list[bool]]:
        intervals = [rounds_interval(logs) if logs else None for logs in _by_arm(counted, arms)]
        return intervals, _narrow(intervals, protocol.process_target)

    with without_collection() as collect:
        poll()
        for number in range(MAX_ROUNDS):
            round_start = clock()
            round_blocks = time_round(runners, sizes, rng, clock, number=number)
            blocks += round_blocks
            counted.append(_Round(number, round_start, clock(), _log_ratios(round_blocks, arms)))
            invalid.update(_discard_disturbed(counted, round_start, clock, poll, window))
            now, count = clock(), len(counted)
            over_budget = now - start > budget_ns and count >= protocol.fewest_rounds
            last = over_budget or (number >= 1 and now - start > HARD_LIMIT * budget_ns) or number == MAX_ROUNDS - 1
            if last or count >= next_analysis or now - analysed > WATCH_NS:
                (estimates, narrow), analysed = analyse(), now
            if count >= next_analysis:
                narrow_analyses = narrow_analyses + 1 if all(narrow) else 0
                next_analysis = count + max(4, count // ANALYSIS_SHARE)
            watch(number + 1, [None, *(log and log.exp() for log in estimates[1:])])
            if last or narrow_analyses == ANALYSES:
                break
            if number % 20 == 19:
                collect()
        wait()
        if lost := _discard_disturbed(counted, round_start, clock, poll, window):
            invalid.update(lost)
            estimates, narrow = analyse()
    enough = len(counted) >= protocol.min_rounds
    return Comparison(
        blocks=tuple(replace(block, invalid=invalid.get(block.round, "")) for block in blocks),
        logs=tuple(estimates),
        converged=tuple(enough and arm_narrow for arm_narrow in narrow),
        outliers=tuple(count_outliers(logs) for logs in _by_arm(counted, arms)),
        rounds=len(counted),
        invalid=tuple(invalid.values()),
    )


class _Round(NamedTuple):
    number: int
    start_ns: int
    end_ns: int
    logs: list[float]


def _discard_disturbed(
    counted: list[_Round], round_start: int, clock: Clock, poll: Callable[[], str], window: Window | None
) -> dict[int, str]:
    """Remove the rounds that may be disturbed, the last of which began at ``round_start``; return causes by number."""
    before_ns = clock()
    if not (cause := poll()):
        return {}
    # The driver's counters and samples are late: earlier rounds than the last one may have been disturbed, too.
    since_ns, until_ns = round_start - LATE_NS, math.inf
    if window is not None:
        began_s, ended_s = window()  # before the poll, which was between the two readings of the clock
        since_ns, until_ns = before_ns - int(1e9 * began_s), clock() - int(1e9 * ended_s)
    lost = [each for each in counted if each.end_ns > since_ns and each.start_ns < until_ns]
    counted[:] = [each for each in counted if each not in lost]
    return {each.number: cause for each in lost}


def _by_arm(counted: Sequence[_Round], arms: int) -> list[list[float]]:
    return [[each.logs[arm] for each in counted] for arm in range(arms)]


@contextmanager
def without_collection() -> Iterator[Callable[[], int]]:
    """Keep Python's garbage collector from running; yield a function that runs it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # exempts all present objects, so that collecting between rounds is quick
    gc.disable()
    try:
        yield gc.collect
    finally:
        if was_enabled:
            gc.enable()


def _log_ratios(blocks: Sequence[TimedBlock], arms: int) -> list[float]:
    """Return each arm's ln(baseline time / arm time) in one round; the first value is the baseline's own ln(time)."""
    times: list[list[float]] = [[] for _ in range(arms)]
    for block in blocks:
        times[block.arm].append(block.step_ns)
    (first, second), *others = times
    pairs = [(1.0, 1.0), *((before, after) for before, after in others)]
    return [round_log_ratio((first, second), pair) for pair in pairs]


def _narrow(estimates: Sequence[Interval | None], target: float) -> list[bool]:
    """Return for each speedup whether its interval is narrow enough; for the first arm whether all are.

    A lone arm is judged by the interval of its own time.
    """
    judged = estimates[1:] or estimates
    widths = [None if interval is None else interval.half_width for interval in judged]
    narrow = [width is not None and width <= target for width in widths]
    return [all(narrow), *narrow] if len(estimates) > 1 else narrow
