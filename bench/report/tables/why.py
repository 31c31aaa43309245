"""Why a precision gains or does not, in a short table and in sentences: for the terminal and the pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.report.analysis.explanation import BUSY_PCT, CLASSES, SHORTENED, STRETCHED, Explanation
from bench.report.analysis.memory import Held, MemoryChange
from bench.report.format import MIB, change, memory_unit, number, share, times
from bench.report.tables.explanation import signed_ms
from bench.report.tables.table import Table, figures, table, words
from bench.spec.precisions import find_precision
from bench.spec.text import print_plain

LEAST_SHARE = 0.005
"""Share of either step below which a class of work has no row of its own."""
LEAST_CHANGE = 0.05
"""Share of all changes of memory below which a kind's change is not named."""
SAME = 0.01
"""Share of the peak up to which a change of memory, or a part of it, is not worth saying."""
FP32 = 0.10
"""The same of activations in fp32."""
SLACK, LEAST_SLACK = 0.10, 8 * MIB
"""Share of the peak, and bytes, that the allocator must hold beyond it for that to be worth saying."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Why:
    """Why one precision gains, or does not, in one cell."""

    workload: str
    where: str
    """What its device is called."""
    one: Explanation
    memory: MemoryChange | None

    @property
    def precision(self) -> str:
        """The precision that is explained."""
        return self.one.arm.precision

    @property
    def subject(self) -> str:
        """What was measured, without the workload's name."""
        return f"{self.precision} on {self.where}, batch {self.one.cell['batch_size']:.0f}"

    @property
    def table(self) -> Table:
        """The time of a step by class of work."""
        return short(self)

    @property
    def title(self) -> str:
        """What was measured, and where."""
        return f"{self.workload}: {self.subject}"

    @property
    def gain(self) -> str:
        """What was reached, and of what."""
        speedup = self.one.speedup
        ends = ""
        if speedup.low and speedup.high:
            slower = speedup.center < 0.5  # which ``times`` writes the other way round
            low, high = (1 / speedup.high, 1 / speedup.low) if slower else (speedup.low, speedup.high)
            ends = f" [{number(low, 3)}, {number(high, 3)}]"
        parts = [f"{times(speedup.center, speedup.low, speedup.high)}{ends} in the rounds of this phase"]
        if self.one.ceiling is not None:
            parts.append(f"ceiling{': at best' if self.one.ceiling < 1 else ''} {times(self.one.ceiling)}")
        parts += [] if self.one.predicted is None else [f"predicted {times(self.one.predicted)}"]
        if self.one.unexplained is not None:
            parts.append(f"unexplained {share(self.one.unexplained)} of the difference")
        return "; ".join(parts)

    @property
    def reasons(self) -> list[str]:
        """The causes, what to try against them and how, and what to doubt, as whole sentences."""
        return self.sentences()

    def sentences(self, *, tried: bool = False) -> list[str]:
        """Return the reasons; without how to try what they point at where it is tried next."""
        lines = [_sentence(reason.sentence) for reason in self.one.reasons] or ["No rule found a cause."]
        if tries := ",".join(self.techniques):
            how = "" if tried else f" explain --try, or --ladder --techniques {tries}, measures it."
            lines.append(f"Worth trying: {tries}.{how}")
        return [*lines, *self._doubts()]

    @property
    def techniques(self) -> list[str]:
        """Techniques that may remove the causes, without those that it was measured with."""
        used = [name.split("=")[0] for name in str(self.one.cell["techniques"]).split("+")]
        return [
            name
            for name in dict.fromkeys(name for reason in self.one.reasons for name in reason.techniques)
            if name not in used
        ]

    def _doubts(self) -> Iterator[str]:
        baseline, arm = self.one.baseline, self.one.arm
        stretched = (baseline.stretched, arm.stretched)
        if max(stretched) >= STRETCHED or min(stretched) <= SHORTENED:
            yield (
                f"Under the profiler {baseline.precision}'s step takes {number(baseline.stretched, 2)} times as long "
                f"and {arm.precision}'s {number(arm.stretched, 2)} times, so the classes, and what follows from them, "
                "are rough."
            )
        if (busy := self.one.foreign_load_pct) is not None and busy >= BUSY_PCT:
            yield f"Other programs took {busy:.0f} % of the CPU meanwhile, so these figures are rough."

    @property
    def of_memory(self) -> list[str]:
        """Why its memory rises or falls, as whole sentences."""
        return [] if self.memory is None else list(memory_sentences(self.memory))


def short(why: Why) -> Table:
    """Return the time of a step by class of work in the baseline and in the precision."""
    baseline, arm = why.one.baseline, why.one.arm
    rows: list[dict[str, Any]] = [
        {"work": work, "before": baseline.ms[work], "after": arm.ms[work]}
        for work in CLASSES
        if max(baseline.share(work), arm.share(work)) >= LEAST_SHARE
    ]
    rest = [
        sum(step.ms[work] for work in CLASSES if all(row["work"] != work for row in rows)) for step in (baseline, arm)
    ]
    rows += [{"work": "all else", "before": rest[0], "after": rest[1]}] if any(rest) else []
    rows += [
        {"work": "all, profiled", "before": baseline.profiled_ms, "after": arm.profiled_ms},
        {"work": "the step, not profiled", "before": baseline.timed_ms, "after": arm.timed_ms},
    ]
    columns = [
        words("ms a step", "work"),
        figures(baseline.precision, "before", 3),
        figures(arm.precision, "after", 3),
        figures("change", lambda row: signed_ms(row["after"] - row["before"])),
    ]
    found = table(why.subject, rows, columns)
    assert found is not None  # it has two rows at least
    return found


def memory_sentences(found: MemoryChange) -> Iterator[str]:
    """Yield why the peak of the tensors rose or fell, what autocast's copies take, and the allocator's slack."""
    before, after = found.before, found.after
    unit, size, _ = memory_unit(max(before.peak, after.peak))

    def amount(value: float) -> str:
        return f"{number(value / size, 3)} {unit}"

    text = "Memory: the most that tensors of a step hold at once"
    if abs(found.difference) < SAME * before.peak:
        yield f"{text} is {amount(after.peak)}, as in fp32 within {SAME:.0%}.".replace("%", " %")
    else:
        changes = found.by_kind()
        least = LEAST_CHANGE * sum(abs(value) for _, value in changes)
        parts = [f"{kind} {'+' if value > 0 else ''}{amount(value)}" for kind, value in changes if abs(value) >= least]
        moves = "rises" if found.difference > 0 else "falls"
        yield (
            f"{text} {moves} from {amount(before.peak)} to {amount(after.peak)} "
            f"({change(found.difference / before.peak)}): {', '.join(parts)}."
        )
    copies, most = after.weight_copies, after.most_weight_copies
    if copies is not None and most is not None and most >= SAME * after.peak:
        yield (
            f"Autocast's 16-bit copies of weights take up to {amount(most)} during a step; at the moment of the peak "
            f"{amount(copies) if copies else 'none is held'}."
        )
    if after.fp32_activations and after.fp32_activations >= FP32 * after.peak:
        yield (
            f"{amount(after.fp32_activations)} of its activations, "
            f"{100 * after.fp32_activations / after.kinds['activations']:.0f} %, are kept in fp32 for the backward "
            "pass."
        )
    if _has_slack(before) or _has_slack(after):
        yield (
            f"Apart from that, the allocator holds {amount(after.slack or 0.0)} more than is allocated, "
            f"in fp32 {amount(before.slack or 0.0)}."
        )


def _has_slack(held: Held) -> bool:
    return held.slack is not None and held.slack >= max(SLACK * held.peak, LEAST_SLACK)


def show(found: Sequence[Why], *, tried: bool = False) -> None:
    """Print the explanations as a terminal shows them; with ``tried``, what they point at is tried next."""
    print_plain("Why?")
    for why in found:
        print_plain(f"\n{why.title}\n{why.gain}.")
        short(why).show()
        for sentence in [*why.sentences(tried=tried), *why.of_memory]:
            print_plain(f"- {sentence}")
    print_plain("")


def _sentence(text: str) -> str:
    word = text.split("'", 1)[0].split(maxsplit=1)[0]
    return f"{text}." if find_precision(word) else f"{text[:1].upper()}{text[1:]}."
