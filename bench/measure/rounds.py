"""ABBA rounds of timed blocks, until time is up or the speedups' intervals are narrow enough.

Independent of torch: an arm is anything that can run steps, so that the tests can measure simulated
arms on a simulated clock with the very code that measures real ones (docs/measuring.md).
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol as Interface

from bench.spec.protocol import Protocol
from bench.stats import Interval, rounds_interval

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
    """Whether ``run_steps`` returns before the device is done."""

    def activate(self) -> None:
        """Set the process's switches to this arm's."""

    def run_steps(self, steps: int) -> None:
        """Run, or queue, that many steps."""

    def synchronize(self) -> None:
        """Wait until every queued step is done."""

    def fingerprint(self) -> object:
        """Return what a steady state leaves the same: allocations, compilations, loss scale."""

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


def time_block(runner: Runner, sizes: Sizes, clock: Clock) -> int:
    """Return the nanoseconds of one block's timed steps."""
    runner.activate()
    runner.run_steps(sizes.switch_warmup)
    runner.synchronize()
    start = clock()
    runner.run_steps(sizes.steps)
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
    number: int,
) -> list[TimedBlock]:
    """Time one ABBA round: two blocks of each arm, in an order that cancels drift.

    Between rounds the device idles for a moment, so the first block always has a switch warm-up;
    within a round, a block that follows one of the same arm needs none.
    """
    blocks: list[TimedBlock] = []
    for position, arm in enumerate(palindrome(len(runners), rng)):
        runner, size = runners[arm], sizes[arm]
        if blocks and arm == blocks[-1].arm:
            size = Sizes(switch_warmup=0, steps=size.steps)
        taken_before, start_s = runner.taken_steps(), time.time()
        time_ns = time_block(runner, size, clock)
        taken = runner.taken_steps() - taken_before
        skipped = size.switch_warmup + size.steps - taken
        blocks.append(TimedBlock(arm, number, position, size.steps, time_ns, start_s, skipped))
    return blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The ABBA rounds of a process."""

    blocks: tuple[TimedBlock, ...]
    logs: tuple[Interval, ...]
    """For each arm the log-speedup over the first; for the first, its own log-time in ns."""

    @property
    def rounds(self) -> int:
        """How many they are."""
        return self.logs[0].n

    @property
    def speedups(self) -> tuple[Interval | None, ...]:
        """For each arm the speedup over the first; None for the first itself."""
        return (None, *(log.exp() for log in self.logs[1:]))

    def is_within(self, target: float, arm: int = 0) -> bool:
        """Return whether an arm's interval has at most this half-width.

        The first arm's has if all others' have; a lone arm is judged by the interval of its time.
        """
        judged = [self.logs[arm]] if arm else self.logs[1:] or self.logs
        widths = [log.half_width for log in judged]
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
    """Time the runners in ABBA rounds until time is up, or every speedup is known well enough.

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
    is_done, count = False, 0
    with without_collection() as collect:
        while not is_done:
            round_blocks = time_round(runners, sizes, rng, clock, count)
            blocks += round_blocks
            count += 1
            for of_arm, log in zip(logs, _log_ratios(round_blocks, len(runners)), strict=True):
                of_arm.append(log)
            now = clock()
            limit_ns = budget_ns if count >= protocol.fewest_rounds else HARD_LIMIT * budget_ns
            is_over = now - start > limit_ns
            if is_over or count % LOOK_ROUNDS == 0 or now - watched > WATCH_NS:
                intervals = tuple(map(rounds_interval, logs))
                comparison = Comparison(blocks=tuple(blocks), logs=intervals)
                is_narrow = comparison.is_within(protocol.process_target)
                is_done = is_over or (is_narrow and count >= protocol.min_rounds)
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
    """Return each arm's ln(baseline time / arm time) in one round.

    The first value is the baseline's own ln(time). In ABBA and BAAB order both arms have the same
    mean position, so drift that is linear in time cancels exactly.
    """
    products = [1.0] * arms
    for block in blocks:
        products[block.arm] *= block.step_ns
    baseline = products[0]
    products[0] = 1.0
    return [math.log(baseline / product) / 2 for product in products]
