"""The table of ratios of setups, each a precision on a device: by the throughput of steps, and by time per epoch."""

from __future__ import annotations

from functools import partial

import pandas as pd

from bench.report.analysis.summary import reference_batch
from bench.report.format import known, ratio, records, titled
from bench.report.reading.load import CELL, SUBJECT
from bench.report.tables.table import BATCH, Entry, Material, Row, Table, figures, table, words
from bench.spec.metric import Metric
from bench.spec.metrics import EPOCH, THROUGHPUT
from bench.spec.precisions import BASELINE

ABOUT = (
    "Each ratio is how many times as fast its row is as the setup with the column's number: that of their speedups "
    "where they were timed side by side, else that of their figures. None has an interval, and a few per cent between "
    "two boards decide little. All setups are at the batch size that most devices measured; a device without it is at "
    "that of its verdict, and its steps are other work."
)
RECIPE_OF = ["suite", "parameters"]
"""Columns in which setups agree, on whatever data and with whatever techniques they ran."""
FEWEST = 3
"""Two setups are in the other tables already."""


def setups(material: Material) -> list[Table | str | None]:
    """Return the matrices of each recipe: by the throughput of steps, and by time per epoch on the same data."""
    matrices = []
    for metric, same in ((THROUGHPUT, RECIPE_OF), (EPOCH, [*RECIPE_OF, "data"])):
        measured = material.rows[material.rows[metric.figure] > 0]
        for _, alike in measured.groupby(same, sort=False):
            matrices.append(_matrix(alike, metric))
    return [*matrices, ABOUT if any(matrices) else None]


def _matrix(rows: pd.DataFrame, metric: Metric) -> Table | None:
    """Return the setups of some rows, the fastest first, each over the slower ones."""
    lines = records(_at_one_batch(rows).sort_values(metric.figure, ascending=metric.better == "less", kind="stable"))
    if len(lines) < FEWEST:
        return None
    several = [name for name in ("techniques", "data") if len({row[name] for row in lines}) > 1]
    for place, row in enumerate(lines):
        where = titled(row["label"], *(row[name] or f"no {name}" for name in several))
        row |= {"place": place, "name": f"{place + 1}. {where}, {row['precision']}"}
    columns = [words("setup", "name"), BATCH, figures(f"{metric.label} ({metric.unit})", metric.figure)]
    for place, other in enumerate(lines[1:], 2):
        columns.append(figures(f"÷ {place}", partial(_over, metric, other)))
    return table(f"{titled(*(lines[0][name] for name in RECIPE_OF))}: {metric.label}", lines, columns)


def _at_one_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each subject at the batch size of most of them, or else at that of its verdict.

    Published rows without a batch size are all there.
    """
    chosen = [rows[rows["batch_size"].isna()]]
    subjects = [subject for _, subject in rows[rows["batch_size"].notna()].groupby(SUBJECT, sort=False)]
    sizes: list[float] = []
    for subject in subjects:
        sizes += subject["batch_size"].unique().tolist()
    common = max(sizes, key=lambda size: (sizes.count(size), size), default=None)
    for subject in subjects:
        size = common if common in set(subject["batch_size"]) else reference_batch(subject)
        chosen.append(subject[subject["batch_size"] == size])
    return pd.concat(chosen)


def _over(metric: Metric, column: Row, row: Row) -> str:
    """Write how many times as fast a row is as that of a column; nothing where that is not the slower one."""
    if row["place"] >= column["place"]:
        return ""
    gains = [1.0 if each["precision"] == BASELINE else each[metric.change] for each in (row, column)]
    if all(map(known, gains)) and all(row[name] == column[name] for name in CELL):
        return ratio(gains[0] / gains[1])
    return ratio((row[metric.figure] / column[metric.figure]) ** metric.sign)


TABLES = (Entry(20, "Setups against each other", setups),)
