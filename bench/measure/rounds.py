"""ABBA rounds of timed blocks, until time is up or the speedups' intervals are narrow enough.

Independent of torch: an arm is anything that can run steps, so that the tests can measure simulated
arms on a simulated clock with the very code that measures real ones (docs/measuring.md).
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol as Interface

from bench.spec.protocol import Protocol
from bench.stats import Interval, round_log_ratio, rounds_interval

# Timing ends after this many times the budget, even with fewer than the required rounds.
HARD_LIMIT = 5
# How often the running speedups are updated.
WATCH_NS = 500_000_000
# The intervals are looked at after so many rounds: they cost as much as a short block.
LOOK_ROUNDS = 10

# A clock in nanoseconds.
Clock = Callable[[], int]


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

    @property
    def step_ns(self) -> float:
        """Time per step."""
        return self.time_ns / self.steps


def time_block(
    runner: Runner, sizes: Sizes, clock: Clock = time.perf_counter_ns, *, warm: bool = False
) -> int:
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

    With two arms it is ABBA or BAAB. With more, every arm's two blocks still have the same mean
    position, so that linear drift cancels between any two of them and all share the baseline's
    blocks.
    """
    order = list(range(arms))
    rng.shuffle(order)
    return order + order[::-1]


def time_round(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    rng: random.Random,
    clock: Clock,
    *,
    number: int,
) -> list[TimedBlock]:
    """Time one ABBA round: two blocks of each arm, in an order that ``rng`` draws and that cancels drift.

    Between rounds the device idles for a moment, so the first block always has a switch warm-up;
    within a round, a block that follows one of the same arm needs none.
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
    logs: tuple[Interval, ...]
    """For each arm the log-speedup over the first; for the first, its own log-time in ns."""
    rounds: int

    @property
    def speedups(self) -> tuple[Interval | None, ...]:
        """For each arm the speedup over the first; None for the first itself."""
        return (None, *(log.exp() for log in self.logs[1:]))

    def is_within(self, target: float, arm: int = 0) -> bool:
        """Return whether an arm's interval has at most this half-width; for the first, whether all others' have.

        A lone arm is judged by the interval of its time.
        """
        widths = [
            log.half_width
            for log in (self.logs[arm : arm + 1] if arm else self.logs[1:] or self.logs)
        ]
        return all(width is not None and width <= target for width in widths)


def compare(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    protocol: Protocol,
    *,
    seed: int,
    clock: Clock = time.perf_counter_ns,
    watch: Callable[[Comparison], None] = lambda _comparison: None,
) -> Comparison:
    """Time the runners in ABBA rounds until time is up, or every speedup over the first is known well enough.

    With one runner, its time per step is to be known well enough.

    Args:
        runners: the arms, the baseline first.
        sizes: the block sizes of each arm.
        protocol: when to stop.
        seed: of the rounds' orders.
        clock: in nanoseconds.
        watch: called now and then with what has been measured so far, outside the timed blocks.
    """
    rng = random.Random(seed)
    blocks: list[TimedBlock] = []
    logs: list[list[float]] = [[] for _ in runners]
    budget_ns = int(protocol.process_s * 1e9) * len(runners)
    start = watched = clock()
    is_over = is_narrow = False
    with without_collection() as collect:
        while not (is_over or is_narrow):
            round_blocks = time_round(runners, sizes, rng, clock, number=len(logs[0]))
            blocks += round_blocks
            for of_arm, log in zip(logs, _log_ratios(round_blocks, len(runners)), strict=True):
                of_arm.append(log)
            count, now = len(logs[0]), clock()
            is_over = now - start > budget_ns and count >= protocol.fewest_rounds
            is_over |= now - start > HARD_LIMIT * budget_ns
            if is_over or count % LOOK_ROUNDS == 0 or now - watched > WATCH_NS:
                intervals = tuple(rounds_interval(of_arm) for of_arm in logs)
                comparison = Comparison(blocks=tuple(blocks), logs=intervals, rounds=count)
                is_narrow = count >= protocol.min_rounds and comparison.is_within(
                    protocol.process_target
                )
                watch(comparison)
                watched = now
                collect()
    return comparison


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
