"""Before timing: warm up to a steady state, and choose how many steps a block has."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure.rounds import Clock, Runner, Sizes, time_block

# Share of the time budget of a process that warm-up may take in addition, of each arm.
WARM_UP_SHARE = 0.75
# The first steps, whose times are not looked at: in them libraries load and try their kernels.
FIRST_STEPS = 3
# The next ones may be slow alike, and a window of slow steps is a single one, so that two agree. A
# warm-up has this many steps before it counts as steady, unless its time is over.
FEWEST_STEPS_IF_STEADY = 12
# Warm-up ends when the medians of two windows of steps agree within this, or within their errors if
# those are larger.
WINDOW_AGREEMENT = 0.01
# A window has as many steps as fit into this time, but no more than these.
WINDOW_S = 0.2
WINDOW_STEPS = 25
# After a switch of arms steps run untimed for this long, at least one, and no more than these:
# caches are cold. Where step times after switches were watched, they reached their plateau within
# three steps; of a transient that is 20 % at first and 1 % after five steps
# (tests/measure/test_truth.py) twelve leave a bias of 0.01 %, and four left 0.26 %.
SWITCH_S = 0.03
SWITCH_STEPS = 12
# In a step that takes longer, the transient of a switch is lost.
LONG_STEP_NS = 1e9
# Shorter blocks are measured in scheduler ticks (4 ms on many systems) rather than in steps.
BLOCK_S = 0.005
# The same of an arm whose steps are queued: at both ends of a block the device waits for the host,
# or the host for the device, by up to a millisecond, and differently in each arm.
QUEUED_BLOCK_S = 0.25
# Blocks of queued steps are shortened so that an arm's time budget has room for these: two in each
# of three rounds, as many as a process measures at least (``Protocol.fewest_rounds``).
FEWEST_BLOCKS = 6
# A block is long enough for the clock when an empty block takes no more than this share of it:
# where several processes share a clock, reading it takes long.
CLOCK_SHARE = 0.001
NO_STEPS = Sizes(switch_warmup=0, steps=0)
ONE_STEP = Sizes(switch_warmup=0, steps=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """The warm-up of an arm."""

    steady: bool
    steps: int
    step_ns: float
    """Median time of a step in the last window, each one synchronised."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """An arm that is warm, and the sizes of its blocks."""

    warm: WarmUp
    sizes: Sizes


def prepare(
    runners: Sequence[Runner],
    budget_s: float,
    *,
    clock: Clock = time.perf_counter_ns,
    say: Callable[[str], None] = lambda _text: None,
) -> list[BlockPlan]:
    """Warm the arms up, and choose the sizes of their blocks.

    Takes up to 0.75 of the arms' time budget of a process, in addition to it; ``say`` is called
    with the stage.
    """
    empty_ns = empty_block_ns(runners[0], clock)
    plans = []
    for runner in runners:
        say(f"{runner.name}: warming up")
        warm = warm_up(runner, WARM_UP_SHARE * budget_s, clock)
        block_s = BLOCK_S
        if runner.asynchronous:
            block_s = max(BLOCK_S, min(QUEUED_BLOCK_S, budget_s / FEWEST_BLOCKS))
        steps = _steps(max(1e9 * block_s, empty_ns / CLOCK_SHARE), warm.step_ns)
        untimed = 0
        if warm.step_ns < LONG_STEP_NS:
            untimed = min(SWITCH_STEPS, _steps(1e9 * SWITCH_S, warm.step_ns))
        plans.append(BlockPlan(warm, Sizes(untimed, steps)))
    return plans


def _steps(time_ns: float, step_ns: float) -> int:
    """Return how many steps take a time, at least one."""
    return max(1, math.ceil(time_ns / max(1.0, step_ns)))


def warm_up(runner: Runner, cap_s: float, clock: Clock = time.perf_counter_ns) -> WarmUp:
    """Run three steps, then windows of steps until two agree, at least twelve steps in all.

    Nothing new may be allocated or compiled in the last window. When ``cap_s`` seconds have passed
    since the first three steps, two windows are enough, however few their steps; where they do not
    agree, the arm counts as not steady.
    """
    for _ in range(FIRST_STEPS):
        median_ns: float = time_block(runner, ONE_STEP, clock)
    # The time counts from here on: in the first steps cuDNN loads and tries its kernels, for
    # seconds.
    limit_ns = clock() + cap_s * 1e9
    previous_ns = math.inf
    error = 0.0
    steps = FIRST_STEPS
    while True:
        # Sized anew each time: the first steps may be hundreds of times as slow as the rest.
        window = min(WINDOW_STEPS, _steps(1e9 * WINDOW_S, median_ns))
        fingerprint = runner.fingerprint()
        times = [time_block(runner, ONE_STEP, clock) for _ in range(window)]
        previous_error = error
        median_ns = statistics.median(times)
        error = _median_error(times) / max(1.0, median_ns)
        steps += window
        is_over = clock() > limit_ns
        tolerance = max(WINDOW_AGREEMENT, math.hypot(error, previous_error))
        agree = abs(median_ns - previous_ns) <= tolerance * median_ns
        is_unchanged = runner.fingerprint() == fingerprint
        steady = agree and is_unchanged and (is_over or steps >= FEWEST_STEPS_IF_STEADY)
        if steady or (is_over and previous_ns < math.inf):
            return WarmUp(steady=steady, steps=steps, step_ns=median_ns)
        previous_ns = median_ns


def empty_block_ns(runner: Runner, clock: Clock) -> float:
    """Return the median time of a block without steps: of the clock and the synchronisation."""
    # Readings of a clock that processes share scatter widely; a hundred still take no time.
    return statistics.median(time_block(runner, NO_STEPS, clock) for _ in range(101))


def _median_error(values: Sequence[float]) -> float:
    """Return twice the standard error of a median.

    The spread of normal values is 1.4826 times their median absolute deviation, and the standard
    error of their median 1.2533 (the root of π/2) times that of their mean.
    """
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 2 * 1.2533 * spread / math.sqrt(len(values))
