"""The matrix of setups: a device, or several together, at one precision, each against every other of its recipe."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from bench.report.analysis.comparability import RECIPE
from bench.report.analysis.summary import over, reference_batch
from bench.report.format import estimate, records, titled
from bench.report.reading.load import SUBJECT
from bench.report.tables.table import BATCH, Entry, Material, Row, Table, figures, table, words
from bench.spec.metrics import EPOCH, THROUGHPUT, Metric

ABOUT = (
    "Each ratio is how many times as fast its row is as the setup with the column's number. Between precisions timed "
    "side by side its interval is the paired one, else Welch's over the processes or seeds of each, which holds for "
    "these boards alone; one process has none. All setups are at the batch size that most devices measured; a device "
    "without it is at that of its verdict, and its steps are other work."
)
FEWEST = 3
"""Two setups are in the other tables already."""


def setups(material: Material) -> list[Table | str | None]:
    """Return the matrices of each recipe: by the throughput of steps, and by time per epoch on the same data."""
    matrices = [
        _matrix(rows, metric)
        for metric, same in ((THROUGHPUT, RECIPE), (EPOCH, [*RECIPE, "data"]))
        for _, rows in material.rows[material.rows[metric.figure] > 0].groupby(same, sort=False)
    ]
    return [*matrices, ABOUT if any(matrices) else None]


def _matrix(rows: pd.DataFrame, metric: Metric) -> Table | None:
    """Return the setups of some rows, the fastest first, each over the slower ones."""
    lines = _at_one_batch(rows)
    if len(lines) < FEWEST:
        return None
    lines.sort(key=lambda row: -float(np.mean(row[metric.arm].additive(metric))))
    several = [name for name in ("techniques", "data") if len({row[name] for row in lines}) > 1]
    for place, row in enumerate(lines):
        where = titled(row["label"], *(row[name] or f"no {name}" for name in several))
        row |= {"place": place, "name": f"{place + 1}. {where}, {row['precision']}"}
    columns = [
        words("setup", "name"),
        BATCH,
        figures(f"{metric.label} ({metric.unit})", metric.figure),
        *(figures(f"÷ {place}", partial(_over, metric, other)) for place, other in enumerate(lines[1:], 2)),
    ]
    return table(f"{titled(*(lines[0][name] for name in RECIPE))}: {metric.label}", lines, columns)


def _at_one_batch(rows: pd.DataFrame) -> list[Row]:
    """Return each subject's rows at the batch size of most subjects, then of most verdicts; else at its verdict's."""
    subjects = [group for _, group in rows.groupby(SUBJECT, sort=False)]
    verdicts = [reference_batch(group) for group in subjects]
    measured = [size for group in subjects for size in group["batch_size"].unique()]
    common = max(measured, key=lambda size: (measured.count(size), verdicts.count(size), size))
    chosen = [
        group[group["batch_size"] == (common if common in set(group["batch_size"]) else verdict)]
        for group, verdict in zip(subjects, verdicts, strict=True)
    ]
    return records(pd.concat(chosen))


def _over(metric: Metric, column: Row, row: Row) -> str:
    return estimate(over(row, column, metric)) if row["place"] < column["place"] else ""


TABLES = (Entry(20, "Setups against each other", setups),)
