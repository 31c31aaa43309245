"""The answers at a glance: for each suite what to use on which device, for the terminal, markdown and the page."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.report.analysis.judge import judged_by
from bench.report.analysis.verdict import NO_ACCURACY, Answer, Sentence
from bench.report.format import UNKNOWN, change, known, number, records, signed, spread, times
from bench.report.reading.labels import short
from bench.report.reading.load import CELL, SUBJECT
from bench.report.tables.table import line_width
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from rich.table import Table

HEADERS = ("use", "faster", "memory", "accuracy", "batch", "energy")
"""In the order of their worth: where the terminal is narrow, the last ones are left out."""
NOT_TRAINED = "not trained"
STANDING = {"not worse": "good", "worse": "bad", "diverged": "bad"}
"""What a word on accuracy means for the advice; others leave it open."""


def row(answer: Answer) -> tuple[str, ...]:
    """Return the cells of an answer, in the order of ``HEADERS``."""
    arm = answer.arm
    if not arm:
        return (answer.advice, UNKNOWN, UNKNOWN, answer.accuracy or UNKNOWN, str(answer.batch), UNKNOWN)
    if answer.precision == BASELINE:
        rival = f"{arm['precision']} {times(arm['speedup'], arm['low'], arm['high'])}"
        return (BASELINE, rival, UNKNOWN, UNKNOWN, str(answer.batch), UNKNOWN)
    faster, width = _faster(arm)
    accuracy = answer.accuracy if answer.training else NOT_TRAINED
    accuracy = accuracy if known(arm["speedup"]) else f"{BASELINE} oom"
    return (
        str(answer.precision),
        f"{faster} {width}".rstrip(),
        change(arm["memory_change"]),
        accuracy,
        str(answer.batch),
        change(arm["energy_change"]),
    )


def _faster(arm: Mapping[Hashable, Any]) -> tuple[str, str]:
    """Write a speedup, and half the width of its interval where there is one."""
    if not known(arm["speedup"]):
        return UNKNOWN, ""
    width = spread(arm["low"], arm["high"]) if known(arm["low"]) else ""
    return times(arm["speedup"], arm["low"], arm["high"]), width


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A precision in the strip of a line."""

    precision: str
    speedup: float
    low: float | None
    high: float | None
    says: str
    """Its figures in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """An answer as a line of the grid, its cells as text; an empty one has nothing to say."""

    sentence: Sentence
    answer: Answer
    device: str
    generation: str
    use: str
    ties: str
    faster: str
    spread: str
    memory: str
    energy: str
    epoch: str
    accuracy: str
    points: str
    """The difference in accuracy, or in the loss of tokens."""
    standing: str
    """``good``, ``bad``, ``open`` or empty: whether accuracy supports the advice."""
    marks: list[Mark] = field(default_factory=list)

    @property
    def batch(self) -> str:
        """The batch size that the answer is for."""
        return str(self.answer.batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The lines of all answers, by workload, and which columns have anything in them."""

    groups: dict[str, list[Line]]
    columns: list[str]
    reach: float
    """Where the axis of all strips ends."""


def grid(sentences: Sequence[Sentence], summary: pd.DataFrame) -> Grid:
    """Return the grid of the sentences that have an answer."""
    cells = {key: records(rows) for key, rows in summary.groupby(CELL, sort=False)}
    kinds = dict(zip(summary["where"], summary["architecture"], strict=True))
    subjects = {
        (rows["workload"].iloc[0], rows["where"].iloc[0]): key for key, rows in summary.groupby(SUBJECT, sort=False)
    }
    groups: dict[str, list[Line]] = {}
    for sentence in sentences:
        if (answer := sentence.answer) is None:
            continue
        cell = cells.get((*subjects[answer.workload, answer.where], answer.batch), [])
        groups.setdefault(answer.workload, []).append(_line(sentence, answer, cell, cells, kinds[answer.where]))
    lines = [line for group in groups.values() for line in group]
    found = ("memory", "energy", "epoch")
    columns = [name for name in found if any(getattr(line, name) not in ("", UNKNOWN) for line in lines)]
    ends = [
        mark.speedup if mark.high is None else min(mark.high, 2 * mark.speedup) for line in lines for mark in line.marks
    ]
    return Grid(groups=groups, columns=columns, reach=max([1.25, *ends]) * 1.05)


def _line(
    sentence: Sentence,
    answer: Answer,
    cell: list[dict[Hashable, Any]],
    cells: Mapping[Any, list[dict[Hashable, Any]]],
    architecture: str,
) -> Line:
    arm = answer.arm
    stay = answer.precision == BASELINE
    faster, width = _faster(arm) if arm else (UNKNOWN, "")
    if stay:
        faster, width = f"{arm['precision']}: {faster}", ""
    accuracy, points, standing = _accuracy(answer)
    return Line(
        sentence=sentence,
        answer=answer,
        device=answer.label,
        generation=architecture,
        use=str(answer.precision) if answer.precision else answer.advice,
        ties=" ".join(f"≈ {name}" for name in answer.ties),
        faster=faster,
        spread=width,
        memory=change(arm["memory_change"]) if arm and not stay else UNKNOWN,
        energy=change(arm["energy_change"]) if arm and not stay else UNKNOWN,
        epoch=UNKNOWN if stay else _epoch(answer.training, cells),
        accuracy=accuracy,
        points=points,
        standing=standing,
        marks=[_mark(row) for row in cell if row["precision"] != BASELINE and known(row["speedup"])],
    )


def _accuracy(answer: Answer) -> tuple[str, str, str]:
    """Return a word on accuracy, the difference with its unit, and what it means for the advice."""
    training = answer.training
    if answer.trained:  # and not timed
        found = {STANDING[word] for _, word in answer.trained}
        return answer.accuracy, "", "bad" if "bad" in found else "good"
    if not answer.arm or answer.precision == BASELINE or not training:
        return (NOT_TRAINED if answer.arm and answer.precision != BASELINE else UNKNOWN), "", ""
    quality = judged_by(training)
    points = f"{signed(training[quality.change], quality.decimals)} {quality.short}" if quality else ""
    if answer.accuracy in STANDING:
        return answer.accuracy, points, STANDING[answer.accuracy]
    if training["train_status"] not in MEASURED:
        return str(training["train_status"]), "", "bad"
    word = "undecided"
    if answer.accuracy == NO_ACCURACY:
        return NO_ACCURACY, "", ""
    if not points:
        points = f"{training['accuracy_pct']:.2f} %" if known(training["accuracy_pct"]) else ""
        word = "not compared"
    elif training["parity"] == "insufficient seeds":
        points += f", {_counted(training['delta_seeds'], 'seed')}"
        word = "too few seeds"
    return word, points, "open"


def _counted(count: float, what: str) -> str:
    return f"{count:.0f} {what}{'s' * (count != 1)}"


def _epoch(training: Mapping[Hashable, Any], cells: Mapping[Any, list[dict[Hashable, Any]]]) -> str:
    """Write fp32's time of an epoch and the arm's: 329 → 297 s."""
    if not training or not known(training["time_per_epoch_s"]):
        return UNKNOWN
    own = number(training["time_per_epoch_s"], 3)
    beside = cells.get(tuple(training[name] for name in CELL), [])
    fp32 = next((row["time_per_epoch_s"] for row in beside if row["precision"] == BASELINE), None)
    return f"{number(fp32, 3)} → {own} s" if known(fp32) and fp32 is not None else f"{own} s"


def _mark(row: Mapping[Hashable, Any]) -> Mark:
    ends = (float(row["low"]), float(row["high"])) if known(row["low"]) else (None, None)
    says = f"{row['precision']}: {times(row['speedup'], row['low'], row['high'])}"
    says += f" [{number(row['low'], 3)}, {number(row['high'], 3)}]" if known(row["low"]) else ""
    says += f" · {number(row['step_ms'], 3)} ms a step · {number(row['samples_per_s'])} samples/s"
    return Mark(precision=str(row["precision"]), speedup=float(row["speedup"]), low=ends[0], high=ends[1], says=says)


def tables(answers: Sequence[Answer], width: int) -> list[Table]:
    """Return a table for each suite, no wider than ``width`` characters where leaving out columns can bring that."""
    from rich.console import Console

    console = Console(width=10_000)  # a narrow one measures no wider than itself
    found = []
    for workload in dict.fromkeys(answer.workload for answer in answers):
        rows = [(answer.where, *row(answer)) for answer in answers if answer.workload == workload]
        shown = [index for index in range(len(HEADERS)) if any(cells[index + 1] != UNKNOWN for cells in rows)]
        left_out: list[str] = []
        while len(shown) > 2 and console.measure(_terminal(workload, rows, shown)).maximum > width:
            left_out.insert(0, HEADERS[shown.pop()])
        grid = _terminal(workload, rows, shown)
        grid.caption = f"Without {', '.join(left_out)}, for want of width: the report has all." if left_out else None
        found.append(grid)
    return found


def _terminal(workload: str, rows: Sequence[tuple[str, ...]], shown: Sequence[int]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(Text(workload, style="bold"), overflow="ellipsis", no_wrap=True)
    for index in shown:
        right = HEADERS[index] in ("faster", "memory", "batch", "energy")
        least = max(len(HEADERS[index]), *(len(cells[index + 1]) for cells in rows))  # the device's name is cut first
        grid.add_column(HEADERS[index], justify="right" if right else "left", no_wrap=True, min_width=least)
    for cells in rows:
        grid.add_row(Text(short(cells[0])), *(Text(cells[index + 1]) for index in shown))
    return grid


def show(answers: Sequence[Answer]) -> None:
    """Print the answers as tables that fit the terminal."""
    from rich.console import Console

    console = Console(highlight=False, width=line_width())
    for table in tables(answers, console.width):
        console.print(table)
