"""Quads until the speedup is known well enough, and the check that switching arms did not distort it."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.measure.timing import Clock, Runner, Sizes, TimedBlock, time_quad
from bench.spec.trial import Protocol
from bench.stats import Interval, count_bursts, quad_log_ratio, quads_interval, robust_interval

MAX_QUADS = 5000
"""More are never needed: an interval that is still too wide then is wide for another reason."""
HARD_LIMIT = 5
"""Times the budget, after which even the fewest quads are not waited for."""
LOOKS = 3
"""Looks running at which every interval must be narrow enough."""
LOOK_SHARE = 5
"""Between two looks at the intervals the number of quads grows by a fifth, and by four at least."""
WATCH_NS = 500_000_000
LATE_NS = 100_000_000
"""The driver tells of a slowdown up to this much later."""
LONGER = 4
"""The check's blocks and their settling are this many times as long."""
CHECK_QUADS = (5, 12)
"""Fewest and most quads of the check."""
CHECK_SHARE = 0.5
"""Share of the time budget that the check may take beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The quads of one process."""

    blocks: tuple[TimedBlock, ...]
    """All blocks, those of quads that do not count too."""
    logs: tuple[Interval | None, ...]
    """For each arm the log-speedup over the first; for the first, its own log-time in ns. None: nothing counts."""
    converged: tuple[bool, ...]
    """For each arm whether its interval is as narrow as asked; for the first, whether all are."""
    bursts: tuple[int, ...]
    """For each arm the quads that lie far from the others."""
    quads: int
    """Quads that count."""
    invalid: tuple[str, ...] = ()
    """For each quad that does not count, what disturbed it."""

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
    edge: Callable[[], str] = lambda: "",
    watch: Callable[[int, Sequence[Interval | None]], None] = lambda _quads, _speedups: None,
) -> Comparison:
    """Time the runners in quads until every speedup over the first is known well enough, or time is up.

    With one runner, until its own time per step is. The intervals are looked at ever more rarely, and must be
    narrow enough at three looks running: to stop at the first would favour moments at which they are too narrow.

    Args:
        runners: the arms, the baseline first.
        sizes: how each one's blocks are cut.
        protocol: when to stop.
        seed: seed of the quads' orders.
        clock: a clock in nanoseconds.
        edge: called after each quad; says what has disturbed the device since it was called last, or nothing.
        watch: told the number of quads and the running speedups, outside the timed blocks.
    """
    chance = random.Random(seed)
    blocks: list[TimedBlock] = []
    logs: list[list[float]] = [[] for _ in runners]
    invalid: dict[int, str] = {}
    counted: list[tuple[int, int]] = []  # the quads that count, each with when it ended
    estimates: list[Interval | None] = [None for _ in runners]
    budget_ns = int(protocol.time_budget_s * 1e9) * len(runners)
    begin = looked = clock()
    next_look, narrow, looks = protocol.min_quads, [False for _ in runners], 0
    with _without_collection() as collect:
        edge()
        for quad in range(MAX_QUADS):
            begun = clock()
            fresh = time_quad(runners, sizes, chance, clock, quad=quad)
            blocks += fresh
            for log, value in zip(logs, _log_ratios(fresh, len(runners)), strict=True):
                log.append(value)
            counted.append((quad, clock()))
            if cause := edge():
                # The driver's counters are late: what has just ended may have been disturbed too.
                while counted and counted[-1][1] > begun - LATE_NS:
                    void, _ = counted.pop()
                    invalid[void] = cause
                    for log in logs:
                        log.pop()
            now, count = clock(), len(logs[0])
            late = now - begin > budget_ns and count >= protocol.fewest_quads
            last = late or (quad >= 1 and now - begin > HARD_LIMIT * budget_ns) or quad == MAX_QUADS - 1
            if count and (last or count >= next_look or now - looked > WATCH_NS):
                estimates, looked = [quads_interval(values) for values in logs], now
                narrow = _narrow(estimates, protocol.target_ci)
            if count >= next_look:
                looks = looks + 1 if all(narrow) else 0
                next_look = count + max(4, count // LOOK_SHARE)
            watch(quad + 1, [None, *(log and log.exp() for log in estimates[1:])])
            if last or looks == LOOKS:
                break
            if quad % 20 == 19:
                collect()
    enough = len(logs[0]) >= protocol.min_quads
    return Comparison(
        blocks=tuple(replace(block, invalid=invalid.get(block.quad, "")) for block in blocks),
        logs=tuple(estimates),
        converged=tuple(enough and fine for fine in narrow),
        bursts=tuple(count_bursts(values) for values in logs),
        quads=len(logs[0]),
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
    edge: Callable[[], str] = lambda: "",
) -> list[LongBlocks | None]:
    """Compare once more with blocks and settling four times as long, and say how far the log-speedups lie apart.

    Returns:
        For each arm how they compare; None for the first, and where steps are so long that five such quads take
        more than half the time budget: a transient of tens of milliseconds is over in their settling step.
    """
    times = {
        arm: statistics.median(block.step_ns for block in found.blocks if block.arm == arm) for arm in range(len(sizes))
    }
    quad_ns = sum(2 * LONGER * (size.settle + size.steps) * times[arm] for arm, size in enumerate(sizes))
    affordable = int(CHECK_SHARE * protocol.time_budget_s * 1e9 * len(runners) / quad_ns)
    if len(runners) < 2 or affordable < CHECK_QUADS[0]:
        return [None for _ in runners]
    long = [lengthen(size) for size in sizes]
    chance = random.Random(seed + 1)
    logs: list[list[float]] = [[] for _ in runners]
    with _without_collection():
        for quad in range(min(affordable, CHECK_QUADS[1])):
            fresh = time_quad(runners, long, chance, clock, quad=quad)
            if edge():
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
    return Sizes(settle=LONGER * sizes.settle, steps=LONGER * sizes.steps)


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
    gc.freeze()  # what lives now need not be looked at again, so that collecting between quads is quick
    gc.disable()
    try:
        yield gc.collect
    finally:
        if collected:
            gc.enable()


def _log_ratios(blocks: Sequence[TimedBlock], arms: int) -> list[float]:
    """Return each arm's ln(baseline time / arm time) in one quad; the first value is the baseline's own ln(time)."""
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
