"""The answers at a glance: for each suite the precision to use on each device, for the terminal and the pages."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.report.analysis.judge import judged_by
from bench.report.analysis.verdict import NO_ACCURACY, Answer, counted
from bench.report.format import UNKNOWN, change, known, number, signed, spread, times
from bench.report.reading.labels import short
from bench.report.tables.table import Table, figures, optional, table, words
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

NOT_TRAINED = "not trained"
STANDING = {"not worse": "good", "worse": "bad", "diverged": "bad"}
"""Whether a word on accuracy supports the advice; others leave it open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A precision in the strip of a line."""

    precision: str
    speedup: float
    low: float | None
    high: float | None
    says: str
    """Its figures in words."""


@dataclass(frozen=True, slots=True)
class Line:
    """An answer as a line of the grid, its cells as text; an empty one has nothing to say."""

    answer: Answer

    @property
    def stays(self) -> bool:
        """Whether the advice is fp32."""
        return self.answer.precision == BASELINE

    @property
    def use(self) -> str:
        """The advised precision, or why there is none."""
        return self.answer.precision or self.answer.advice

    @property
    def ties(self) -> str:
        """The precisions that are as fast."""
        return " ".join(f"≈ {name}" for name in self.answer.ties)

    @property
    def faster(self) -> str:
        """The speedup; where fp32 is advised, that of the best other precision after its name."""
        arm = self.answer.arm
        if not arm:
            return UNKNOWN
        speedup = times(arm["speedup"], arm["low"], arm["high"])
        return f"{arm['precision']}: {speedup}" if self.stays else speedup

    @property
    def spread(self) -> str:
        """Half the width of the speedup's interval; empty where there is none, and for fp32."""
        arm = self.answer.arm
        return spread(arm["low"], arm["high"]) if arm and not self.stays and known(arm["low"]) else ""

    @property
    def memory(self) -> str:
        """The change in peak memory from fp32."""
        return self._change("memory_change")

    @property
    def energy(self) -> str:
        """The change in energy of a step from fp32."""
        return self._change("energy_change")

    def _change(self, column: str) -> str:
        return change(self.answer.arm[column]) if self.answer.arm and not self.stays else UNKNOWN

    @property
    def epoch(self) -> str:
        """The time of an epoch in fp32 and in the advised precision: 329 → 297 s."""
        training = self.answer.training
        if self.stays or not training or not known(training["time_per_epoch_s"]):
            return UNKNOWN
        alike = [row for row in self.answer.rows if row["batch_size"] == training["batch_size"]]
        fp32 = [row["time_per_epoch_s"] for row in alike if row["precision"] == BASELINE]
        ends = [number(seconds, 3) for seconds in (*fp32, training["time_per_epoch_s"]) if known(seconds)]
        return f"{' → '.join(ends)} s"

    @property
    def accuracy(self) -> str:
        """A word on accuracy."""
        answer, training = self.answer, self.answer.training
        if answer.trained or answer.accuracy in STANDING:
            return answer.accuracy
        if self.stays or not answer.arm:
            return UNKNOWN
        if not training:
            return NOT_TRAINED
        if training["train_status"] not in MEASURED:
            return str(training["train_status"])
        if answer.accuracy == NO_ACCURACY or not judged_by(training):
            return NO_ACCURACY if answer.accuracy == NO_ACCURACY else "not compared"
        return "too few seeds" if training["parity"] == "insufficient seeds" else "undecided"

    @property
    def points(self) -> str:
        """The difference in accuracy, or in the loss of tokens; the accuracy itself where there is none."""
        training = self.answer.training
        if self.stays or not training or training["train_status"] not in MEASURED or self.accuracy == NO_ACCURACY:
            return ""
        quality = judged_by(training)
        if quality is None:
            return f"{training['accuracy_pct']:.2f} %" if known(training["accuracy_pct"]) else ""
        points = f"{signed(training[quality.change], quality.decimals)} {quality.short}"
        return points + (f", {counted(training['delta_seeds'], 'seed')}" if self.accuracy == "too few seeds" else "")

    @property
    def standing(self) -> str:
        """``good``, ``bad``, ``open`` or empty: whether accuracy supports the advice."""
        if self.answer.trained:  # and not timed
            words = {STANDING[word] for _, word in self.answer.trained}
            return "bad" if "bad" in words else "good"
        if self.accuracy in (UNKNOWN, NOT_TRAINED, NO_ACCURACY):
            return ""
        status = self.answer.training["train_status"]
        return STANDING.get(self.accuracy, "open" if status in MEASURED else "bad")

    @property
    def marks(self) -> list[Mark]:
        """The precisions of its strip."""
        rows = (row for row in self.answer.rows if row["batch_size"] == self.answer.batch)
        return [_mark(row) for row in rows if row["precision"] != BASELINE and known(row["speedup"])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The lines of all answers, by workload, and which columns have anything in them."""

    groups: dict[str, list[Line]]
    columns: list[str]
    reach: float
    """Where the axis of all strips ends."""


def grid(answers: Sequence[Answer]) -> Grid:
    """Return the grid of the answers."""
    lines = [Line(answer) for answer in answers]
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.answer.workload, []).append(line)
    columns = [name for name in ("memory", "energy", "epoch") if any(getattr(line, name) != UNKNOWN for line in lines)]
    marks = [mark for line in lines for mark in line.marks]
    ends = [mark.speedup if mark.high is None else min(mark.high, 2 * mark.speedup) for mark in marks]
    return Grid(groups=groups, columns=columns, reach=max([1.25, *ends]) * 1.05)


def _mark(row: Mapping[Hashable, Any]) -> Mark:
    low, high = (float(row[name]) if known(row[name]) else None for name in ("low", "high"))
    says = f"{row['precision']}: {times(row['speedup'], row['low'], row['high'])}"
    says += f" [{number(row['low'], 3)}, {number(row['high'], 3)}]" if known(row["low"]) else ""
    says += f" · {number(row['step_ms'], 3)} ms a step · {number(row['samples_per_s'])} samples/s"
    return Mark(precision=str(row["precision"]), speedup=float(row["speedup"]), low=low, high=high, says=says)


def terminal(found: Grid) -> list[Table]:
    """Return a table for each suite with what a terminal has room for."""

    def accuracy(line: Line) -> str:
        if line.answer.arm and not line.stays and not known(line.answer.arm["speedup"]):
            return f"{BASELINE} oom"
        return line.answer.accuracy if line.answer.training or line.answer.trained else line.accuracy

    columns = [
        words("device", lambda line: short(line.answer.where)),
        words("use", lambda line: line.use),
        *optional(
            figures("faster", lambda line: f"{line.faster} {line.spread}".rstrip()),
            figures("memory", lambda line: line.memory),
            words("accuracy", accuracy),
        ),
        figures("batch", lambda line: str(line.answer.batch)),
        *optional(figures("energy", lambda line: line.energy)),
    ]
    tables = [table(workload, lines, columns) for workload, lines in found.groups.items()]
    return [rows for rows in tables if rows is not None]
