"""Timed blocks in quads: how fast one arm is against another (docs/measuring.md).

Knows nothing of torch: an arm is anything that can run steps, so that the tests can measure simulated
arms on a simulated clock with the very code that measures real ones.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

from bench.stats import Interval, quad_log_ratio, quads_interval
from bench.trial import Protocol

MAX_QUADS = 5000
"""More are never needed: an interval that is still too wide then is wide for another reason."""

Clock = Callable[[], int]
"""A clock in nanoseconds."""


class Runner(Interface):
    """An arm that can be timed."""

    name: str
    asynchronous: bool
    """Whether ``run`` returns before the device is done."""

    def activate(self) -> None:
        """Set the process's switches to this arm's."""

    def run(self, steps: int) -> None:
        """Do, or queue, that many steps."""

    def synchronize(self) -> None:
        """Wait until every queued step is done."""

    def fingerprint(self) -> object:
        """Return what must stay the same in a steady state: allocations, compilations, loss scale."""

    def taken_steps(self) -> int:
        """Return how many optimizer steps have taken effect so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How one arm's blocks are cut."""

    settle: int
    """Untimed steps at the head of a block."""
    steps: int
    """Timed steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedBlock:
    """One timed run of steps."""

    arm: int
    """Index of the arm."""
    quad: int
    position: int
    steps: int
    time_ns: int
    start_s: float
    skipped_steps: int

    @property
    def step_ns(self) -> float:
        """Time per step."""
        return self.time_ns / self.steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The quads of one process."""

    blocks: tuple[TimedBlock, ...]
    speedups: tuple[Interval | None, ...]
    """For each arm the speedup over the first; None for the first itself."""
    converged: tuple[bool, ...]
    """For each arm whether its interval is as narrow as asked; for the first, whether all are."""
    quads: int


def time_block(runner: Runner, sizes: Sizes, clock: Clock = time.perf_counter_ns, *, settled: bool = False) -> int:
    """Return the nanoseconds that one block's timed steps took.

    Args:
        runner: the arm.
        sizes: how many steps to settle and to time.
        clock: a clock in nanoseconds.
        settled: whether this arm ran last, and so need not settle again.
    """
    runner.activate()
    runner.run(0 if settled else sizes.settle)
    runner.synchronize()
    start = clock()
    runner.run(sizes.steps)
    runner.synchronize()
    return clock() - start


def palindrome(arms: int, chance: random.Random) -> list[int]:
    """Return a random order of the arms, and the same order backwards.

    With two arms it is ABBA or BAAB. With more, every arm's two blocks still have the same mean
    position, so that linear drift cancels between any two of them and all share the baseline's blocks.
    """
    order = list(range(arms))
    chance.shuffle(order)
    return order + order[::-1]


def compare(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    protocol: Protocol,
    *,
    seed: int,
    clock: Clock = time.perf_counter_ns,
    watch: Callable[[int, Sequence[Interval | None]], None] = lambda _quads, _speedups: None,
) -> Comparison:
    """Time the runners in quads until every speedup over the first is known well enough, or time is up.

    With one runner, until its own time per step is.

    Args:
        runners: the arms, the baseline first.
        sizes: how each one's blocks are cut.
        protocol: when to stop.
        seed: seed of the quads' orders.
        clock: a clock in nanoseconds.
        watch: told the number of quads and the running speedups, outside the timed blocks.
    """
    chance = random.Random(seed)
    blocks: list[TimedBlock] = []
    logs: list[list[float]] = [[] for _ in runners]
    limit_ns = clock() + int(protocol.time_budget_s * 1e9) * len(runners)
    quad, next_look, converged = 0, 3, False
    speedups: list[Interval | None] = [None] * len(runners)
    narrow = [False] * len(runners)
    collected = gc.isenabled()
    gc.collect()
    gc.freeze()  # what lives now need not be looked at again, so that collecting between quads is quick
    gc.disable()
    try:
        while quad < MAX_QUADS:
            last = blocks[-1].arm if blocks else None
            fresh = _quad(runners, sizes, chance, clock, quad=quad, last=last)
            blocks += fresh
            quad += 1
            for arm, log in enumerate(_log_ratios(fresh, len(runners))):
                logs[arm].append(log)
            timed_out = clock() > limit_ns and quad >= protocol.fewest_quads
            if quad >= next_look or timed_out or quad == MAX_QUADS:
                estimates = [quads_interval(values) for values in logs]
                narrow = _narrow(estimates, protocol.target_ci)
                converged = quad >= protocol.min_quads and all(narrow)
                speedups = [None, *(estimate.exp() for estimate in estimates[1:])]
                next_look = quad + max(1, quad // 10)
            watch(quad, speedups)
            if converged or timed_out:
                break
            if quad % 20 == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        if collected:
            gc.enable()
    enough = quad >= protocol.min_quads
    return Comparison(
        blocks=tuple(blocks),
        speedups=tuple(speedups),
        converged=tuple(enough and fine for fine in narrow),
        quads=quad,
    )


def _quad(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    chance: random.Random,
    clock: Clock,
    *,
    quad: int,
    last: int | None,
) -> list[TimedBlock]:
    blocks: list[TimedBlock] = []
    for position, arm in enumerate(palindrome(len(runners), chance)):
        runner = runners[arm]
        settled = arm == (blocks[-1].arm if blocks else last)
        taken, start_s = runner.taken_steps(), time.time()
        time_ns = time_block(runner, sizes[arm], clock, settled=settled)
        asked = (0 if settled else sizes[arm].settle) + sizes[arm].steps
        blocks.append(
            TimedBlock(
                arm=arm,
                quad=quad,
                position=position,
                steps=sizes[arm].steps,
                time_ns=time_ns,
                start_s=start_s,
                skipped_steps=asked - (runner.taken_steps() - taken),
            )
        )
    return blocks


def _log_ratios(blocks: Sequence[TimedBlock], arms: int) -> list[float]:
    """Return each arm's ln(baseline time / arm time) in one quad; the first value is the baseline's own ln(time)."""
    times = [tuple(block.step_ns for block in blocks if block.arm == arm) for arm in range(arms)]
    pairs = [(pair[0], pair[1]) for pair in times]
    return [quad_log_ratio(pairs[0], (1.0, 1.0)), *(quad_log_ratio(pairs[0], pair) for pair in pairs[1:])]


def _narrow(estimates: Sequence[Interval], target: float) -> list[bool]:
    """Say of each speedup whether its interval is as narrow as asked; a lone arm's time is asked the same."""
    asked = estimates[1:] if len(estimates) > 1 else estimates
    narrow = [estimate.half_width is not None and estimate.half_width <= target for estimate in asked]
    return [all(narrow), *narrow] if len(estimates) > 1 else narrow
