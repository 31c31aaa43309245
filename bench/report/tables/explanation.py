"""Why a precision gains or does not: tables of the explain phase, and sentences for the terminal and the pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from bench.report.analysis.explanation import CLASSES, MEMORY_KINDS, Explanation, MemoryPair
from bench.report.format import MIB, UNKNOWN, capital, change, known, memory_unit, number, percent, share, times
from bench.report.tables.table import ARM, Row, Table, figures, optional, table, words
from bench.stats import Interval

LEAST_SHARE = 0.005
"""Share of either step below which a class of work has no row of its own in the short table."""
BUSY_PCT = 10.0
"""Share of a CPU's cores from which other programs are reported."""
STRETCHED, SHORTENED = 1.5, 0.8
"""How many times as long a step takes under the profiler, from which, or up to which, that is reported."""
LEAST_CHANGE = 0.05
"""Share of all changes of memory below which a kind's change is not named."""
SAME = 0.01
"""Share of the peak up to which a change of memory, or a part of it, is not reported."""
FP32 = 0.10
"""The same of activations in fp32."""
SLACK, LEAST_SLACK = 0.10, 8 * MIB
"""Share of the peak, and bytes, that the allocator must hold beyond it for that to be reported."""


def _arm(explanation: Explanation) -> Row:
    """Return the cells that name what was explained."""
    batch, precision = explanation.cell["batch_size"], explanation.arm.precision
    return {"where": explanation.where, "batch_size": batch, "precision": precision}


def _times(explanation: Explanation, least: float) -> Iterator[Row]:
    """Yield the time of each class that has at least a share of either step, of the rest, and of the steps."""
    baseline, arm = explanation.baseline, explanation.arm
    shown = [work for work in CLASSES if max(baseline.share(work), arm.share(work)) >= least]
    shown = [work for work in shown if baseline.ms[work] or arm.ms[work]]
    times_ms = [(work, baseline.ms[work], arm.ms[work]) for work in shown]
    rest = [sum(step.ms[work] for work in CLASSES if work not in shown) for step in (baseline, arm)]
    others: list[tuple[str, float, float]] = [("all else", rest[0], rest[1])] if any(rest) else []
    others.append(("all, profiled", baseline.profiled_ms, arm.profiled_ms))
    others.append(("the step, not profiled", baseline.timed_ms, arm.timed_ms))
    for work, before, after in [*times_ms, *others]:
        percent = 100 * arm.share(work) if work in shown else 100.0
        sign = "+" if after > before else "−"
        change = f"{sign}{number(abs(after - before), 3)}" if after != before else "0"
        yield {"work": work, "before": before, "after": after, "share": percent, "change": change}


def time_by_class(explained: Sequence[Explanation]) -> Table | None:
    """Return a workload's time of a step by class of work, a row for each class of each precision and its baseline."""
    columns = [
        *ARM,
        words("work", "work"),
        figures("fp32 (ms)", "before", 3),
        figures("this precision (ms)", "after", 3),
        figures("share of its step (%)", "share", 2),
        words("difference (ms)", "change"),
    ]
    about = (
        "By torch.profiler: on a GPU the kernels' time, on a CPU that of the operators themselves. Each instant has "
        "one class; idle is the time in which none runs. The profiler slows steps down: compare the last two rows."
    )
    rows = (_arm(explanation) | row for explanation in explained for row in _times(explanation, 0.0))
    return table("Where a step's time goes", rows, columns, about)


def short(explanation: Explanation) -> Table:
    """Return the time of one precision's step by class of work, without the classes that hardly count."""
    columns = [
        words("ms a step", "work"),
        figures(explanation.baseline.precision, "before", 3),
        figures(explanation.arm.precision, "after", 3),
        figures("change", "change"),
    ]
    times = table(explanation.subject, _times(explanation, LEAST_SHARE), columns)
    assert times is not None  # it has two rows at least
    return times


def gains(explained: Sequence[Explanation]) -> Table | None:
    """Return the speedup of each precision in this phase, and the unexplained part of the difference."""
    rows = (
        _arm(explanation)
        | {
            "reached": explanation.speedup.center,
            "interval": _interval(explanation.speedup),
            "unexplained": explanation.unexplained and share(explanation.unexplained),
            "unknown": 100 * max(explanation.baseline.share("unknown"), explanation.arm.share("unknown")),
        }
        for explanation in explained
    )
    columns = [
        *ARM,
        figures("reached (×)", "reached", 3),
        words("95 % interval", "interval"),
        *optional(words("unexplained", "unexplained"), figures("unknown operators (%)", "unknown", 2)),
    ]
    about = (
        "Reached: fp32's time of a step over this precision's, in the rounds of the explain phase. Unexplained: the "
        "part of the difference of the steps that the classes do not add up to; a dash where the difference, or this "
        "part of it, is too uncertain."
    )
    return table("What was gained", rows, columns, about)


def _interval(speedup: Interval) -> str:
    ends = speedup.low, speedup.high
    return UNKNOWN if None in ends else " to ".join(number(end, 3) for end in ends if end is not None)


def gain(explanation: Explanation) -> str:
    """Write the speedup with its interval, and the unexplained part."""
    speedup = explanation.speedup
    low, high = speedup.low, speedup.high
    if low is not None and high is not None and low < 1 < high:
        return f"{number(low, 3)} to {number(high, 3)}× as fast in the rounds of this phase, which show no difference"
    ends = ""
    if low and high:
        if speedup.center < 0.5:  # which ``times`` writes the other way round
            low, high = 1 / high, 1 / low
        ends = f" [{number(low, 3)}, {number(high, 3)}]"
    parts = [f"{times(speedup.center, speedup.low, speedup.high)}{ends} in the rounds of this phase"]
    if explanation.unexplained is not None:
        parts.append(f"unexplained {share(explanation.unexplained)} of the difference")
    return "; ".join(parts)


def sentences(explanation: Explanation, most_of_memory: int | None = None) -> Iterator[str]:
    """Yield the causes, the techniques to try against them, what to doubt, and why memory rises or falls.

    Args:
        explanation: of one precision.
        most_of_memory: most sentences on memory; None is all.
    """
    yield from (f"{capital(reason.sentence)}." for reason in explanation.reasons)
    if not explanation.reasons:
        yield "No rule found a cause."
    if tries := ",".join(explanation.techniques):
        yield f"Worth trying: {tries}. A run with --ladder --techniques {tries} measures it."
    baseline, arm = explanation.baseline, explanation.arm
    if max(baseline.stretched, arm.stretched) >= STRETCHED or min(baseline.stretched, arm.stretched) <= SHORTENED:
        yield (
            f"Under the profiler {baseline.precision}'s step takes {number(baseline.stretched, 2)} times as long and "
            f"{arm.precision}'s {number(arm.stretched, 2)} times, so the classes, and the causes, are rough."
        )
    if (busy := baseline.value("step", "foreign load")) is not None and busy >= BUSY_PCT:
        yield f"Other programs took {busy:.0f} % of the CPU meanwhile, so these figures are rough."
    if explanation.memory is not None:
        yield from itertools.islice(memory_sentences(explanation.memory), most_of_memory)


def memory_sentences(memory: MemoryPair) -> Iterator[str]:
    """Yield why the peak of the tensors rose or fell, the size of autocast's copies, and the allocator's slack."""
    before, after = memory
    was, now = before["tracked_peak_bytes"], after["tracked_peak_bytes"]
    unit, size, _ = memory_unit(max(was, now))

    def amount(value: float) -> str:
        return f"{number(value / size, 3)} {unit}"

    text = "Memory: the most that tensors of a step hold at once"
    if abs(now - was) < SAME * was:
        yield f"{text} is {amount(now)}, as in fp32 within {percent(SAME)}."
    else:
        changes = [(kind, after[column] - before[column]) for kind, column in MEMORY_KINDS.items()]
        least = LEAST_CHANGE * sum(abs(value) for _, value in changes)
        parts = [
            f"{kind} {'+' if value > 0 else ''}{amount(value)}"
            for kind, value in sorted(changes, key=lambda change: -abs(change[1]))
            if abs(value) >= least
        ]
        moves = "rises" if now > was else "falls"
        yield f"{text} {moves} from {amount(was)} to {amount(now)} ({change((now - was) / was)}): {', '.join(parts)}."
    copies, most = after["weight_copy_bytes"], after["most_weight_copy_bytes"]
    if known(copies) and most >= SAME * now:
        yield (
            f"Autocast's 16-bit copies of weights take up to {amount(most)} during a step; at the moment of the peak "
            f"{amount(copies) if copies else 'none is held'}."
        )
    if (kept := after["fp32_activation_bytes"]) >= FP32 * now:
        part = percent(kept / after["activation_bytes"])
        yield f"{amount(kept)} of its activations, {part}, are kept in fp32 for the backward pass."
    slack = [row["peak_reserved_bytes"] - row["peak_allocated_bytes"] for row in memory]
    if any(beyond >= max(SLACK * peak, LEAST_SLACK) for beyond, peak in zip(slack, (was, now), strict=True)):
        parts = [amount(beyond) if known(beyond) else "an unknown size" for beyond in slack]
        yield f"Apart from that, the allocator holds {parts[1]} more than is allocated, in fp32 {parts[0]}."
