"""Two runs of the same questions, row by row."""

from __future__ import annotations

from typing import Any

from bench.report.tables.table import ARM, Table, figures, table, words


def comparison(rows: list[dict[str, Any]]) -> Table:
    """Return the table of a comparison.

    Args:
        rows: those of ``analysis.compare.Comparison``; at least one.
    """
    columns = [
        words("suite", "suite"),
        *ARM,
        figures("step time [95 % interval]", "step"),
        words("verdict", "verdict"),
        figures("peak memory", "memory"),
        figures("speedup over fp32 [95 % interval]", "speedup"),
    ]
    about = (
        "All figures are NEW ÷ OLD. The verdict is of the step: FASTER or SLOWER where Welch's 95 % interval over "
        "fresh processes clears the A/A noise, SAME where it lies within 1 %, INCONCLUSIVE otherwise, or where either "
        "run has one process. Peaks of memory are not told apart where two processes on a CPU differ by as much anyway."
    )
    made = table("NEW against OLD", rows, columns, about)
    assert made is not None
    return made
