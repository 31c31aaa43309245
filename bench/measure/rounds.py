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
from dataclasses import dataclass, replace
from typing import Protocol as Interface

from bench.spec.protocol import Protocol
from bench.stats import Interval, rounds_interval

# Timing ends after this many times the budget, even with fewer than the required rounds: a step of
# minutes must not hold a run up for hours.
HARD_LIMIT = 5
# How often the running speedups are updated: as often as the display shows progress.
WATCH_NS = 500_000_000
# The intervals are looked at after this many rounds: they cost as much as a short block.
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

    arm_index: int
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
    for position, arm_index in enumerate(palindrome(len(runners), rng)):
        runner = runners[arm_index]
        size = sizes[arm_index]
        if blocks and arm_index == blocks[-1].arm_index:
            size = replace(size, switch_warmup=0)
        taken_before = runner.taken_steps()
        start_s = time.time()
        time_ns = time_block(runner, size, clock)
        taken = runner.taken_steps() - taken_before
        block = TimedBlock(
            arm_index=arm_index,
            round=number,
            position=position,
            steps=size.steps,
            time_ns=time_ns,
            start_s=start_s,
            skipped_steps=size.switch_warmup + size.steps - taken,
        )
        blocks.append(block)
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

    def is_within(self, target: float) -> bool:
        """Return whether the interval of every speedup has at most this half-width.

        A lone arm, which has no speedup, is judged by the interval of its time.
        """
        judged = self.logs[1:] or self.logs
        return all(_is_narrow(log, target) for log in judged)

    def is_arm_within(self, target: float, arm_index: int) -> bool:
        """Return whether the interval of an arm's speedup has at most this half-width.

        The first arm, which the others are compared with, is judged by all of theirs.
        """
        if arm_index == 0:
            return self.is_within(target)
        return _is_narrow(self.logs[arm_index], target)


def _is_narrow(log: Interval, target: float) -> bool:
    return log.half_width is not None and log.half_width <= target


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
    blocks = []
    logs: list[list[float]] = [[] for _ in runners]
    budget_ns = int(protocol.process_s * 1e9) * len(runners)
    start = watched = clock()
    is_done = False
    count = 0
    with without_collection() as collect:
        while not is_done:
            round_blocks = time_round(runners, sizes, rng, clock, count)
            blocks += round_blocks
            count += 1
            round_logs = _logs_of_round(round_blocks, len(runners))
            for of_arm, log in zip(logs, round_logs, strict=True):
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


def _logs_of_round(blocks: Sequence[TimedBlock], arms: int) -> list[float]:
    """Return the baseline's ln(time in ns) in one round, then each other arm's log-speedup.

    A log-speedup is ln(baseline's time / arm's time). In ABBA and BAAB order both arms have the
    same mean position, so drift that is linear in time cancels exactly.
    """
    log_times = [0.0] * arms
    for block in blocks:
        # Half of each: an arm has two blocks in a round, and its time is their geometric mean.
        log_times[block.arm_index] += math.log(block.step_ns) / 2
    baseline, *others = log_times
    return [baseline] + [baseline - log_time for log_time in others]
