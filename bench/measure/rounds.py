"""Rounds until the speedup is known well enough, and the check that switching arms did not distort it."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.measure.timing import Clock, Runner, Sizes, TimedBlock, time_round
from bench.spec.trial import Protocol
from bench.stats import Interval, count_bursts, quad_log_ratio, quads_interval, robust_interval

MAX_ROUNDS = 5000
"""More are never needed: an interval that is still too wide then is wide for another reason."""
HARD_LIMIT = 5
"""After this many times the budget, timing ends even before the fewest rounds."""
ANALYSES = 3
"""Interim analyses in a row at which every interval must be narrow enough."""
ANALYSIS_SHARE = 5
"""Between two interim analyses the number of rounds grows by a fifth, and by at least four."""
WATCH_NS = 500_000_000
LATE_NS = 100_000_000
"""The driver tells of a slowdown up to this much later."""
LONGER = 4
"""The check's blocks and their settling are this many times as long."""
CHECK_ROUNDS = (5, 12)
"""Fewest and most rounds of the check."""
CHECK_SHARE = 0.5
"""Share of the time budget that the check may take beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The ABBA rounds of one process."""

    blocks: tuple[TimedBlock, ...]
    """All blocks, those of discarded rounds too."""
    logs: tuple[Interval | None, ...]
    """For each arm the log-speedup over the first; for the first, its own log-time in ns. None: nothing counts."""
    converged: tuple[bool, ...]
    """For each arm whether its interval is as narrow as asked; for the first, whether all are."""
    outliers: tuple[int, ...]
    """For each arm the number of rounds that lie far from the others."""
    rounds: int
    """Rounds that count."""
    invalid: tuple[str, ...] = ()
    """For each discarded round, what disturbed it."""

    @property
    def speedups(self) -> tuple[Interval | None, ...]:
        """For each arm the speedup over the first; None for the first itself."""
        return (None, *(None if log is None else log.exp() for log in self.logs[1:]))


@dataclass(frozen=True, kw_only=True, slots=True)
class LongBlocks:
    """What blocks of four times the length say of a speedup."""

    difference: float
    """Their log-speedup less the one found."""
    agree: bool
    """Whether the two differ by no more than both can tell."""


def compare(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    protocol: Protocol,
    *,
    seed: int,
    clock: Clock = time.perf_counter_ns,
    poll: Callable[[], str] = lambda: "",
    watch: Callable[[int, Sequence[Interval | None]], None] = lambda _quads, _speedups: None,
) -> Comparison:
    """Time the runners in ABBA rounds until every speedup over the first is known well enough, or time is up.

    With one runner, until its own time per step is. The intervals are analysed at ever more rarely, and must be
    narrow enough at three interim analyses in a row: stopping at the first would favour intervals that are too narrow
    by chance.

    Args:
        runners: the arms, the baseline first.
        sizes: how each one's blocks are cut.
        protocol: when to stop.
        seed: seed of the rounds' orders.
        clock: a clock in nanoseconds.
        poll: called after each round; returns what has disturbed the device since the last call, or nothing.
        watch: called with the number of rounds and the running speedups, outside the timed blocks.
    """
    chance = random.Random(seed)
    blocks: list[TimedBlock] = []
    logs: list[list[float]] = [[] for _ in runners]
    invalid: dict[int, str] = {}
    counted: list[tuple[int, int]] = []  # the rounds that count, each with when it ended
    estimates: list[Interval | None] = [None for _ in runners]
    budget_ns = int(protocol.time_budget_s * 1e9) * len(runners)
    begin = analysed = clock()
    next_analysis, narrow, narrow_analyses = protocol.min_quads, [False for _ in runners], 0
    with _without_collection() as collect:
        poll()
        for number in range(MAX_ROUNDS):
            begun = clock()
            fresh = time_round(runners, sizes, chance, clock, number=number)
            blocks += fresh
            for log, value in zip(logs, _log_ratios(fresh, len(runners)), strict=True):
                log.append(value)
            counted.append((number, clock()))
            if cause := poll():
                # The driver's counters are late: what has just ended may have been disturbed too.
                while counted and counted[-1][1] > begun - LATE_NS:
                    discarded, _ = counted.pop()
                    invalid[discarded] = cause
                    for log in logs:
                        log.pop()
            now, count = clock(), len(logs[0])
            late = now - begin > budget_ns and count >= protocol.fewest_quads
            last = late or (number >= 1 and now - begin > HARD_LIMIT * budget_ns) or number == MAX_ROUNDS - 1
            if count and (last or count >= next_analysis or now - analysed > WATCH_NS):
                estimates, analysed = [quads_interval(values) for values in logs], now
                narrow = _narrow(estimates, protocol.target_ci)
            if count >= next_analysis:
                narrow_analyses = narrow_analyses + 1 if all(narrow) else 0
                next_analysis = count + max(4, count // ANALYSIS_SHARE)
            watch(number + 1, [None, *(log and log.exp() for log in estimates[1:])])
            if last or narrow_analyses == ANALYSES:
                break
            if number % 20 == 19:
                collect()
    enough = len(logs[0]) >= protocol.min_quads
    return Comparison(
        blocks=tuple(replace(block, invalid=invalid.get(block.round, "")) for block in blocks),
        logs=tuple(estimates),
        converged=tuple(enough and fine for fine in narrow),
        outliers=tuple(count_bursts(values) for values in logs),
        rounds=len(logs[0]),
        invalid=tuple(invalid.values()),
    )


def check_long_blocks(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    found: Comparison,
    protocol: Protocol,
    *,
    seed: int,
    clock: Clock = time.perf_counter_ns,
    poll: Callable[[], str] = lambda: "",
) -> list[LongBlocks | None]:
    """Compare once more with blocks and settling four times as long, and say how far the log-speedups lie apart.

    Returns:
        For each arm how they compare; None for the first, and where steps are so long that five such rounds take
        more than half the time budget: a transient of tens of milliseconds is over in their first step.
    """
    times = {
        arm: statistics.median(block.step_ns for block in found.blocks if block.arm == arm) for arm in range(len(sizes))
    }
    round_ns = sum(2 * LONGER * (size.switch_warmup + size.steps) * times[arm] for arm, size in enumerate(sizes))
    affordable = int(CHECK_SHARE * protocol.time_budget_s * 1e9 * len(runners) / round_ns)
    if len(runners) < 2 or affordable < CHECK_ROUNDS[0]:
        return [None for _ in runners]
    long = [lengthen(size) for size in sizes]
    chance = random.Random(seed + 1)
    logs: list[list[float]] = [[] for _ in runners]
    with _without_collection():
        for number in range(min(affordable, CHECK_ROUNDS[1])):
            fresh = time_round(runners, long, chance, clock, number=number)
            if poll():
                continue  # disturbed: it says nothing of the arms
            for log, value in zip(logs, _log_ratios(fresh, len(runners)), strict=True):
                log.append(value)
    return [
        None,
        *(
            _apart(robust_interval(log) if log else None, here, protocol.target_ci)
            for log, here in zip(logs[1:], found.logs[1:], strict=True)
        ),
    ]


def lengthen(sizes: Sizes) -> Sizes:
    """Return blocks of four times the length, settling included."""
    return Sizes(switch_warmup=LONGER * sizes.switch_warmup, steps=LONGER * sizes.steps)


def _apart(long: Interval | None, here: Interval | None, target: float) -> LongBlocks | None:
    if here is None or long is None or here.half_width is None or long.half_width is None:
        return None
    difference = long.center - here.center
    # Twice the joint half-width is about four standard errors: rarer by chance than a run has rows.
    tolerance = max(target, 2 * math.hypot(long.half_width, here.half_width))
    return LongBlocks(difference=difference, agree=abs(difference) <= tolerance)


@contextmanager
def _without_collection() -> Iterator[Callable[[], int]]:
    """Keep Python's garbage collector from running; yields how to run it by hand."""
    collected = gc.isenabled()
    gc.collect()
    gc.freeze()  # what lives now is not examined again, so that collecting between rounds is quick
    gc.disable()
    try:
        yield gc.collect
    finally:
        if collected:
            gc.enable()


def _log_ratios(blocks: Sequence[TimedBlock], arms: int) -> list[float]:
    """Return each arm's ln(baseline time / arm time) in one round; the first value is the baseline's own ln(time)."""
    times = [tuple(block.step_ns for block in blocks if block.arm == arm) for arm in range(arms)]
    pairs = [(pair[0], pair[1]) for pair in times]
    return [quad_log_ratio(pairs[0], (1.0, 1.0)), *(quad_log_ratio(pairs[0], pair) for pair in pairs[1:])]


def _narrow(estimates: Sequence[Interval | None], target: float) -> list[bool]:
    """Say of each speedup whether its interval is as narrow as asked; a lone arm's time is asked the same."""
    asked = estimates[1:] if len(estimates) > 1 else estimates
    narrow = [
        estimate is not None and estimate.half_width is not None and estimate.half_width <= target for estimate in asked
    ]
    return [all(narrow), *narrow] if len(estimates) > 1 else narrow
