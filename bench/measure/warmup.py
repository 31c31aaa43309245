"""Before timing: warm up to a steady state, and choose how blocks are cut."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure.rounds import Clock, Runner, Sizes, time_block
from bench.spec.trial import KnownArm

WARM_UP_SHARE = 0.5
"""Share of the time budget that warm-up may take in addition."""
SWITCH_SHARE = 0.1
"""Share that watching switches may take in addition; half as much again, for the fewest rounds."""
SWITCH_ROUNDS = (5, 24)
"""Fewest and most rounds of switches to watch; where the fewest take too long, none is watched."""
MIN_STEPS = 3
LEAST_STEPS = 12
"""Fewest steps of a warm-up, unless they are so long that these would take more than half of what it may."""
WINDOW_AGREEMENT = 0.01
"""Warm-up ends when the medians of two windows of steps agree within this, or within their errors if those are
larger."""
EXPECTED_AGREEMENT = 0.05
"""It ends after its first window where that agrees within this with an earlier process, or within its error."""
PLATEAU = 0.005
"""A step after a switch is on the plateau when it comes within this of it."""
SHORTEST_BLOCK_S = 0.005
"""Shorter blocks are measured in scheduler ticks (4 ms on many systems) rather than in steps."""
CLOCK_SHARE = 0.001
"""A block is long enough for the clock when an empty block takes no more than this share of it."""
LONGER = 4
"""A long block has so many times the steps of a short one."""
LENGTH_PAIRS = (6, 30)
"""Fewest and most pairs of a short and a long block; more than the fewest only where these scatter."""
LENGTH_SHARE = 0.5
"""Share of the time budget that comparing an arm's block lengths may take in addition."""
LENGTH_AGREEMENT = 0.002
"""A block is long enough for the launch queue when four times its length changes time per step by no more."""
WINDOW_S = 0.2
LONG_STEP_NS = 1e9
"""In a step that takes longer, the transient of a switch is lost."""
SWITCH_WATCH_S = 0.06
SAME_STEP = 0.4
"""Blocks are cut anew where an arm's step differs from the first process's by more than this, as a logarithm."""
LONGEST_BLOCK_S = 0.5
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
    """Step times after a switch to this arm, by their index and relative to the plateau."""

    relative: tuple[float, ...]
    """Median over the switches, for each index; empty where there was no time to watch."""
    switch_warmup: int
    """Steps until the plateau."""

    @property
    def transient_pct(self) -> float | None:
        """The first step's excess over the plateau, in per cent."""
        return 100 * (self.relative[0] - 1) if self.relative else None


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
    known: Sequence[KnownArm] = (),
) -> list[Cut]:
    """Warm the arms up, watch the cost of switching between them, and cut their blocks.

    Takes up to 1.15 of the arms' time budget, in addition to it; ``say`` is called with the stage. Where an earlier
    process has cut the blocks of all arms (``known``), and no step takes another time than there, they are cut alike.
    """
    empty_ns = empty_block_ns(runners[0], clock)
    by_name = {arm.name: arm for arm in known}
    earlier = [by_name.get(runner.name) for runner in runners]
    warm = []
    for runner, arm in zip(runners, earlier, strict=True):
        say(f"{runner.name}: warming up")
        warm.append(warm_up(runner, WARM_UP_SHARE * budget_s, clock, expected_ms=arm.step_ms if arm else 0.0))
    alike = [
        arm
        for hot, arm in zip(warm, earlier, strict=True)
        if arm and abs(math.log(hot.step_ns / 1e6 / arm.step_ms)) <= SAME_STEP
    ]
    if len(alike) == len(runners):
        profiles = [SwitchProfile(relative=(), switch_warmup=arm.switch_warmup) for arm in alike]
        steps = [arm.steps for arm in alike]
    else:
        say("watching what a switch of precisions costs")
        profiles = switch_profiles(runners, warm, SWITCH_SHARE * budget_s * len(runners), clock)
        steps = [
            block_steps(runner, hot, profile.switch_warmup, empty_ns, clock, cap_s=LENGTH_SHARE * budget_s)
            for runner, hot, profile in zip(runners, warm, profiles, strict=True)
        ]
    steps = _as_long(runners, warm, steps)
    sizes = [Sizes(profile.switch_warmup, length) for profile, length in zip(profiles, steps, strict=True)]
    return [Cut(*parts, empty_ns) for parts in zip(warm, profiles, sizes, strict=True)]


def _as_long(runners: Sequence[Runner], warm: Sequence[WarmUp], steps: Sequence[int]) -> list[int]:
    """Lengthen the blocks of arms that are queued to the time of the longest arm's blocks; return their steps.

    The steps of an arm that waits for the host to launch kernels scatter so much that its own search finds no excess of
    short blocks. In equally long ones that excess, and the scatter, are no larger than the longest arm's.
    """
    longest_ns = max(length * arm.step_ns for length, arm in zip(steps, warm, strict=True))
    return [
        max(length, round(longest_ns / max(1.0, arm.step_ns))) if runner.asynchronous else length
        for runner, arm, length in zip(runners, warm, steps, strict=True)
    ]


def single_step(runner: Runner, clock: Clock) -> int:
    """Return the nanoseconds of one synchronised step."""
    start = clock()
    runner.run(1)
    runner.synchronize()
    return clock() - start


def warm_up(runner: Runner, cap_s: float, clock: Clock = time.perf_counter_ns, *, expected_ms: float = 0.0) -> WarmUp:
    """Run at least three steps, then windows of steps until two agree and nothing new was allocated or compiled.

    ``cap_s`` seconds after the first three steps it gives up, and the arm counts as not steady. ``expected_ms`` is the
    time of a step in an earlier process, which a first window may agree with; 0 if unknown.
    """
    runner.activate()
    now: float = [single_step(runner, clock) for _ in range(MIN_STEPS)][-1]
    begin = clock()  # in the first steps cuDNN loads and tries its kernels, for seconds
    limit = begin + int(cap_s * 1e9)
    before, error, steps, window = 0.0, 0.0, MIN_STEPS, 0
    expected_ns = 1e6 * expected_ms
    while True:
        # Sized anew each time: the first steps may be hundreds of times as slow as the rest.
        last, window = window, max(1, min(25, math.ceil(WINDOW_S * 1e9 / max(1.0, now))))
        fingerprint = runner.fingerprint()
        times = [single_step(runner, clock) for _ in range(window)]
        now, previous_error = statistics.median(times), error
        error = _median_error([time_ns / max(1.0, now) for time_ns in times])
        steps += window
        enough = steps >= LEAST_STEPS or clock() - begin > cap_s * 1e9 / 2
        if expected_ns:
            agree = abs(now / expected_ns - 1) <= max(EXPECTED_AGREEMENT, error)
        else:
            tolerance = max(WINDOW_AGREEMENT, math.hypot(error, previous_error))
            alike = 0.5 <= last / window <= 2  # else the first was sized by a step far from the steady state
            agree = alike and enough and abs(now / before - 1) <= tolerance
        if (agree and runner.fingerprint() == fingerprint) or clock() > limit:
            return WarmUp(steady=clock() <= limit, steps=steps, step_ns=now)
        before, expected_ns = now, 0.0


def empty_block_ns(runner: Runner, clock: Clock = time.perf_counter_ns, times: int = 101) -> float:
    """Return the median time of a block without steps: the cost of the clock and the synchronisation."""
    runner.synchronize()
    return statistics.median(time_block(runner, Sizes(switch_warmup=0, steps=0), clock) for _ in range(times))


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
    medians = zip(relative, by_index, strict=True)
    level = [abs(middle - 1) <= max(PLATEAU, _median_error(values)) for middle, values in medians]
    last = len(relative) // 2
    plateau = next((index for index in range(last) if level[index] and level[index + 1]), last)
    # The tail of a transient, which noise hides, has half as long again to die away.
    return SwitchProfile(relative=relative, switch_warmup=math.ceil(1.5 * plateau) if plateau > 1 else 1)


def _median_error(values: Sequence[float]) -> float:
    """Return twice the standard error of a median, its spread estimated by the median absolute deviation."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 2 * 1.2533 * spread / math.sqrt(len(values))


def block_steps(
    runner: Runner,
    warm: WarmUp,
    switch_warmup: int,
    empty_ns: float,
    clock: Clock = time.perf_counter_ns,
    *,
    cap_s: float = math.inf,
) -> int:
    """Return a number of timed steps that clock, scheduler and launch queue do not distort.

    Blocks are compared with those of four times the length. What a block takes beyond its steps is spread over more
    of them in a longer one, so the excess of short blocks says how long they must be. That length is compared in turn,
    as long as the fewest pairs fit into what is left of ``cap_s`` seconds. Where not even the first do, a block takes
    half a second.
    """
    shortest_ns = max(SHORTEST_BLOCK_S * 1e9, empty_ns / CLOCK_SHARE)
    steps = max(1, math.ceil(shortest_ns / max(1.0, warm.step_ns)))
    if not runner.asynchronous:
        return steps
    begin, longest = clock(), max(steps, math.ceil(LONGEST_BLOCK_S * 1e9 / max(1.0, warm.step_ns)))

    def is_affordable(length: int) -> bool:
        pairs_ns = LENGTH_PAIRS[0] * (2 * switch_warmup + (1 + LONGER) * length) * warm.step_ns
        return clock() - begin + pairs_ns <= cap_s * 1e9

    if not is_affordable(steps):
        return longest
    while steps < longest:
        short, long = (Sizes(switch_warmup=switch_warmup, steps=length) for length in (steps, LONGER * steps))
        ratios: list[float] = []
        while len(ratios) < LENGTH_PAIRS[0] or (
            _median_error(ratios) > LENGTH_AGREEMENT and len(ratios) < LENGTH_PAIRS[1] and clock() - begin < cap_s * 1e9
        ):
            # Short and long go first in turn, and as often, so that drift cancels.
            for order in ((long, short), (short, long)):
                times = {sizes.steps: time_block(runner, sizes, clock) for sizes in order}
                ratios.append(LONGER * times[steps] / times[LONGER * steps])
        excess = abs(statistics.median(ratios) - 1)
        if excess <= max(LENGTH_AGREEMENT, _median_error(ratios)):
            break
        steps = min(longest, math.ceil(steps * max(2.0, excess / LENGTH_AGREEMENT)))
        if not is_affordable(steps):
            break
    return steps
