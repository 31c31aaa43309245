"""Before timing: warm up to a steady state, and choose how many steps a block has."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure.rounds import Clock, Runner, Sizes, time_block

WARM_UP_SHARE = 0.75
"""Share of the time budget of a process that warm-up may take in addition, of each arm."""
SWITCH_SHARE = 0.5
"""Share that watching switches may take in addition; half as much again, for the fewest rounds."""
SWITCH_ROUNDS = (5, 24)
"""Fewest and most rounds of switches to watch; where the fewest take too long, none is watched."""
MIN_STEPS = 3
LEAST_STEPS = 12
"""Fewest steps of a warm-up, unless they are so long that these would take more than half of what it may."""
WINDOW_AGREEMENT = 0.01
"""Warm-up ends when the medians of two windows of steps agree within this, or within their errors if those are
larger."""
PLATEAU = 0.005
"""A step after a switch is on the plateau when it comes within this of it."""
BLOCK_S = 0.005
"""Shorter blocks are measured in scheduler ticks (4 ms on many systems) rather than in steps."""
QUEUED_BLOCK_S = 0.25
"""The same of an arm whose steps are queued: at both ends of a block the device waits for the host, or the host for the
device, by up to a millisecond, and differently in each arm."""
BLOCKS = 6
"""Fewest blocks of an arm in its time budget, which shortens queued ones: three rounds."""
CLOCK_SHARE = 0.001
"""A block is long enough for the clock when an empty block takes no more than this share of it."""
WINDOW_S = 0.2
LONG_STEP_NS = 1e9
"""In a step that takes longer, the transient of a switch is lost."""
SWITCH_WATCH_S = 0.06
MOST_WATCHED = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """The warm-up of an arm."""

    steady: bool
    steps: int
    step_ns: float
    """Median time of a step in the last window, each one synchronised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchProfile:
    """Step times after a switch to this arm, relative to the plateau."""

    transient_pct: float | None
    """The first step's excess over the plateau, in per cent; None where there was no time to watch."""
    switch_warmup: int
    """Untimed steps at the head of a block: half as many again as until the plateau, at least one."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An arm that is warm, and how its blocks are cut."""

    warm: WarmUp
    profile: SwitchProfile
    sizes: Sizes
    empty_ns: float
    """Time of a block without steps."""


def prepare(
    runners: Sequence[Runner],
    budget_s: float,
    *,
    clock: Clock = time.perf_counter_ns,
    say: Callable[[str], None] = lambda _text: None,
) -> list[Cut]:
    """Warm the arms up, watch the cost of switching between them, and cut their blocks.

    Takes up to twice the arms' time budget of a process, in addition to it; ``say`` is called with the stage.
    """
    empty_ns = empty_block_ns(runners[0], clock)
    warm = []
    for runner in runners:
        say(f"{runner.name}: warming up")
        warm.append(warm_up(runner, WARM_UP_SHARE * budget_s, clock))
    say("watching what a switch of precisions costs")
    profiles = switch_profiles(runners, warm, SWITCH_SHARE * budget_s * len(runners), clock)
    cuts = []
    for runner, hot, profile in zip(runners, warm, profiles, strict=True):
        block_s = max(BLOCK_S, min(QUEUED_BLOCK_S, budget_s / BLOCKS)) if runner.asynchronous else BLOCK_S
        shortest_ns = max(1e9 * block_s, empty_ns / CLOCK_SHARE)
        steps = max(1, math.ceil(shortest_ns / max(1.0, hot.step_ns)))
        cuts.append(Cut(hot, profile, Sizes(profile.switch_warmup, steps), empty_ns))
    return cuts


def single_step(runner: Runner, clock: Clock) -> int:
    """Return the nanoseconds of one synchronised step."""
    start = clock()
    runner.run(1)
    runner.synchronize()
    return clock() - start


def warm_up(runner: Runner, cap_s: float, clock: Clock = time.perf_counter_ns) -> WarmUp:
    """Run at least three steps, then windows of steps until two agree and nothing new was allocated or compiled.

    ``cap_s`` seconds after the first three steps, or after two windows, it gives up, and the arm counts as not steady.
    """
    runner.activate()
    now: float = [single_step(runner, clock) for _ in range(MIN_STEPS)][-1]
    begin = clock()  # in the first steps cuDNN loads and tries its kernels, for seconds
    limit = begin + int(cap_s * 1e9)
    before, error, steps = math.inf, 0.0, MIN_STEPS
    while True:
        # Sized anew each time: the first steps may be hundreds of times as slow as the rest.
        window = max(1, min(25, math.ceil(WINDOW_S * 1e9 / max(1.0, now))))
        fingerprint = runner.fingerprint()
        times = [single_step(runner, clock) for _ in range(window)]
        now, previous_error = statistics.median(times), error
        error = _median_error([time_ns / max(1.0, now) for time_ns in times])
        steps += window
        enough = steps >= LEAST_STEPS or clock() - begin > cap_s * 1e9 / 2
        tolerance = max(WINDOW_AGREEMENT, math.hypot(error, previous_error))
        agree = enough and abs(now - before) <= tolerance * now
        steady = agree and runner.fingerprint() == fingerprint
        if steady or (clock() > limit and before < math.inf):
            return WarmUp(steady=steady, steps=steps, step_ns=now)
        before = now


def empty_block_ns(runner: Runner, clock: Clock = time.perf_counter_ns) -> float:
    """Return the median time of a block without steps: the cost of the clock and the synchronisation."""
    runner.synchronize()
    return statistics.median(time_block(runner, Sizes(switch_warmup=0, steps=0), clock) for _ in range(101))


def switch_profiles(
    runners: Sequence[Runner], warm: Sequence[WarmUp], budget_s: float, clock: Clock = time.perf_counter_ns
) -> list[SwitchProfile]:
    """Watch step times after each switch of arms, and find where they reach their plateau.

    The arms take turns, each for about 60 ms, for as many rounds as the budget allows. Each turn's steps are divided
    by the median of its second half, and the median over the rounds is taken for each index. The plateau begins at the
    first index that lies, as the next one does, within 0.5 % of 1, or within the rounds' own scatter, if that is more;
    where that takes more than one step, half as many are added. Where five rounds take more than half as long again as
    the budget, the switch warm-up is one step, and none where a step takes more than a second.
    """
    lengths = [max(4, min(MOST_WATCHED, math.ceil(SWITCH_WATCH_S * 1e9 / max(1.0, arm.step_ns)))) for arm in warm]
    round_ns = sum(length * arm.step_ns for length, arm in zip(lengths, warm, strict=True))
    affordable = budget_s * 1e9 / max(1.0, round_ns)
    rounds = max(SWITCH_ROUNDS[0], min(SWITCH_ROUNDS[1], int(affordable)))
    if len(runners) < 2 or rounds > 1.5 * affordable:
        return [SwitchProfile(transient_pct=None, switch_warmup=1 if arm.step_ns < LONG_STEP_NS else 0) for arm in warm]
    turns: list[list[list[float]]] = [[] for _ in runners]
    for _ in range(rounds):
        for arm, runner in enumerate(runners):
            runner.activate()
            times = [single_step(runner, clock) for _ in range(lengths[arm])]
            plateau = statistics.median(times[len(times) // 2 :])
            turns[arm].append([step / plateau for step in times])
    return [_profile(turn) for turn in turns]


def _profile(turns: Sequence[Sequence[float]]) -> SwitchProfile:
    by_index = list(zip(*turns, strict=True))
    level = [abs(statistics.median(values) - 1) <= max(PLATEAU, _median_error(values)) for values in by_index]
    last = len(level) // 2
    plateau = next((index for index in range(last) if level[index] and level[index + 1]), last)
    # The tail of a transient, which noise hides, has half as long again to die away.
    transient_pct = 100 * (statistics.median(by_index[0]) - 1)
    return SwitchProfile(transient_pct=transient_pct, switch_warmup=math.ceil(1.5 * plateau) if plateau > 1 else 1)


def _median_error(values: Sequence[float]) -> float:
    """Return twice the standard error of a median, its spread estimated by the median absolute deviation."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 2 * 1.2533 * spread / math.sqrt(len(values))
