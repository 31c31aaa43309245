"""The speedup matrix: every setup of one recipe (device, how many, precision) over every other."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.contrast import Arm, estimate
from bench.report.analysis.summary import UNSUPPORTED, reference_batch
from bench.report.format import records, titled
from bench.report.reading.labels import free, placement
from bench.report.reading.load import SUBJECT
from bench.results.columns import listed
from bench.spec.metrics import EPOCH, METRICS, THROUGHPUT, Metric

RECIPE = ["suite", "parameters"]
UNFIT_FOR_FILES = re.compile(r"[^\w.+=-]+")
"""Characters that the name of a file must not have."""
STEPS, EPOCHS = "throughput of the step", "time per epoch"
Row = Mapping[Hashable, Any]
"""A row of the summary."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setup:
    """One device, or several together, at one precision; itself alone is equal to it."""

    name: str
    batch: int
    arm: Arm


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Setups, the fastest first, compared by one basis."""

    title: str
    slug: str
    basis: str
    metric: Metric
    batches: str
    """At which batch sizes, in words."""
    setups: list[Setup]
    absent: list[str]
    """Setups without a figure, each with why; what a device does not support is said once, for the device."""

    def over(self, row: Setup, column: Setup) -> stats.Interval:
        """Return how many times as fast ``row`` is as ``column``, with its 95 % interval where there is one."""
        return _over(self.metric.name, row.arm, column.arm)


@functools.lru_cache(maxsize=2**14)
def _over(metric: str, row: Arm, column: Arm) -> stats.Interval:
    """Return what ``Matrix.over`` does, once for each pair: tables, marks, legends and the CSV all ask for it."""
    if row is column:
        return stats.Interval(center=1.0, low=1.0, high=1.0, n=len(row.values))
    contrast = estimate(METRICS[metric], row, column)
    assert contrast is not None  # neither metric has anything that both sides must agree in
    return contrast.gain


def matrices(summary: pd.DataFrame) -> list[Matrix]:
    """Return the matrices of every recipe that several subjects measured: by throughput, and by time per epoch.

    Only on the same data, and the same number of samples, is an epoch the same work.
    """
    of_recipes, taken = [], set[str]()
    for number, (key, rows) in enumerate(summary.groupby(RECIPE, sort=False)):
        title = titled(*key)
        name = UNFIT_FOR_FILES.sub("-", str(key[0]))[:80]
        slug = free(f"matrix-{name}-{number}" if key[1] or name != key[0] else f"matrix-{name}", taken)
        taken.add(slug)
        of_recipes.append(_matrix(rows, THROUGHPUT, title=title, slug=slug, basis=STEPS))
        trained = rows[rows["train_status"].notna()]
        runs = trained.groupby("data", sort=False)["run"].nunique()
        most = runs.idxmax() if len(runs) else ""
        others = [f"what was trained on {data}" for data in runs.index if data != most]
        alike, epochs = trained[trained["data"] == most], f"{slug}-epochs"
        of_recipes.append(_matrix(alike, EPOCH, title=title, slug=epochs, basis=EPOCHS, absent=others))
    return [matrix for matrix in of_recipes if matrix is not None]


def _matrix(
    rows: pd.DataFrame, metric: Metric, *, title: str, slug: str, basis: str, absent: Sequence[str] = ()
) -> Matrix | None:
    """Compare the setups of rows that have a metric's figure, the fastest first; None where two subjects have none.

    Of the others that could have one, tell the status.
    """
    if len(rows[SUBJECT].drop_duplicates()) < 2:
        return None
    chosen, batches = _at_batch(rows, metric.figure, metric.status)
    setups, without = [], []
    for name, row in zip(_names(chosen), records(chosen), strict=True):
        if row[metric.figure] > 0:
            setups.append(Setup(name=name, batch=int(row["batch_size"]), arm=row[metric.arm]))
        elif row[metric.status] != UNSUPPORTED:
            without.append(f"{name} ({row[metric.status]})")
    if len({setup.arm.key[: len(SUBJECT)] for setup in setups}) < 2:
        return None
    setups.sort(key=lambda setup: -float(np.mean(setup.arm.additive(metric))))
    every = [*without, *absent]
    return Matrix(title=title, slug=slug, basis=basis, metric=metric, batches=batches, setups=setups, absent=every)


def _at_batch(rows: pd.DataFrame, figure: str, status: str) -> tuple[pd.DataFrame, str]:
    """Keep of each subject the rows of one batch size: the one that most have; where a subject has not, its verdict's.

    Of sizes that as many have, it is the one of most verdicts, then the largest.
    """
    tried = rows[rows[status].notna()]
    timed = tried[tried[figure].notna()]
    sizes = [set(group["batch_size"]) for _, group in timed.groupby(SUBJECT, sort=False)]
    references = [reference_batch(group) for _, group in timed.groupby(SUBJECT, sort=False)]
    counts = Counter(size for of_subject in sizes for size in of_subject)
    most = max(counts, key=lambda size: (counts[size], references.count(int(size)), size), default=0.0)
    common = most if counts[most] > 1 else None
    kept = []
    for _, group in tried.groupby(SUBJECT, sort=False):
        timed_here = group[group[figure].notna()]
        has = ((group if timed_here.empty else timed_here)["batch_size"] == common).any()
        kept.append(group[group["batch_size"] == (common if has else reference_batch(group))])
    chosen = pd.concat(kept) if kept else tried
    if common is None:
        return chosen, "each at the batch size of its verdict, because no two share a batch size"
    every = (chosen["batch_size"] == common).all()
    return chosen, f"at batch {common:.0f}" + ("" if every else ", but for those that were not measured at it")


def _names(rows: pd.DataFrame) -> list[str]:
    """Name setups by device, which tells how many, and precision, and by whatever else tells them apart."""
    runs = rows.groupby("device", sort=False)["run"].transform("nunique") > 1
    placements = rows.groupby(["device", "run"], sort=False)["placement"].transform("nunique") > 1
    placements |= (rows["device_kind"] == "cpu") & rows["members"].map(lambda cell: len(listed(cell)) > 1)
    varied = {name: rows[name].nunique() > 1 for name in ("techniques", "batch_size", "data")}
    names = []
    for at, row in zip(rows.index, records(rows), strict=True):
        more = [placement(str(row["placement"]))] if placements[at] else []
        more += [f"run {row['run']}"] if runs[at] else []
        more += [row["techniques"] or "no techniques"] if varied["techniques"] else []
        more += [f"batch {row['batch_size']:.0f}"] if varied["batch_size"] else []
        more += [row["data"]] if varied["data"] else []
        names.append(f"{titled(row['device'], *more)}, {row['precision']}")
    return names
