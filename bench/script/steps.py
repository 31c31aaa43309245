"""Figures of a training script's steps, from the events that the hook recorded in its process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

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
# Why an iteration does not count that has fewer of them than those at the end.
GROWING = "fewer backward passes"
# Fewest steps that show one iteration: the order of its optimizers must repeat three times.
FEWEST = 4


class RefusedError(Exception):
    """A script, or what its options changed, that cannot be measured; the message says why.

    A process that failed has another ``kind`` of ending, and what it printed as ``log``.
    """

    def __init__(self, text: str, kind: str = "usage", log: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.log = log


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The measured iterations of one process."""

    blocks: tuple[Block, ...]
    """Each iteration, the optimizer steps until their order repeats; the launcher fills in the
    trial and the arm."""
    step_ms: float
    """The mean of an iteration that counts: what comes in bursts, such as data, has its share in
    it."""
    warming: int
    """Iterations at the beginning in which the script was still warming up, or accumulated fewer
    gradients."""
    steady: bool
    """Whether step times had settled in the first half of the iterations."""
    wait_pct: float | None
    """Share of the time in which the script waited for its DataLoader; None where it has none."""
    loss: float | None
    """Mean loss of a step, summed over accumulated parts; of those that are finite."""
    shape: tuple[Any, ...]
    """What must be alike in all arms: the optimizers, and the backward passes in an iteration."""
    grew: tuple[int, ...]
    """The least and the most backward passes of an iteration where these grew while it was timed;
    else empty."""
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
    """Return how many times at the beginning are slower than what follows, half of them at most; and whether that ends.

    A window of them is slower if its median exceeds that of the later half by ``SLOWER``, and by
    more than the later half scatters. More warm-up than was asked for is seen only afterwards: the
    first windows may be alike.
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


def growth(passes: Sequence[tuple[int, ...]]) -> int:
    """Return how many iterations at the beginning have fewer backward passes than most of the last quarter.

    Some scripts accumulate more and more gradients while the learning rate warms up. A single
    iteration with fewer passes is the rest of an epoch.
    """
    final = Counter(passes[-(len(passes) // 4 + 1) :]).most_common(1)[0][0]
    begin = passes.index(final)
    is_growing = begin > 1 and max(map(sum, passes[:begin])) < sum(final)
    return begin if is_growing else 0


def timing(record: Mapping[str, Any], warmup: int) -> Timing:
    """Return the measured iterations of one process.

    A mark (evaluation, a checkpoint, compilation, the start of an epoch) leaves its iteration out,
    unless half of them or more have it: then it is part of the step. So are left out those at the
    beginning that are slower than what follows, or have fewer backward passes.

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
    length = period([step["optimizer"] for step in steps[1:]])
    parts = [steps[begin : begin + length + 1] for begin in range(0, len(steps) - length, length)]
    discarded = rare_marks(parts)
    counted = [place for place, pause in enumerate(discarded) if not pause]
    if not counted:
        raise RefusedError(
            "each measured step has a pause in it, such as evaluation or the start of an epoch"
        )
    passes: list[tuple[int, ...]] = []
    for place in counted:
        passes.append(tuple(step["backwards"] for step in parts[place][1:]))
    growing = growth(passes)
    clock = "gpu_s" if all(step["gpu_s"] is not None for step in steps) else "s"
    times_ms = [1e3 * (part[-1][clock] - part[0][clock]) for part in parts]
    warming, steady = warm_up([times_ms[place] for place in counted[growing:]])
    for number, place in enumerate(counted[: growing + warming]):
        discarded[place] = GROWING if number < growing else WARMING
    blocks: list[Block] = []
    timed_ms: list[float] = []
    waits: list[float] = []
    for (before, *part), time_ms, why in zip(parts, times_ms, discarded, strict=True):
        if not why:
            timed_ms.append(time_ms)
            waits += [step["data_s"] for step in part if step["data_s"] is not None]
        block = Block(
            trial="",
            precision="",
            round=0,
            position=0,
            steps=1,
            time_ms=time_ms,
            start_s=record["start_s"] + before["s"],
            skipped_steps=sum(step["skipped"] for step in part),
            discarded=why,
        )
        blocks.append(block)
    losses = [
        loss for loss in losses_of(steps) if math.isfinite(loss)
    ]  # not those of steps that a GradScaler skips
    return Timing(
        blocks=tuple(blocks),
        step_ms=fmean(timed_ms),
        warming=growing + warming,
        steady=steady and 2 * growing <= len(counted),
        wait_pct=min(100.0, 100e3 * sum(waits) / sum(timed_ms)) if waits else None,
        loss=fmean(losses) if losses else None,
        shape=(record["optimizers"], Counter(passes[growing:]).most_common(1)[0][0]),
        grew=(sum(passes[0]), sum(passes[growing])) if growing else (),
        diverged=has_diverged(record["steps"]),
    )


def rare_marks(parts: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the marks of each iteration that fewer than half of them have, in words; the first step is not of it."""
    held = []
    for part in parts:
        held.append({mark for step in part[1:] for mark in step["marks"]})
    counts = Counter(mark for marks in held for mark in marks)
    rare = {mark for mark, count in counts.items() if 2 * count < len(parts)}
    return [", ".join(sorted(marks & rare)) for marks in held]


def losses_of(steps: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the losses of the steps that have one."""
    return [step["loss"] for step in steps if step["loss"] is not None]


def has_diverged(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last losses are all NaN or infinite: a GradScaler skips some steps with such a loss."""
    losses = losses_of(steps)
    return bool(losses) and not any(map(math.isfinite, losses[-LAST:]))


def order(arms: Sequence[str], turn: int) -> list[str]:
    """Return the arms of a round in an order that cancels drift: ABBA, in each other round BAAB."""
    there = list(arms if turn % 2 == 0 else reversed(arms))
    return there + there[::-1]


def types(computed: Mapping[str, int]) -> str:
    """Return the share of each type among a step's products, the largest first: ``bfloat16:96% float32:4%``."""
    total = sum(computed.values())
    parts = []
    for kind, count in Counter(computed).most_common():
        if share := round(100 * count / total):
            parts.append(f"{kind}:{share}%")
    return " ".join(parts)


def compared(record: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Return warnings of an arm whose options changed what is computed, from the profiled processes.

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
            f"these options changed nothing that was computed: {computed or 'no products'}, as "
            "before"
        )
    loss = record["steps"][0]["loss"]
    loss_before = reference["steps"][0]["loss"]
    if None not in (loss, loss_before) and not math.isclose(
        loss, loss_before, rel_tol=LOSSES, abs_tol=1e-6
    ):
        return [
            f"first losses are {loss:.4g} and {loss_before:.4g}, further apart than by rounding"
        ]
    return []
