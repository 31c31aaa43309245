"""The table of runs against earlier runs: a verdict and a change for each metric of each row."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.analysis.compare import Overall, Row
from bench.report.format import estimate
from bench.report.tables.table import Column, Table, figures, optional, table, whole, words
from bench.spec.metrics import SPEED, Metric, compared


def comparison(rows: Sequence[Row]) -> Table:
    """Return the table of runs against earlier ones, of the rows of ``analysis.compare.Comparison``."""
    columns = [
        words("suite", lambda row: row.suite),
        words("device", lambda row: row.where),
        figures("batch size", lambda row: row.question["batch_size"], whole),
        words("precision", lambda row: row.question["precision"]),
        *(column for metric in compared() for column in _change(metric)),
        *optional(figures("speedup over fp32 [95 % interval]", lambda row: row.speedup and estimate(row.speedup))),
    ]
    margins = "; ".join(f"{metric.name}: {metric.tolerance}" for metric in compared() if not metric.has_noise)
    about = (
        "Figures are NEW ÷ OLD, of accuracy and loss NEW − OLD. REGRESSED and IMPROVED: the 95 % interval clears the "
        f"A/A noise ({margins}), and so clearly that at most 5 % of such verdicts in this table are expected to be "
        "chance. SAME: the interval lies within 1 %, or those margins. INCONCLUSIVE: neither, or too few samples: two "
        "processes in both, for energy two trials, for accuracy and loss five seeds. Intervals are Welch's over "
        "processes, and Student's over the seeds that both have. A peak of memory is exact on a GPU; two processes on "
        "a CPU differ by up to 5 MiB."
    )
    found = table("NEW against OLD", rows, columns, about)
    assert found is not None
    return found


def _change(metric: Metric) -> list[Column]:
    """Return the columns of a metric's verdict and of its change."""

    def verdict(row: Row) -> str | None:
        return row.changes[metric.name].verdict if metric.name in row.changes else None

    def change(row: Row) -> str | None:
        return str(row.changes[metric.name]) if metric.name in row.changes else None

    return optional(words(metric.name, verdict), figures(metric.header, change))


def overall(found: Sequence[Overall]) -> Table | None:
    """Return the table of the speed over all rows of a recipe on a device; None where none has two."""
    columns = [
        words("recipe and device", "name"),
        figures("rows", "rows", whole),
        words("speed", "verdict"),
        figures(SPEED.header, "change"),
    ]
    rows = [
        {"name": one.name, "rows": one.rows, "verdict": one.change.verdict, "change": str(one.change)} for one in found
    ]
    about = "The mean over all rows: what slows all of them shows here sooner than in each."
    return table("All rows together", rows, columns, about)
