"""The table of ratios of setups, each a precision on a device: by the throughput of steps, and by time per epoch."""

from __future__ import annotations

from functools import partial

import pandas as pd

from bench.report.format import known, ratio, records, titled
from bench.report.reading.load import CELL
from bench.report.tables.measurements import at_advised_batch
from bench.report.tables.table import BATCH, Entry, Material, Row, Table, figures, table, words
from bench.spec.metric import Metric
from bench.spec.metrics import EPOCH, THROUGHPUT
from bench.spec.precisions import BASELINE

ABOUT = (
    "Each ratio is how many times as fast its row is as the setup with the column's number: that of their speedups "
    "where they were timed side by side, else that of their figures. None has an interval, and a few per cent between "
    "two boards decide little. Each setup is at the batch size of its advice; at another one its steps are other work."
)
RECIPE_OF = ["suite", "parameters"]
"""Columns in which setups agree, on whatever data and with whatever techniques they ran."""
FEWEST = 3
"""Two setups are in the other tables already."""


def setups(material: Material) -> list[Table | str | None]:
    """Return the matrices of each recipe: by the throughput of steps, and by time per epoch on the same data."""
    matrices = []
    rows = at_advised_batch(material.rows, material.answers)
    for metric, same in ((THROUGHPUT, RECIPE_OF), (EPOCH, [*RECIPE_OF, "data"])):
        for _, alike in rows[rows[metric.figure] > 0].groupby(same, sort=False):
            matrices.append(_matrix(alike, metric))
    return [*matrices, ABOUT if any(matrices) else None]


def _matrix(rows: pd.DataFrame, metric: Metric) -> Table | None:
    """Return the setups of some rows, the fastest first, each over the slower ones."""
    lines = records(rows.sort_values(metric.figure, ascending=metric.better == "less", kind="stable"))
    if len(lines) < FEWEST:
        return None
    several = [name for name in ("techniques", "data") if rows[name].nunique() > 1]
    columns = [words("setup", "name"), BATCH, figures(f"{metric.label} ({metric.unit})", metric.figure)]
    for place, row in enumerate(lines, 1):
        where = titled(row["label"], *(row[name] or f"no {name}" for name in several))
        row |= {"place": place, "name": f"{place}. {where}, {row['precision']}"}
        if place > 1:
            columns.append(figures(f"÷ {place}", partial(_over, metric, row)))
    return table(f"{titled(*(lines[0][name] for name in RECIPE_OF))}: {metric.label}", lines, columns)


def _over(metric: Metric, column: Row, row: Row) -> str:
    """Write how many times as fast a row is as that of a column; nothing where that is not the slower one."""
    if row["place"] >= column["place"]:
        return ""
    gains = [1.0 if each["precision"] == BASELINE else each[metric.change] for each in (row, column)]
    if all(map(known, gains)) and all(row[name] == column[name] for name in CELL):
        return ratio(gains[0] / gains[1])
    return ratio((row[metric.figure] / column[metric.figure]) ** metric.sign)


TABLES = (Entry(20, "Setups against each other", setups),)
