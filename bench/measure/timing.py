"""Timed blocks, and the order they come in (docs/measuring.md).

Knows nothing of torch: an arm is anything that can run steps, so that the tests can measure simulated
arms on a simulated clock with the very code that measures real ones.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

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

    switch_warmup: int
    """Untimed steps at the head of a block."""
    steps: int
    """Timed steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedBlock:
    """One timed run of steps."""

    arm: int
    """Index of the arm."""
    round: int
    position: int
    steps: int
    time_ns: int
    start_s: float
    skipped_steps: int
    invalid: str = ""
    """What disturbed its round, or empty."""

    @property
    def step_ns(self) -> float:
        """Time per step."""
        return self.time_ns / self.steps


def time_block(runner: Runner, sizes: Sizes, clock: Clock = time.perf_counter_ns, *, warm: bool = False) -> int:
    """Return the nanoseconds that one block's timed steps took.

    Args:
        runner: the arm.
        sizes: how many steps to warm up after the switch and to time.
        clock: a clock in nanoseconds.
        warm: whether this arm ran last, and so needs no switch warm-up.
    """
    runner.activate()
    runner.run(0 if warm else sizes.switch_warmup)
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


def time_round(
    runners: Sequence[Runner],
    sizes: Sequence[Sizes],
    chance: random.Random,
    clock: Clock,
    *,
    number: int,
) -> list[TimedBlock]:
    """Time one ABBA round: two blocks of each arm, in an order that cancels drift.

    Between rounds the device idles for a moment, so the first block always has a switch warm-up; within one, an arm
    that ran last needs none.

    Args:
        runners: the arms.
        sizes: how each one's blocks are cut.
        chance: draws the order.
        clock: a clock in nanoseconds.
        number: the round's number.
    """
    blocks: list[TimedBlock] = []
    for position, arm in enumerate(palindrome(len(runners), chance)):
        runner = runners[arm]
        warm = bool(blocks) and arm == blocks[-1].arm
        taken, start_s = runner.taken_steps(), time.time()
        time_ns = time_block(runner, sizes[arm], clock, warm=warm)
        asked = (0 if warm else sizes[arm].switch_warmup) + sizes[arm].steps
        blocks.append(
            TimedBlock(
                arm=arm,
                round=number,
                position=position,
                steps=sizes[arm].steps,
                time_ns=time_ns,
                start_s=start_s,
                skipped_steps=asked - (runner.taken_steps() - taken),
            )
        )
    return blocks
