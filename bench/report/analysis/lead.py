"""The head of a report: all answers in a sentence or two, and each line of the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.report.analysis.doubts import DOUBTS, PARTIAL, Row
from bench.report.analysis.judge import judged_by
from bench.report.analysis.verdict import NO_ACCURACY, NOT_TRAINED, NOT_WORSE, Answer
from bench.report.format import (
    MIB,
    UNKNOWN,
    at_batch,
    capital,
    change,
    counted,
    enumerated,
    known,
    number,
    signed,
    spread,
    times,
)
from bench.spec.metrics import EPOCH, MEMORY, METRICS
from bench.spec.precisions import BASELINE

# The class of each verdict on accuracy, which colours it: whether it supports the advice. Any other
# verdict is bad.
STANDING = {
    NOT_WORSE: "good",
    "not compared": "open",
    "too few seeds": "open",
    "undecided": "open",
    NOT_TRAINED: "",
    NO_ACCURACY: "",
}


class Part(NamedTuple):
    """A piece of a sentence."""

    text: str
    strong: bool = False


Sentence = list[Part]


class Cell(NamedTuple):
    """A cell that a page may sort by."""

    text: str
    sort: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """An answer as a line of the grid.

    A cell with nothing to say is ``UNKNOWN``, or empty where it is an addition.
    """

    answer: Answer
    faster: str
    """The speedup; where fp32 is advised, that of the best other precision after its name, or its
    interval."""
    spread: str
    """Half the width of the speedup's interval."""
    changes: dict[str, Cell]
    """Changes from fp32, by the metric's name: the metrics whose changes are shares, and
    ``EPOCH``."""
    peak: str
    """The peak memory."""
    accuracy: str
    """A word on accuracy, or the status of a training that failed."""
    points: str
    """The difference in accuracy, or in the loss of tokens; the accuracy itself where there is
    none."""
    standing: str
    """``good``, ``bad``, ``open`` or empty: whether accuracy supports the advice."""
    marks: str
    """The marks of its doubts."""


def line(answer: Answer) -> Line:
    """Write an answer as a line of the grid."""
    arm = answer.arm if answer.is_gain else {}
    if answer.is_gain:
        accuracy = answer.accuracy_word(answer.precision)
        words = [accuracy]
    else:
        accuracy = answer.accuracy or UNKNOWN
        words = list(answer.trained.values())
    standings = [STANDING.get(word, "bad") for word in words] or [""]
    half_width = peak = ""
    if known(arm.get("speedup_low")):
        half_width = spread(arm["speedup_low"], arm["speedup_high"])
    if known(arm.get("peak_memory_bytes")):
        peak = f"{number(arm['peak_memory_bytes'] / MIB)} MiB"
    return Line(
        answer=answer,
        faster=_faster(answer),
        spread=half_width,
        changes=_changes(answer, arm),
        peak=peak,
        accuracy=accuracy,
        points=_points(answer),
        standing="bad" if "bad" in standings else standings[0],
        marks="".join(doubt.mark for doubt in answer.doubts),
    )


def _changes(answer: Answer, arm: Row) -> dict[str, Cell]:
    """Write the changes of the advised arm, an empty one where fp32 is advised."""
    changes = {}
    for metric in METRICS.values():
        if metric.shown_as == "share":
            share = arm.get(metric.change, math.nan)
            changes[metric.name] = Cell(change(share), share)
    if answer.peaks:
        changes[MEMORY.name] = Cell(answer.peaks, math.nan)
    epoch = UNKNOWN
    if known(arm.get("time_per_epoch_s")):
        seconds = []
        for row in (answer.fp32, arm):
            if known(row.get("time_per_epoch_s")):
                seconds.append(number(row["time_per_epoch_s"], 3))
        epoch = " → ".join(seconds) + " s"
    changes[EPOCH.name] = Cell(epoch, arm.get(EPOCH.change, math.nan))
    return changes


def _faster(answer: Answer) -> str:
    arm = answer.arm
    if not arm:
        return UNKNOWN
    low, high = arm["speedup_low"], arm["speedup_high"]
    size = times(arm["speedup"], low, high)
    if not answer.stays:
        return size
    if arm["speed_verdict"] == "INCONCLUSIVE" and known(low):
        # A single figure would read as a gain or a loss, which is what is not known.
        size = f"{number(low, 2)} to {number(high, 2)}×"
    return f"{arm['precision']}: {size}"


def _points(answer: Answer) -> str:
    training = answer.training
    if not training:
        return ""
    quality = judged_by(training)
    is_here = training["batch_size"] == answer.batch
    if quality is None:
        accuracy = training["accuracy_pct"]
        return f"{accuracy:.2f} %" if is_here and known(accuracy) else ""
    parts = [f"{signed(training[quality.change], quality.decimals)} {quality.short}"]
    if answer.accuracy_word(answer.precision) == "too few seeds":
        parts.append(counted(training["accuracy_change_seeds"], "seed"))
    if not is_here:
        parts.append(f"batch {training['batch_size']:.0f}")
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The lines of all answers, by workload, and which columns have anything in them."""

    groups: dict[str, list[Line]]
    columns: list[str]
    legend: dict[str, str]
    """The marks of doubts in it, and their sentences."""

    @property
    def lines(self) -> list[Line]:
        """All lines, in order."""
        return [line for group in self.groups.values() for line in group]


def grid(answers: Sequence[Answer]) -> Grid:
    """Return the grid of the answers."""
    groups: dict[str, list[Line]] = {}
    columns: dict[str, None] = {}
    for answer in answers:
        shown = line(answer)
        groups.setdefault(str(answer.names["workload"]), []).append(shown)
        for name, cell in shown.changes.items():
            if cell.text != UNKNOWN:
                columns[name] = None
    doubts = {doubt for answer in answers for doubt in answer.doubts}
    legend = {doubt.mark: f"{doubt.about}." for doubt in DOUBTS.values() if doubt in doubts}
    return Grid(groups=groups, columns=list(columns), legend=legend)


# All answers in a sentence or two.


def lead(answers: Sequence[Answer]) -> list[Sentence]:
    """Return the sentences at the head of a report.

    The first names precisions whose products ran in other types, where there are any. The other
    says what to use where, and how much faster it is.
    """
    if not answers:
        return []
    sentences = [other_types_sentence(answers), _speeds(answers)]
    return [sentence for sentence in sentences if sentence]


def other_types_sentence(answers: Sequence[Answer]) -> Sentence:
    """Say which precisions' products ran in other types than theirs; nothing where none did."""
    clauses: dict[str, None] = {}
    for answer in answers:
        for row in answer.rows:
            if known(row["other_types"]):
                clause = f"{row['precision']} {row['other_types']}"
                if row["precision"] == BASELINE:
                    clause += f", so it is no {BASELINE}"
                clauses[clause] = None
    if not clauses:
        return []
    meaning = " Speedups, FASTER and SLOWER below rest on that."
    return [Part(f"{'; '.join(clauses)}.", strong=True), Part(meaning)]


def _speeds(answers: Sequence[Answer]) -> Sentence:
    """Say what to use where, and how much faster it is: the advice for most devices first."""
    by_use: dict[tuple[str, bool], list[Answer]] = {}
    for answer in answers:
        by_use.setdefault((answer.use, answer.is_timed), []).append(answer)
    groups = sorted(by_use.values(), key=lambda group: (-len(group), not group[0].is_timed))
    parts: Sentence = []
    if any(DOUBTS[PARTIAL] in answer.doubts for answer in answers):
        parts.append(Part("So far, "))
    for group in groups:
        clause = _clause(group, answers)
        if group is not groups[0]:
            parts.append(Part("; "))
        elif not parts and not group[0].is_timed:
            # A clause on a gain begins with the name of a precision, which stays as it is.
            clause[0] = Part(capital(clause[0].text), clause[0].strong)
        parts += clause
    return [*parts, Part(".")]


def _clause(group: Sequence[Answer], answers: Sequence[Answer]) -> Sentence:
    """Say what to use where some answers advise the same, and how much faster it is there."""
    first = group[0]
    where = _where(group, answers)
    if first.is_timed:
        speedups = [float(answer.arm["speedup"]) for answer in group]
        size = span(min(speedups), max(speedups))
        if len(group) == 1:
            size = _faster(first)
        return [
            Part(f"{first.use} is "),
            Part(size, strong=True),
            Part(f" as fast as {BASELINE} {where}"),
        ]
    if first.stays:
        notes = []
        if len(group) == 1:
            notes.append(_faster(first))
        if any(answer.is_undecided for answer in group):
            notes.append("measure longer to decide")
        reasons = f" ({'; '.join(notes)})" if notes else ""
        advice = f"stay with {BASELINE}"
        if all(answer.is_undecided for answer in group):
            advice = f"undecided, so {advice}"
        return [Part(advice, strong=True), Part(f" {where}{reasons}")]
    if first.is_gain:
        return [Part(f"only {first.use} fits {where}")]
    return [Part(f"{first.use} {where}")]


def _where(group: Sequence[Answer], answers: Sequence[Answer]) -> str:
    """Say of which devices a group of the answers is, or of how many cases, if few words do."""
    labels = [answer.names["label"] for answer in group]
    where = f"on {enumerated(dict.fromkeys(labels))}"
    if len(answers) == 1:
        names = group[0].names
        return f"{where} for {names['workload']}{at_batch(names, ' at batch ')}"
    others = [answer for answer in answers if answer not in group]
    # Where a device has several suites, its name alone does not say which are meant.
    if any(answer.names["label"] in labels for answer in others):
        return f"in {cases(len(group), len(answers))}"
    return where


def cases(some: int, every: int) -> str:
    """Write a count of cases, a case being a suite on a device: 8 of 15 cases."""
    return f"all {every} cases" if some == every else f"{some} of {every} cases"


def span(low: float, high: float) -> str:
    """Write a range of speedups: 2.6–3.7×; one figure where both ends read the same."""
    # Two digits of a small speedup, such as 1.0, would hide what it gains.
    digits = 2 if high >= 1.5 else 3
    first = number(low, digits)
    last = number(high, digits)
    return f"{last}×" if first == last else f"{first}–{last}×"
