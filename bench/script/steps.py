"""Figures of a training script's steps, from the events that the hook recorded in its process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, mode
from typing import Any

from bench.results.endings import EndingKind
from bench.results.records import Block

# The types of products that mixed precision is about.
NARROW = ("bfloat16", "float16")
# Share by which first losses may differ by rounding.
LOSSES = 0.03
# How many losses must not be finite: a new GradScaler skips up to four steps in a row.
LAST = 5
# Share by which the first steps are slower than the later ones where a script is still warming up.
SLOWER = 0.05
# Steps are looked at in so many windows for that; the later half of them is taken to be steady.
WINDOWS = 10
# Why an iteration does not count that belongs to the warm-up.
WARMING = "warm-up"
# Why an iteration does not count whose time is not comparable with those at the end.
UNUSUAL = "other backward passes"
# Fewest steps that show one iteration: the order of its optimizers must repeat three times.
FEWEST = 4

# What the hook noted of an optimizer step.
Step = Mapping[str, Any]


class RefusedError(Exception):
    """A script, or what its options changed, that cannot be measured; the message says why.

    A process that failed has another ``kind`` of ending, and what it printed as ``log``.
    """

    def __init__(self, text: str, kind: EndingKind = "usage", log: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.log = log


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The measured iterations of one process."""

    blocks: tuple[Block, ...]
    """Each iteration, the optimizer steps until their order repeats; the launcher fills in the
    trial and the arm."""
    steps: int
    """Optimizer steps after those that are not measured."""
    step_ms: float
    """The mean of an iteration that counts: what comes in bursts, such as data, has its share in
    it."""
    warming: int
    """Iterations at the beginning that do not count because the script was still warming up."""
    steady: bool
    """Whether step times had settled in the first half of the iterations."""
    wait_pct: float | None
    """Share of the time in which the script waited for its DataLoader; None where it has none."""
    loss: float | None
    """Mean loss of a step, summed over accumulated parts; of those that are finite."""
    shape: tuple[Any, ...]
    """What must be alike in all arms: the optimizers, and the backward passes in an iteration."""
    diverged: bool
    """Whether the loss is not finite at the end."""


def period(optimizers: Sequence[int]) -> int:
    """Return after how many optimizer steps the order of the optimizers repeats: a GAN 2 or 6.

    Raises:
        RefusedError: it does not, or not three times, so that it could be chance.
    """
    for length in range(1, len(optimizers) // 3 + 1):
        if optimizers[length:] == optimizers[:-length]:
            return length
    raise RefusedError(
        "its optimizers take turns in no order that repeats within the measured steps"
    )


def warm_up(times_ms: Sequence[float]) -> tuple[int, bool]:
    """Return how many times at the beginning are slower than what follows; and whether that ends.

    They are half of all at most. A window of them is slower if its median exceeds that of the later
    half by ``SLOWER``, and by more than the later half scatters. More warm-up than was asked for is
    seen only afterwards: the first windows may be alike.
    """
    half = len(times_ms) // 2
    usual = median(times_ms[half:])
    scatter = median([abs(time_ms - usual) for time_ms in times_ms[half:]])
    limit = usual + max(SLOWER * usual, 3 * scatter)
    size = max(3, len(times_ms) // WINDOWS)
    begin = 0
    while begin + size <= half:
        if median(times_ms[begin : begin + size]) <= limit:
            return begin, True
        begin += size
    return begin, begin == 0  # of few times nothing is known


def timing(record: Mapping[str, Any], warmup: int) -> Timing:
    """Return the measured iterations of one process.

    A mark (evaluation, a checkpoint, compilation, the start of an epoch) leaves its iteration out,
    unless half of them or more have it: then it is part of the step. So are left out those with
    another number of backward passes than is usual at the end (some scripts accumulate more and
    more gradients; an epoch may end with fewer), and those at the beginning that are slower than
    what follows.

    Args:
        record: from the hook.
        warmup: optimizer steps that are not measured.

    Raises:
        RefusedError: the process ended too early, or the order of its optimizers does not repeat.
    """
    steps = record["steps"][warmup - 1 :]
    if len(steps) < FEWEST:
        raise RefusedError(
            f"the script ended after {len(record['steps'])} optimizer steps, before enough were "
            "measured: let it train longer, or lower --steps and --warmup"
        )
    iterations = _iterations(steps)
    _discard_rare_marks(iterations)
    unmarked = [iteration for iteration in iterations if not iteration.discarded]
    if not unmarked:
        raise RefusedError(
            "each measured step has a pause in it, such as evaluation or the start of an epoch"
        )
    # The last quarter: a script that accumulates more and more gradients has ceased to by then.
    late = unmarked[-(len(unmarked) // 4 + 1) :]
    usual = mode([iteration.passes for iteration in late])
    counted = []
    for iteration in unmarked:
        if iteration.passes == usual:
            counted.append(iteration)
        else:
            iteration.discarded = UNUSUAL
    warming, settles = warm_up([iteration.time_ms for iteration in counted])
    for iteration in counted[:warming]:
        iteration.discarded = WARMING
    timed = counted[warming:]
    step_ms = fmean([iteration.time_ms for iteration in timed])
    # A step that a GradScaler skips may have a loss that is not finite.
    losses = list(filter(math.isfinite, losses_of(steps)))
    return Timing(
        blocks=tuple(iteration.block(record["start_s"]) for iteration in iterations),
        steps=len(steps) - 1,
        step_ms=step_ms,
        warming=warming,
        steady=settles and 2 * len(counted) >= len(unmarked),
        wait_pct=_wait_pct(timed, len(timed) * step_ms),
        loss=fmean(losses) if losses else None,
        shape=(record["optimizers"], usual),
        diverged=has_diverged(record["steps"]),
    )


@dataclass(kw_only=True, slots=True)
class _Iteration:
    """The optimizer steps of one iteration."""

    steps: Sequence[Step]
    start_s: float
    """When the step before it ended, on the host's clock."""
    time_ms: float
    discarded: str = ""
    """Why it does not count; empty if it does."""

    @property
    def passes(self) -> tuple[int, ...]:
        """The backward passes before each of its steps."""
        return tuple(step["backwards"] for step in self.steps)

    @property
    def marks(self) -> set[str]:
        """What happened in it that does not belong to each step."""
        marks = set[str]()
        for step in self.steps:
            marks.update(step["marks"])
        return marks

    def block(self, start_s: float) -> Block:
        """Return it as a block; ``start_s`` is the start of the host's clock."""
        return Block(
            trial="",
            precision="",
            round=0,
            position=0,
            steps=1,
            time_ms=self.time_ms,
            start_s=start_s + self.start_s,
            skipped_steps=sum(step["skipped"] for step in self.steps),
            discarded=self.discarded,
        )


def _iterations(steps: Sequence[Step]) -> list[_Iteration]:
    """Return the iterations after the first step, whose end is the start of the first of them."""
    length = period([step["optimizer"] for step in steps[1:]])
    clock = "gpu_s"
    if any(step["gpu_s"] is None for step in steps):
        clock = "s"
    iterations = []
    for begin in range(0, len(steps) - length, length):
        before, last = steps[begin], steps[begin + length]
        iteration = _Iteration(
            steps=steps[begin + 1 : begin + length + 1],
            start_s=before["s"],
            time_ms=1e3 * (last[clock] - before[clock]),
        )
        iterations.append(iteration)
    return iterations


def _discard_rare_marks(iterations: Sequence[_Iteration]) -> None:
    """Discard the iterations with a mark that fewer than half of them have."""
    counts = Counter[str]()
    for iteration in iterations:
        counts.update(iteration.marks)
    rare = {mark for mark, count in counts.items() if 2 * count < len(iterations)}
    for iteration in iterations:
        iteration.discarded = ", ".join(sorted(iteration.marks & rare))


def _wait_pct(iterations: Sequence[_Iteration], took_ms: float) -> float | None:
    """Return the share of a time that was spent waiting for data; None without a DataLoader."""
    waits_s = []
    for iteration in iterations:
        for step in iteration.steps:
            if step["data_s"] is not None:
                waits_s.append(step["data_s"])
    if not waits_s:
        return None
    return min(100.0, 100e3 * sum(waits_s) / took_ms)


def losses_of(steps: Sequence[Step]) -> list[float]:
    """Return the losses of the steps that have one."""
    return [step["loss"] for step in steps if step["loss"] is not None]


def has_diverged(steps: Sequence[Step]) -> bool:
    """Return whether all of the last losses are NaN or infinite.

    A GradScaler skips some steps with such a loss, after which finite ones follow.
    """
    losses = losses_of(steps)
    return bool(losses) and not any(map(math.isfinite, losses[-LAST:]))


def order(arms: Sequence[str], turn: int) -> list[str]:
    """Return the arms of a round in an order that cancels drift: ABBA, in each other round BAAB."""
    there = list(arms) if turn % 2 == 0 else list(reversed(arms))
    return there + there[::-1]


def types(computed: Mapping[str, int]) -> str:
    """Return each type's share of a step's products, largest first: ``bfloat16:96% float32:4%``."""
    total = sum(computed.values())
    parts = []
    for kind, count in Counter(computed).most_common():
        share_pct = round(100 * count / total)
        if share_pct:
            parts.append(f"{kind}:{share_pct}%")
    return " ".join(parts)


def compared(record: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Return warnings of an arm that computes otherwise than the reference.

    Both are records of profiled processes.

    Raises:
        RefusedError: the arms train in different ways, or computed the same.
    """
    if record["optimizers"] != reference["optimizers"]:
        here = ", ".join(record["optimizers"])
        there = ", ".join(reference["optimizers"])
        raise RefusedError(f"its optimizers are {here}, the reference's {there}: another training")
    computed = types(record["computed"])
    if computed == types(reference["computed"]):
        raise RefusedError(
            f"it computed what the reference did ({computed or 'no products'}): its options "
            "change nothing, or it calls no torch module, around which ampmeter puts autocast"
        )
    losses = losses_of([record["steps"][0], reference["steps"][0]])
    if len(losses) < 2 or math.isclose(*losses, rel_tol=LOSSES, abs_tol=1e-6):
        return []
    return [f"first losses are {losses[0]:.4g} and {losses[1]:.4g}, further apart than by rounding"]
