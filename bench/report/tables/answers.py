"""The answers at a glance: for each suite the precision to use on each device, for the terminal and the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report.analysis.verdict import Answer
from bench.report.format import UNKNOWN
from bench.report.reading.labels import short
from bench.report.tables.table import Table, figures, optional, table, words
from bench.spec.precisions import BASELINE


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The lines of all answers, by workload, and which columns have anything in them."""

    groups: dict[str, list[Answer]]
    columns: list[str]
    reach: float
    """Where the axis of all strips ends."""


def grid(answers: Sequence[Answer]) -> Grid:
    """Return the grid of the answers."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.workload, []).append(answer)
    optional = ("memory", "energy", "epoch")
    columns = [name for name in optional if any(getattr(answer, name) != UNKNOWN for answer in answers)]
    marks = [mark for answer in answers for mark in answer.marks]
    ends = [mark.speedup if mark.high is None else min(mark.high, 2 * mark.speedup) for mark in marks]
    return Grid(groups=groups, columns=columns, reach=max([1.25, *ends]) * 1.05)


def terminal(answers: Grid) -> list[Table]:
    """Return a table for each suite with what a terminal has room for."""
    columns = [
        words("device", lambda answer: short(answer.where)),
        words("use", lambda answer: answer.use),
        *optional(
            figures("faster", lambda answer: f"{answer.faster} {answer.spread}".rstrip()),
            figures("memory", lambda answer: answer.memory),
            words("accuracy", _accuracy),
        ),
        figures("batch", lambda answer: str(answer.batch)),
        *optional(figures("energy", lambda answer: answer.energy)),
    ]
    tables = [table(workload, lines, columns) for workload, lines in answers.groups.items()]
    return [rows for rows in tables if rows is not None]


def _accuracy(answer: Answer) -> str:
    without_fp32 = answer.arm and not answer.stays and not answer.is_timed
    return f"{BASELINE} oom" if without_fp32 else answer.accuracy_in_short
