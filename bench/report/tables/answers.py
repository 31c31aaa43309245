"""The answers at a glance: for each suite what to use on which device, as the terminal shows them after a run."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.report.analysis.verdict import Answer
from bench.report.format import UNKNOWN, change, known, spread, times
from bench.report.tables.table import LOG_WIDTH
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from rich.table import Table

VENDOR = re.compile(r"^(NVIDIA|Tesla|AMD Instinct|Intel\(R\)) ")
"""Left out of a device's name: what follows tells devices apart."""
HEADERS = ("use", "faster", "memory", "accuracy", "batch", "energy")
"""In the order of their worth: where the terminal is narrow, the last ones are left out."""


def row(answer: Answer) -> tuple[str, ...]:
    """Return the cells of an answer, in the order of ``HEADERS``."""
    arm = answer.arm
    if not arm:
        return (answer.advice, *(UNKNOWN for _ in HEADERS[1:4]), str(answer.batch), UNKNOWN)
    if answer.precision == BASELINE:
        rival = f"{arm['precision']} {times(arm['speedup'], arm['low'], arm['high'])}"
        return (BASELINE, rival, UNKNOWN, UNKNOWN, str(answer.batch), UNKNOWN)
    faster = UNKNOWN
    if known(arm["speedup"]):
        faster = times(arm["speedup"], arm["low"], arm["high"])
        faster += f" {spread(arm['low'], arm['high'])}" if known(arm["low"]) else ""
    accuracy = answer.accuracy if known(arm["speedup"]) else f"{BASELINE} oom"
    return (
        str(answer.precision),
        faster,
        change(arm["memory_change"]),
        accuracy,
        str(answer.batch),
        change(arm["energy_change"]),
    )


def tables(answers: Sequence[Answer], width: int) -> list[Table]:
    """Return a table for each suite, no wider than ``width`` characters where leaving out columns can bring that."""
    from rich.console import Console

    console = Console(width=10_000)  # a narrow one measures no wider than itself
    found = []
    for workload in dict.fromkeys(answer.workload for answer in answers):
        rows = [(answer.where, *row(answer)) for answer in answers if answer.workload == workload]
        shown = [index for index in range(len(HEADERS)) if any(cells[index + 1] != UNKNOWN for cells in rows)]
        while len(shown) > 2 and console.measure(_grid(workload, rows, shown)).maximum > width:
            shown.pop()
        found.append(_grid(workload, rows, shown))
    return found


def _grid(workload: str, rows: Sequence[tuple[str, ...]], shown: Sequence[int]) -> Table:
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
        grid.add_row(Text(VENDOR.sub("", cells[0])), *(Text(cells[index + 1]) for index in shown))
    return grid


def show(answers: Sequence[Answer]) -> None:
    """Print the answers as tables that fit the terminal."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    for table in tables(answers, console.width):
        console.print(table)
