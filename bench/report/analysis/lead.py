"""The head of a report: all answers in two sentences, and the words of each line of the grid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.report.analysis.doubts import DOUBTS, OTHER_TYPES, PARTIAL
from bench.report.analysis.judge import judged_by
from bench.report.analysis.verdict import NO_ACCURACY, NOT_TRAINED, NOT_WORSE, OF_PARITY, Answer, Row, accuracy_word
from bench.report.format import (
    MIB,
    UNKNOWN,
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
from bench.results.records import MEASURED
from bench.spec.metrics import EPOCH, MEMORY, METRICS
from bench.spec.precisions import BASELINE

STANDING = {NOT_WORSE: "good", "not compared": "open", "too few seeds": "open", "undecided": "open"}
STANDING |= dict.fromkeys((UNKNOWN, NOT_TRAINED, NO_ACCURACY), "")
"""The class of each verdict on accuracy, which colours it: whether it supports the advice. Any other verdict is bad."""


class Part(NamedTuple):
    """A piece of a sentence."""

    text: str
    strong: bool = False


Sentence = list[Part]


class Cell(NamedTuple):
    """A cell that a page may sort by."""

    text: str
    sort: object


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """An answer as a line of the grid; a cell with nothing to say is ``UNKNOWN``, or empty where it is an addition."""

    answer: Answer
    use: str
    """The advised precision, or why there is none."""
    faster: str
    """The speedup; where fp32 is advised, that of the best other precision after its name, or its interval."""
    spread: str
    """Half the width of the speedup's interval."""
    changes: dict[str, Cell]
    """Changes from fp32, by the metric's name: the metrics whose changes are shares, and ``EPOCH``."""
    peak: str
    """The peak memory."""
    accuracy: str
    """A word on accuracy, or the status of a training that failed."""
    points: str
    """The difference in accuracy, or in the loss of tokens; the accuracy itself where there is none."""
    standing: str
    """``good``, ``bad``, ``open`` or empty: whether accuracy supports the advice."""
    pays_from: str
    """The smallest of the batch sizes at which it pays."""

    @property
    def marks(self) -> str:
        """The marks of its doubts."""
        return "".join(doubt.mark for doubt in self.answer.doubts)


def line(answer: Answer) -> Line:
    """Write an answer as a line of the grid."""
    arm = answer.arm if answer.is_gain else {}
    has_interval = answer.is_timed and known(arm["speedup_low"])
    accuracy = _accuracy(answer)
    words = [word for _, word in answer.trained] or [accuracy]
    standings = [STANDING.get(word, "bad") for word in words]
    return Line(
        answer=answer,
        use=answer.precision or answer.advice,
        faster=_faster(answer),
        spread=spread(arm["speedup_low"], arm["speedup_high"]) if has_interval else "",
        changes=_changes(answer, arm),
        peak=_mib(arm) if arm and known(arm["peak_memory_bytes"]) else "",
        accuracy=accuracy,
        points=_points(answer),
        standing="bad" if "bad" in standings else standings[0],
        pays_from=str(answer.paying[0]) if answer.paying else UNKNOWN,
    )


def _faster(answer: Answer) -> str:
    arm = answer.arm
    if not arm:
        return UNKNOWN
    size = times(arm["speedup"], arm["speedup_low"], arm["speedup_high"])
    if answer.is_open:
        size = f"{number(arm['speedup_low'], 2)} to {number(arm['speedup_high'], 2)}×"
    return f"{arm['precision']}: {size}" if answer.stays else size


def _changes(answer: Answer, arm: Row) -> dict[str, Cell]:
    """Return the change of each share from fp32, and the time of an epoch in fp32 and in the arm: 329 → 297 s."""
    changes = {}
    for metric in METRICS.values():
        if metric.shown_as == "share":
            share = arm[metric.change] if arm else math.nan
            changes[metric.name] = Cell(change(share), share if known(share) else None)
    if not arm or not known(arm["time_per_epoch_s"]):
        return changes | {EPOCH.name: Cell(UNKNOWN, None)}
    ends = []
    for row in answer.question.cell:
        if row["precision"] in (BASELINE, arm["precision"]):
            ends.append(row["time_per_epoch_s"])
    text = " → ".join(number(seconds, 3) for seconds in ends if known(seconds))
    return changes | {EPOCH.name: Cell(f"{text} s", arm[EPOCH.change])}


def _accuracy(answer: Answer) -> str:
    if not answer.is_gain:
        return answer.accuracy or UNKNOWN
    return answer.accuracy if answer.accuracy in OF_PARITY.values() else accuracy_word(answer.training)


def _points(answer: Answer) -> str:
    training = answer.training
    if not training or training["train_status"] not in MEASURED or training["regression"] == "yes":
        return ""
    is_here = training["batch_size"] == answer.batch
    quality = judged_by(training)
    if quality is None:
        return f"{training['accuracy_pct']:.2f} %" if is_here and known(training["accuracy_pct"]) else ""
    parts = [f"{signed(training[quality.change], quality.decimals)} {quality.short}"]
    if accuracy_word(training) == "too few seeds":
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
    for answer in answers:
        groups.setdefault(answer.workload, []).append(line(answer))
    lines = [each for group in groups.values() for each in group]
    columns = []
    for name in lines[0].changes if lines else ():
        if any(each.changes[name].text != UNKNOWN for each in lines):
            columns.append(name)
    doubts = {doubt.name for answer in answers for doubt in answer.doubts}
    legend = {doubt.mark: f"{doubt.about}." for name, doubt in DOUBTS.items() if name in doubts}
    return Grid(groups=groups, columns=columns, legend=legend)


# All answers in two sentences.


def lead(answers: Sequence[Answer]) -> list[Sentence]:
    """Return the sentences: whose types are not its own; what to use where, and how much faster; its cost; doubts."""
    if not answers:
        return []
    sentences = [strayed(answers), _speeds(answers), _costs(answers), _doubtful(answers)]
    names = {answer.precision for answer in answers}
    written = []
    for first, *more in filter(None, sentences):
        begins_with_a_name = first.text.split(maxsplit=1)[0] in names  # such as that of a script's arm
        written.append([first if begins_with_a_name else Part(capital(first.text), first.strong), *more])
    return written


def strayed(answers: Sequence[Answer]) -> Sentence:
    """Say which precisions' products ran in other types than theirs; nothing where none did."""
    words: dict[str, None] = {}
    for answer in answers:
        for row in answer.question.rows:
            if known(row["other_types"]):
                words[f"{row['precision']} {row['other_types']}, so it is no {row['precision']}"] = None
    if not words:
        return []
    meaning = " Speedups, FASTER and SLOWER below compare with that."
    return [Part(f"{'; '.join(words)}.", strong=True), Part(meaning)]


def _speeds(answers: Sequence[Answer]) -> Sentence:
    """Say what to use where, and how much faster it is: the advice for most devices first."""
    by_use: dict[tuple[str, bool], list[Answer]] = {}
    for answer in answers:
        by_use.setdefault((answer.precision or answer.advice, answer.is_timed), []).append(answer)
    groups = sorted(by_use.values(), key=lambda group: (-len(group), not group[0].is_timed))
    parts: Sentence = []
    for group in groups:
        parts += [Part("; ")] if parts else []
        parts += _clause(group, answers)
    if any(DOUBTS[PARTIAL] in answer.doubts for answer in answers):
        parts.insert(0, Part("so far, "))
    only = answers[0]
    if len(answers) == 1 and only.paying and not only.stays:
        parts.append(Part(f"; it pays {_pays(only)}"))
    return [*parts, Part(".")]


def _clause(group: Sequence[Answer], answers: Sequence[Answer]) -> Sentence:
    """Say what to use where some answers advise the same, and how much faster it is there."""
    first, is_only = group[0], len(answers) == 1
    use = first.precision or first.advice
    labels = list(dict.fromkeys(answer.label for answer in group))
    where = f"on {enumerated(labels)}"
    if any(answer.label in labels and answer not in group for answer in answers):  # of other suites
        where = f"in {cases(len(group), len(answers))}"
    fp32 = f"{BASELINE} ≠" if any(DOUBTS[OTHER_TYPES] in answer.doubts for answer in group) else BASELINE
    if first.is_timed:
        speedups = [float(answer.arm["speedup"]) for answer in group]
        size = _faster(first) if len(group) == 1 else span(min(speedups), max(speedups))
        at = f" at batch {first.batch_text}" if first.batch_text != UNKNOWN else ""
        of_only = f" for {first.workload}{at}" if is_only else ""
        return [Part(f"{use} is "), Part(size, True), Part(f" as fast as {fp32} {where}{of_only}")]
    if first.stays:
        rival = f" ({_faster(first)})" if is_only else ""
        return [Part(f"stay with {fp32}", True), Part(f" {where}{rival}")]
    return [Part(f"only {use} fits {where}" if first.is_gain else f"{use} {where}")]


def _pays(answer: Answer) -> str:
    """Say from which batch size on the precision pays."""
    first, last, sizes = answer.paying[0], answer.paying[-1], answer.sizes
    if len(sizes) == 1:
        return f"at batch {first}, the only one measured"
    to = f" to {last}" if last < sizes[-1] else ""
    return f"from batch {first}{to}" + (", the smallest measured" if first == sizes[0] else "")


def _costs(answers: Sequence[Answer]) -> Sentence:
    """Say what changes in memory and in accuracy where another precision than fp32 is advised."""
    gains = [answer for answer in answers if answer.is_gain]
    clauses = [*_memory(gains), *_accuracies(gains)]
    if len(answers) == 1 and answers[0].trained:
        words = [f"{name}{'' if word == 'diverged' else ' is'} {word}" for name, word in answers[0].trained]
        clauses = [f"compared with {BASELINE} after training, {enumerated(words)}"]
    return [Part(f"{'; '.join(clauses)}.")] if clauses else []


def _memory(gains: Sequence[Answer]) -> list[str]:
    """Write by how much the memory changes, from the largest saving on; nothing where it is not known."""
    changes = [float(answer.arm[MEMORY.change]) for answer in gains if known(answer.arm[MEMORY.change])]
    if not changes:
        return []
    if max(changes) >= 0:
        ends = dict.fromkeys([change(min(changes)), change(max(changes))])
        return [f"peak memory changes by {' to '.join(ends)}"]
    ends = dict.fromkeys(change(-end).removeprefix("+") for end in (max(changes), min(changes)))
    only = f" ({_mib(gains[0].arm)})" if len(gains) == 1 else ""
    return [f"it takes {' to '.join(ends)} less peak memory{only}"]


def _accuracies(gains: Sequence[Answer]) -> list[str]:
    """Say on how many answers accuracy is shown to be no worse, or by how much it differs in the only one."""
    training = gains[0].training if len(gains) == 1 else {}
    quality = judged_by(training) if training else None
    if quality is not None:
        size = f"{signed(training[quality.change], quality.decimals)} {quality.unit}"
        at = "" if training["batch_size"] == gains[0].batch else f" at batch {training['batch_size']:.0f}"
        word = NOT_WORSE if gains[0].accuracy == NOT_WORSE else "not shown to be the same"
        return [f"its {quality.label} is {word} ({size} over {counted(training['accuracy_change_seeds'], 'seed')}{at})"]
    words = Counter(_accuracy(answer) for answer in gains)
    if len(words) < 2:
        return [f"accuracy: {word}" for word in words]
    counts = [f"{word} in {cases(count, len(gains))}" for word, count in words.items()]
    return [f"accuracy: {', '.join(counts)}"]


def _doubtful(answers: Sequence[Answer]) -> Sentence:
    """Say what makes the answers doubtful, and of how many; nothing where nothing does."""
    counts = Counter(doubt.name for answer in answers for doubt in answer.doubts)
    clauses = []
    for name, doubt in DOUBTS.items():
        if counts[name]:
            clauses.append(doubt.about + (f" ({cases(counts[name], len(answers))})" if len(answers) > 1 else ""))
    return [Part(f"what to doubt: {'; '.join(clauses)}.")] if clauses else []


def _mib(arm: Row) -> str:
    return f"{number(arm['peak_memory_bytes'] / MIB)} MiB"


def cases(some: int, every: int) -> str:
    """Write a count of cases, a case being a suite on a device: 8 of 15 cases."""
    return f"all {every} cases" if some == every else f"{some} of {every} cases"


def span(low: float, high: float) -> str:
    """Write a range of speedups: 2.6–3.7×; one figure where both ends read the same."""
    digits = 2 if high >= 1.5 else 3
    return "–".join(dict.fromkeys(number(end, digits) for end in (low, high))) + "×"
