"""Figures of a training script's steps, from the events that the hook recorded in its process."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

NARROW = ("bfloat16", "float16")
"""The types of products that mixed precision is about."""
PRECISE = ("float32", "float64")
LOSSES = 0.03
"""Share by which first losses may differ by rounding."""
ALIKE = 0.01
"""Shares of types that differ by less are the same."""
LAST = 5
"""How many losses must not be finite: a new GradScaler skips up to four steps in a row."""
SLOWER = 0.05
"""Share by which the first steps are slower than the later ones where a script is still warming up."""
WINDOWS = 10
"""Steps are looked at in so many windows for that; the later half of them is taken to be steady."""
WARMING = "warm-up"
"""Why an iteration does not count that belongs to the warm-up."""
WAIT_PCT = 20.0
"""Share of a step, in per cent, from which waiting for data is warned of."""


class RefusedError(Exception):
    """A script, or what its options changed, that cannot be measured; the message says why.

    A process that failed has another ``kind`` of ending, and what it printed as ``log``.
    """

    def __init__(self, text: str, kind: str = "usage", log: str = "") -> None:
        super().__init__(text)
        self.kind, self.log = kind, log


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """One pass through a script's loop: the optimizer steps until their order repeats."""

    ms: float
    start_s: float
    """When it began, seconds since 1970."""
    skipped: int
    """Steps that a GradScaler skipped."""
    pause: str = ""
    """What rare event it holds, so that it does not count; empty if it counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The measured iterations of one process."""

    iterations: tuple[Iteration, ...]
    wait_pct: float | None
    """Share of the time in which the script waited for its DataLoader; None where it has none."""
    loss: float | None
    """Mean loss of an iteration, summed over accumulated parts."""
    shape: tuple[Any, ...]
    """What must be alike in all arms: the optimizers, and the backward passes in an iteration."""
    load_pct: float | None
    """Share of the cores that other programs took."""
    diverged: bool
    """Whether the loss is not finite at the end."""
    steady: bool = True
    """Whether step times had settled in the first half of the iterations."""

    @property
    def warming(self) -> int:
        """Iterations at the beginning in which the script was still warming up."""
        return sum(iteration.pause == WARMING for iteration in self.iterations)

    @property
    def counted_ms(self) -> list[float]:
        """The times of the iterations that count."""
        return [iteration.ms for iteration in self.iterations if not iteration.pause]

    @property
    def step_ms(self) -> float:
        """The mean of an iteration that counts: what comes in bursts, such as data, has its share in it."""
        return fmean(self.counted_ms)

    @property
    def skipped(self) -> int:
        """Skipped optimizer steps."""
        return sum(iteration.skipped for iteration in self.iterations)


def period(optimizers: Sequence[int]) -> int | None:
    """Return after how many optimizer steps the order of the optimizers repeats: a GAN 2 or 6; None if it does not.

    It is called repeating when it is seen three times.
    """
    lengths = range(1, len(optimizers) // 3 + 1)
    return next((length for length in lengths if optimizers[length:] == optimizers[:-length]), None)


def warm_up(times_ms: Sequence[float]) -> tuple[int, bool]:
    """Return how many times at the beginning are slower than what follows, half of them at most; and whether that ends.

    A window of them is slower if its median exceeds that of the later half by ``SLOWER``, and by more than the later
    half scatters. More warm-up than was asked for is seen only afterwards: the first windows may be alike.
    """
    later = times_ms[len(times_ms) // 2 :]
    usual = median(later)
    scatter = median([abs(time_ms - usual) for time_ms in later])
    limit = max((1 + SLOWER) * usual, usual + 3 * scatter)
    size = max(3, len(times_ms) // WINDOWS)
    for begin in range(0, len(times_ms) // 2 - size + 1, size):
        if median(times_ms[begin : begin + size]) <= limit:
            return begin, True
    slow = len(times_ms) // 2 // size * size
    return slow, slow == 0  # of few times nothing is known


def timing(record: Mapping[str, Any], warmup: int) -> Timing:
    """Return the measured iterations of one process.

    A mark (evaluation, a checkpoint, compilation, the start of an epoch) leaves its interval out, unless half of the
    intervals or more have it: then it is part of the step. So are left out those at the beginning that are slower than
    what follows.

    Args:
        record: from the hook.
        warmup: optimizer steps that are not measured.

    Raises:
        RefusedError: the process ended too early, or the order of its optimizers does not repeat.
    """
    steps = record["steps"][warmup - 1 :]
    if len(steps) < 4:
        raise RefusedError(
            f"the script ended after {len(record['steps'])} optimizer steps, before enough were measured: let it train "
            "longer, or lower --steps and --warmup"
        )
    length = period([step["optimizer"] for step in steps[1:]])
    if length is None:
        raise RefusedError("its optimizers take turns in no order that repeats within the measured steps")
    clock = "gpu_s" if all(step["gpu_s"] is not None for step in steps) else "s"
    parts = [steps[begin : begin + length + 1] for begin in range(0, len(steps) - length, length)]
    marks = [{mark for step in part[1:] for mark in step["marks"]} for part in parts]
    counts = Counter(itertools.chain.from_iterable(marks))
    rare = {mark for mark, count in counts.items() if 2 * count < len(parts)}
    iterations = []
    backwards = Counter[tuple[int, ...]]()
    waits, losses, host_s = list[float](), list[float](), 0.0
    for (before, *part), held in zip(parts, marks, strict=True):
        iteration = Iteration(
            ms=1e3 * (part[-1][clock] - before[clock]),
            start_s=record["start_s"] + before["s"],
            skipped=sum(step["skipped"] for step in part),
            pause=", ".join(sorted(held & rare)),
        )
        iterations.append(iteration)
        known = [step["loss"] for step in part if step["loss"] is not None]
        if known:
            losses.append(sum(known))
        if not iteration.pause:
            backwards[tuple(step["backwards"] for step in part)] += 1
            waits += [step["data_s"] for step in part if step["data_s"] is not None]
            host_s += part[-1]["s"] - before["s"]
    if not backwards:
        raise RefusedError("each measured step has a pause in it, such as evaluation or the start of an epoch")
    counted = [place for place, iteration in enumerate(iterations) if not iteration.pause]
    warming, is_steady = warm_up([iterations[place].ms for place in counted])
    for place in counted[:warming]:
        iterations[place] = replace(iterations[place], pause=WARMING)
    return Timing(
        iterations=tuple(iterations),
        steady=is_steady,
        wait_pct=min(100.0, 100 * sum(waits) / host_s) if waits else None,
        loss=fmean(losses) if losses else None,
        shape=(tuple(record["optimizers"]), backwards.most_common(1)[0][0]),
        load_pct=record["load_pct"],
        diverged=has_diverged(record["steps"]),
    )


def has_diverged(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last losses are all NaN or infinite: a GradScaler skips some steps with such a loss."""
    losses = [step["loss"] for step in steps if step["loss"] is not None]
    return bool(losses) and not any(math.isfinite(loss) for loss in losses[-LAST:])


def order(arms: Sequence[str], turn: int) -> list[str]:
    """Return the arms of a round in an order that cancels drift: ABBA, in each other round BAAB."""
    there = list(arms if turn % 2 == 0 else reversed(arms))
    return there + there[::-1]


def shares(computed: Mapping[str, int]) -> dict[str, float]:
    """Return the share of each type among a step's products, the largest first."""
    total = sum(computed.values())
    return {kind: count / total for kind, count in Counter(computed).most_common()}


def products(computed: Mapping[str, int]) -> str:
    """Say how many products were computed in each type, such as "24 of 25 products in bfloat16"."""
    total = sum(computed.values())
    parts = [f"{count} of {total} products in {kind}" for kind, count in Counter(computed).most_common()]
    return ", ".join(parts) or "no products seen"


def compared(record: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Return warnings of an arm whose options changed what is computed, from the profiled processes.

    Raises:
        RefusedError: the arms train in different ways, or computed the same.
    """
    if record["optimizers"] != reference["optimizers"]:
        here, there = (", ".join(each["optimizers"]) for each in (record, reference))
        raise RefusedError(f"its optimizers are {here}, the reference's {there}: another training")
    computed, before = shares(record["computed"]), shares(reference["computed"])
    if all(abs(computed.get(kind, 0.0) - before.get(kind, 0.0)) < ALIKE for kind in {*computed, *before}):
        raise RefusedError(
            f"these options changed nothing that was computed: {products(record['computed'])}, as before"
        )
    warnings = []
    first, first_before = (each["steps"][0]["loss"] for each in (record, reference))
    if None not in (first, first_before) and not math.isclose(first, first_before, rel_tol=LOSSES, abs_tol=1e-6):
        warnings.append(f"first losses are {first:.4g} and {first_before:.4g}, further apart than by rounding")
    left = sum(computed.get(kind, 0.0) for kind in PRECISE)
    if 0 < left < 1:
        warnings.append(f"products left in fp32: {100 * left:.0f} %")
    return warnings
