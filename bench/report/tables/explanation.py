"""Why a precision gains or does not: tables of the explain phase, and sentences for the terminal and the pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter

from bench.report.analysis.explanation import CLASSES, MEMORY_KINDS, Explanation, MemoryPair
from bench.report.format import MIB, capital, change, known, memory_unit, number, percent, share, signed, spread, times
from bench.report.tables.table import Table, figures, table, words

BUSY_PCT = 10.0
"""Share of a CPU's cores from which other programs are reported."""
STRETCHED = 1.5
"""How many times as long a step takes under the profiler, from which that is reported."""
LEAST_CHANGE = 0.05
"""Share of all changes of memory below which a kind's change is not named."""
SAME = 0.01
"""Share of the peak up to which a change of memory, or a part of it, is not reported."""
FP32 = 0.10
"""The same of activations in fp32."""
SLACK, LEAST_SLACK = 0.10, 8 * MIB
"""Share of the peak, and bytes, that the allocator must hold beyond it for that to be reported."""


def time_by_class(explanation: Explanation) -> Table | None:
    """Return the time of one precision's step by class of work, and of the baseline's."""
    baseline, arm = explanation.baseline, explanation.arm
    times_ms = [(work, baseline.ms[work], arm.ms[work]) for work in CLASSES if baseline.ms[work] or arm.ms[work]]
    of_steps = [
        ("all, profiled", baseline.profiled_ms, arm.profiled_ms),
        ("the step, not profiled", baseline.timed_ms, arm.timed_ms),
    ]
    return _compared(explanation, "", "class of work", [*times_ms, *of_steps])


def most_changed(explanation: Explanation) -> Table | None:
    """Return the operators whose time in a step changed most; None where none were kept."""
    title, what = ": operators whose time changed most", "operator, sizes of its inputs"
    return _compared(explanation, title, what, explanation.changed)


def _compared(
    explanation: Explanation, title: str, what: str, times_ms: Sequence[tuple[str, float, float]]
) -> Table | None:
    """Return a table of times in ms in fp32 and in the precision, with their difference."""
    columns = [
        words(what, itemgetter(0), wrap=True),
        figures(f"{explanation.baseline.precision} (ms)", itemgetter(1), 3),
        figures(f"{explanation.arm.precision} (ms)", itemgetter(2), 3),
        figures("change (ms)", lambda row: row[2] - row[1], lambda ms: signed(ms, 3)),
    ]
    return table(explanation.subject + title, times_ms, columns)


def gain(explanation: Explanation) -> str:
    """Write the speedup with its interval, and the unexplained part."""
    center, low, high = explanation.speedup.ends
    text = f"{times(center, low, high)} in the rounds of this phase"
    if low is not None and high is not None:
        text = f"{times(center, low, high)} {spread(low, high)} in the rounds of this phase"
        if low < 1 < high:
            text += ", which show no difference"
    if explanation.unexplained is not None:
        text += f"; unexplained {share(explanation.unexplained)} of the difference"
    return text


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
    if max(baseline.stretched, arm.stretched) >= STRETCHED:
        yield (
            f"Under the profiler {baseline.precision}'s step takes {number(baseline.stretched, 2)} times as long and "
            f"{arm.precision}'s {number(arm.stretched, 2)} times, so the classes, and the causes, are rough."
        )
    if (busy := baseline.figure("foreign load")) >= BUSY_PCT:
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
    in_fp32, slack = (row["peak_reserved_bytes"] - row["peak_allocated_bytes"] for row in memory)
    if slack >= max(SLACK * now, LEAST_SLACK):
        yield f"Apart from that, the allocator holds {amount(slack)} more than is allocated, in fp32 {amount(in_fp32)}."
