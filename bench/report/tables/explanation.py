"""Tables of the explain phase: where a step's time goes in each precision, and what follows from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bench.report.analysis.explanation import CLASSES, Explanation, rooflines
from bench.report.format import UNKNOWN, number, share, signed
from bench.report.tables.table import BATCH, DEVICE, PRECISION, Column, Table, figures, optional, table, words
from bench.stats import Interval


def time_by_class(found: Sequence[tuple[Explanation, str]]) -> Table | None:
    """Return the time of a step by class of work, a row for each class of each precision and its baseline.

    Args:
        found: explanations of one workload, each with what its device is called.
    """
    rows: list[dict[str, Any]] = []
    for one, where in found:
        named = {"where": where, "batch_size": one.cell["batch_size"], "precision": one.arm.precision}
        for work in CLASSES:
            before, after = one.baseline.ms[work], one.arm.ms[work]
            if before or after:
                rows.append(
                    named | {"work": work, "before": before, "after": after, "share": 100 * one.arm.share(work)}
                    | {"difference": signed_ms(after - before)}
                )  # fmt: skip
        for name, before, after in (
            ("all, profiled", one.baseline.profiled_ms, one.arm.profiled_ms),
            ("the step, not profiled", one.baseline.timed_ms, one.arm.timed_ms),
        ):
            rows.append(
                named | {"work": name, "before": before, "after": after, "share": 100.0}
                | {"difference": signed_ms(after - before)}
            )  # fmt: skip
    columns = [
        DEVICE,
        BATCH,
        PRECISION,
        words("work", "work"),
        figures("fp32 (ms)", "before", 3),
        figures("this precision (ms)", "after", 3),
        figures("share of its step (%)", "share", 2),
        words("difference (ms)", "difference"),
    ]
    about = (
        "By torch.profiler: on a GPU the kernels' time, on a CPU that of the operators themselves. Each instant has "
        "one class; idle is the time in which none runs. The profiler slows steps down: compare the last two rows."
    )
    return table("Where a step's time goes", rows, columns, about)


def ceilings(found: Sequence[tuple[Explanation, str]]) -> Table | None:
    """Return what each precision could gain, reached, and what of the difference remains unexplained."""
    rows = [
        defaultdict(
            str,
            where=where,
            batch_size=one.cell["batch_size"],
            precision=one.arm.precision,
            reached=one.speedup.center,
            interval=_interval(one.speedup),
            ceiling=one.ceiling,
            predicted=one.predicted,
            unexplained="" if one.unexplained is None else share(one.unexplained),
            unknown=100 * max(one.baseline.share("unknown"), one.arm.share("unknown")),
        )
        for one, where in found
    ]
    columns: list[Column] = [
        DEVICE,
        BATCH,
        PRECISION,
        figures("reached (×)", "reached", 3),
        words("95 % interval", "interval"),
        *optional(
            figures("ceiling (×)", "ceiling", 3),
            figures("predicted (×)", "predicted", 3),
            words("unexplained", "unexplained"),
            figures("unknown operators (%)", "unknown", 2),
        ),
    ]
    about = (
        "Reached: fp32's time of a step over this precision's, in the rounds of the explain phase. Ceiling: if all "
        "that can gain did, at the best rates that its operators show alone. Predicted: from fp32's step and the "
        "operators alone, without timing this precision. Unexplained: the part of the difference of the steps that "
        "the classes do not add up to, and how far that is certain; a dash where the difference is within its noise."
    )
    return table("What could be gained", rows, columns, about)


LONGEST = 8
"""Operators that a table shows of each cell."""


def operators_alone(found: Sequence[tuple[Explanation, str]]) -> Table | None:
    """Return the operators of fp32's steps that take longest, alone, against the bounds that were measured here."""
    rows: list[dict[str, Any]] = []
    for one, where in found:
        for bound in rooflines(one.baseline, one.arm)[:LONGEST]:
            rows.append({
                "where": where,
                "batch_size": one.cell["batch_size"],
                "precision": one.arm.precision,
                "operator": f"{bound.operator} ({bound.module})" if bound.module else bound.operator,
                "count": bound.count,
                "ms": bound.ms,
                "other": bound.other_ms,
                "ratio": bound.ms / bound.other_ms if bound.other_ms else None,
                "limit": bound.limit,
                "share": 100 * bound.share,
            })  # fmt: skip
    columns = [
        DEVICE,
        BATCH,
        PRECISION,
        words("operator (module)", "operator", wrap=True),
        figures("calls in a step", "count", 3),
        figures("fp32 (ms)", "ms", 3),
        *optional(figures("in this precision's type (ms)", "other", 3), figures("faster (×)", "ratio", 3)),
        words("bound by", "limit"),
        figures("of that bound (%)", "share", 2),
    ]
    about = (
        "One call each, alone, on random operands of the same shapes, strides and types as in fp32's step. Bounds are "
        "what this device showed in the same process: the rate of its fastest large matrix product, and that of a copy."
    )
    return table("The longest operators alone", rows, columns, about)


def signed_ms(value: float) -> str:
    """Write a difference in ms with its sign and three significant digits."""
    text = number(abs(value), 3)
    return signed(0.0, 0)[1:] if not value else f"{'+' if value > 0 else '−'}{text}"


def _interval(one: Interval) -> str:
    return UNKNOWN if one.low is None or one.high is None else f"{number(one.low, 3)} to {number(one.high, 3)}"
