"""Before timing: warm up to a steady state, and choose how blocks are cut."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure.rounds import Clock, Runner, Sizes, time_block

WARM_UP_SHARE = 0.5
SWITCH_SHARE = 0.2
"""Shares of the time budget that warm-up and the watching of switches may take beside it."""
MIN_STEPS = 3
LEAST_STEPS = 12
"""Unless the steps are so long that these would take more than half of what warm-up may."""
WINDOW_AGREEMENT = 0.01
"""Warm-up ends when the medians of two consecutive windows of steps agree within this."""
PLATEAU = 0.005
"""A step after a switch is on the plateau when it comes within this of it."""
SHORTEST_BLOCK_S = 0.005
"""Shorter blocks are measured in scheduler ticks (4 ms on many systems) rather than in steps."""
CLOCK_SHARE = 0.001
"""A block is long enough for the clock when an empty block takes no more than this share of it."""
LENGTH_PAIRS = (6, 30)
"""Fewest and most pairs of a short and a long block; more than the fewest only where these scatter."""
LENGTH_AGREEMENT = 0.002
"""A block is long enough for the launch queue when four times its length changes time per step by no more."""
WINDOW_S = 0.2
LONG_STEP_NS = 1e9
"""In a step that takes longer, the transient of a switch is lost."""
SWITCH_WATCH_S = 0.06
LONGEST_BLOCK_S = 0.5
MOST_WATCHED = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """How an arm warmed up."""

    steady: bool
    steps: int
    step_ns: float
    """Median time of a step in the last window, each one synchronised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchProfile:
    """Step times against their index after a switch to this arm, relative to the plateau."""

    relative: tuple[float, ...]
    """Median over the switches, for each index; empty where there was no time to watch."""
    switch_warmup: int
    """Steps until the plateau."""

    @property
    def transient_pct(self) -> float | None:
        """How far the first step lies above the plateau, in per cent."""
        return 100 * (self.relative[0] - 1) if self.relative else None


@dataclass(frozen=True, kw_only=True, slots=True)
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
    """Warm the arms up, watch what switching between them costs, and cut their blocks.

    Takes up to 0.7 of the arms' time budget, beside it; ``say`` is called with what is being done.
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
        steps = block_steps(runner, hot, profile.switch_warmup, empty_ns, clock)
        sizes = Sizes(switch_warmup=profile.switch_warmup, steps=steps)
        cuts.append(Cut(warm=hot, profile=profile, sizes=sizes, empty_ns=empty_ns))
    return cuts


def single_step(runner: Runner, clock: Clock) -> int:
    """Return the nanoseconds of one synchronised step."""
    start = clock()
    runner.run(1)
    runner.synchronize()
    return clock() - start


def warm_up(runner: Runner, cap_s: float, clock: Clock = time.perf_counter_ns) -> WarmUp:
    """Run at least three steps, then windows of steps until two agree and nothing new was allocated or compiled.

    After ``cap_s`` seconds give up; the arm then counts as not steady.
    """
    runner.activate()
    begin = clock()
    limit = begin + int(cap_s * 1e9)
    now: float = [single_step(runner, clock) for _ in range(MIN_STEPS)][-1]
    steps, before, window = MIN_STEPS, 0.0, 0
    while True:
        # Sized anew each time: the first steps may be hundreds of times as slow as the rest.
        last, window = window, max(1, min(25, math.ceil(WINDOW_S * 1e9 / max(1.0, now))))
        fingerprint = runner.fingerprint()
        now = statistics.median(single_step(runner, clock) for _ in range(window))
        steps += window
        agree = last == window and abs(now / before - 1) <= WINDOW_AGREEMENT
        enough = steps >= LEAST_STEPS or clock() - begin > cap_s * 1e9 / 2
        if (agree and enough and runner.fingerprint() == fingerprint) or clock() > limit:
            return WarmUp(steady=clock() <= limit, steps=steps, step_ns=now)
        before = now


def empty_block_ns(runner: Runner, clock: Clock = time.perf_counter_ns, times: int = 101) -> float:
    """Return the median time of a block without steps: what the clock and the synchronisation cost."""
    runner.synchronize()
    return statistics.median(time_block(runner, Sizes(switch_warmup=0, steps=0), clock) for _ in range(times))


def switch_profiles(
    runners: Sequence[Runner], warm: Sequence[WarmUp], budget_s: float, clock: Clock = time.perf_counter_ns
) -> list[SwitchProfile]:
    """Watch step times after each switch of arms, and find where they reach their plateau.

    The arms take turns, each for about 60 ms, for as many rounds as the budget allows. Each turn's steps are divided
    by the median of its second half, and the median over the rounds is taken for each index. The plateau begins at the
    first index that lies, as the next one does, within 0.5 % of 1, or within the rounds' own scatter, if that is more;
    where that takes more than one step, half as many are added. Where fewer than five rounds fit, the switch warm-up
    is one step, and none where a step takes more than a second.
    """
    lengths = [max(4, min(MOST_WATCHED, math.ceil(SWITCH_WATCH_S * 1e9 / max(1.0, arm.step_ns)))) for arm in warm]
    round_ns = sum(length * arm.step_ns for length, arm in zip(lengths, warm, strict=True))
    rounds = min(24, int(budget_s * 1e9 / max(1.0, round_ns)))
    if len(runners) < 2 or rounds < 5:
        return [SwitchProfile(relative=(), switch_warmup=1 if arm.step_ns < LONG_STEP_NS else 0) for arm in warm]
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
    relative = tuple(statistics.median(values) for values in by_index)
    level = [
        abs(middle - 1) <= max(PLATEAU, _median_error(values))
        for middle, values in zip(relative, by_index, strict=True)
    ]
    last = len(relative) // 2
    plateau = next((index for index in range(last) if level[index] and level[index + 1]), last)
    # What noise hides of a transient's tail is given half as long again to die away.
    return SwitchProfile(relative=relative, switch_warmup=math.ceil(1.5 * plateau) if plateau > 1 else 1)


def _median_error(values: Sequence[float]) -> float:
    """Return twice the standard error of a median, its spread estimated by the median absolute deviation."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 2 * 1.2533 * spread / math.sqrt(len(values))


def block_steps(
    runner: Runner, warm: WarmUp, switch_warmup: int, empty_ns: float, clock: Clock = time.perf_counter_ns
) -> int:
    """Return the smallest number of timed steps that clock, scheduler and launch queue do not distort."""
    shortest_ns = max(SHORTEST_BLOCK_S * 1e9, empty_ns / CLOCK_SHARE)
    steps = max(1, math.ceil(shortest_ns / max(1.0, warm.step_ns)))
    if not runner.asynchronous:
        return steps
    while steps * warm.step_ns < LONGEST_BLOCK_S * 1e9:
        short, long = (Sizes(switch_warmup=switch_warmup, steps=length) for length in (steps, 4 * steps))
        ratios: list[float] = []
        while len(ratios) < LENGTH_PAIRS[0] or (
            _median_error(ratios) > LENGTH_AGREEMENT and len(ratios) < LENGTH_PAIRS[1]
        ):
            # Short and long go first in turn, and as often, so that drift cancels.
            for order in ((long, short), (short, long)):
                times = {sizes.steps: time_block(runner, sizes, clock) for sizes in order}
                ratios.append(4 * times[steps] / times[4 * steps])
        if abs(statistics.median(ratios) - 1) <= max(LENGTH_AGREEMENT, _median_error(ratios)):
            break
        steps *= 2
    return steps
