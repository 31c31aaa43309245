"""The speedup matrix: every setup of one recipe (device, how many, precision) over every other."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.batches import reference_batch
from bench.report.analysis.missing import UNSUPPORTED
from bench.report.format import records
from bench.report.reading.labels import placement
from bench.report.reading.load import KEY, SUBJECT
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

RECIPE = ["suite", "parameters"]
UNFIT_FOR_FILES = re.compile(r"[^\w.+=-]+")
"""What a name may hold that a file's name does not."""
STEPS, EPOCHS = "throughput of the step", "time per epoch"
Row = Mapping[Hashable, Any]
"""A row of the summary."""
Shared = Mapping[Hashable, Mapping[Hashable, float]]
"""Of each arm of each cell, indexed by ``KEY``, the logarithms by the process or seed that the cell's arms share."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setup:
    """One device, or several together, at one precision; itself alone is equal to it."""

    name: str
    subject: tuple[object, ...]
    """Values of ``SUBJECT``: setups that share them were measured side by side."""
    precision: str
    batch: int
    figure: float
    """Samples a second, or seconds an epoch."""
    status: str
    logs: tuple[float, ...]
    """Logarithms of its speed: in each fresh process, or for each seed."""
    paired: stats.Interval | None
    """Its speedup over fp32 of the same cell, where the two were measured side by side."""
    beside: Mapping[Hashable, float]
    """Logarithms of its speed by the process or seed that it shared with others of its cell: for steps, over fp32's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Setups, the fastest first, compared by one basis."""

    title: str
    slug: str
    basis: str
    batches: str
    """At which batch sizes, in words."""
    setups: list[Setup]
    absent: list[str]
    """Setups without a figure, each with why; what a device does not support is said once, for the device."""

    def over(self, row: Setup, column: Setup) -> stats.Interval:
        """Return how many times as fast ``row`` is as ``column``, with its 95 % interval where there is one.

        Side by side it is the paired speedup, which drift of the machine is not in: over fp32 that of the summary,
        between two others Student's interval over the differences in each process or seed that they shared. Else it is
        Welch's on the logarithms.
        """
        return _over(row, column)


@functools.lru_cache(maxsize=2**14)
def _over(row: Setup, column: Setup) -> stats.Interval:
    """Return what ``Matrix.over`` does, once for each pair: tables, marks, legends and the CSV all ask for it."""
    same = row.subject == column.subject and row.batch == column.batch
    if row is column:
        return stats.Interval(center=1.0, low=1.0, high=1.0, n=len(row.logs))
    if same and column.precision == BASELINE and row.paired is not None:
        return row.paired
    if same and row.precision == BASELINE and column.paired is not None:
        return column.paired.inverse()
    shared = [key for key in row.beside if key in column.beside] if same else []
    if shared and len(shared) >= min(2, len(row.logs), len(column.logs)):
        return stats.student_interval([row.beside[key] - column.beside[key] for key in shared]).exp()
    return stats.welch_interval(_moments(row.logs), _moments(column.logs)).exp()


@functools.lru_cache(maxsize=1024)
def _moments(logs: tuple[float, ...]) -> stats.Moments:
    """Return the moments of a setup's speeds, which every other setup is compared with."""
    return stats.moments(logs)


def matrices(summary: pd.DataFrame, trials: pd.DataFrame) -> list[Matrix]:
    """Return the matrices of every recipe that several subjects measured: by throughput, and by time per epoch."""
    recipes = enumerate(summary.groupby(RECIPE, sort=False))
    several = [(number, key, rows) for number, (key, rows) in recipes if len(rows[SUBJECT].drop_duplicates()) > 1]
    gains, times = (_gains(trials), _times(trials)) if several else ({}, {})
    found = []
    for number, key, rows in several:
        title = f"{key[0]} ({key[1]})" if key[1] else str(key[0])
        name = UNFIT_FOR_FILES.sub("-", str(key[0]))[:80]
        slug = f"matrix-{name}-{number}" if key[1] or name != key[0] else f"matrix-{name}"
        found += [_by_step(title, slug, rows, gains), _by_epoch(title, slug, rows, times)]
    return [matrix for matrix in found if matrix is not None]


def _by_step(title: str, slug: str, rows: pd.DataFrame, gains: Shared) -> Matrix | None:
    def setup(row: Row) -> dict[str, Any]:
        beside = gains.get(tuple(row[column] for column in KEY), {})
        return {"logs": tuple(np.log(row["paces"])), "beside": beside}

    chosen, batches = _at_batch(rows, "samples_per_s", "speed_status")
    setups, absent = _setups(chosen, "samples_per_s", "speed_status", ("speedup", "low", "high"), setup)
    return _ordered(Matrix(title=title, slug=slug, basis=STEPS, batches=batches, setups=setups, absent=absent))


def _by_epoch(title: str, slug: str, rows: pd.DataFrame, times: Shared) -> Matrix | None:
    """Compare training; only on the same data, and the same number of samples, is an epoch the same work."""
    trained = rows[rows["train_status"].notna()]
    if trained.empty:
        return None

    def setup(row: Row) -> dict[str, Any]:
        beside = times[tuple(row[column] for column in KEY)]
        return {"logs": tuple(beside.values()), "beside": beside}

    most = trained.groupby("data", sort=False)["run"].nunique().idxmax()
    chosen, batches = _at_batch(trained[trained["data"] == most], "time_per_epoch_s", "train_status")
    speedup = ("epoch_speedup", "epoch_low", "epoch_high")
    setups, absent = _setups(chosen, "time_per_epoch_s", "train_status", speedup, setup)
    absent += [f"what was trained on {data}" for data in trained["data"].unique() if data != most]
    slug = f"{slug}-epochs"
    return _ordered(Matrix(title=title, slug=slug, basis=EPOCHS, batches=batches, setups=setups, absent=absent))


def _setups(
    rows: pd.DataFrame, figure: str, status: str, speedup: tuple[str, str, str], setup: Callable[[Row], dict[str, Any]]
) -> tuple[list[Setup], list[str]]:
    """Return the setups of rows that have a figure, and the others that could have one, each with its status.

    Args:
        rows: rows of the summary.
        figure: the column of the figure.
        status: the column of its status.
        speedup: the columns of its speedup over fp32, with the interval.
        setup: returns the logarithms of a row.
    """
    setups, absent = [], []
    for name, row in zip(_names(rows), records(rows), strict=True):
        if not row[figure] > 0:
            absent += [f"{name} ({row[status]})"] if row[status] != UNSUPPORTED else []
            continue
        setups.append(
            Setup(
                name=name,
                subject=tuple(row[column] for column in SUBJECT),
                precision=row["precision"],
                batch=int(row["batch_size"]),
                figure=row[figure],
                status=row[status],
                paired=_paired(*(row[column] for column in speedup)),
                **setup(row),
            )
        )
    return setups, absent


def _gains(trials: pd.DataFrame) -> Shared:
    """Return the logarithms of speedups over fp32, by trial."""
    timed = trials[(trials["phase"] == "speed") & trials["status"].isin(MEASURED) & trials["speedup"].gt(0)]
    return _shared(timed, "trial", np.log(timed["speedup"]))


def _times(trials: pd.DataFrame) -> Shared:
    """Return the logarithms of epochs a second, by seed."""
    usable = trials[(trials["phase"] == "train") & trials["status"].isin(MEASURED) & trials["time_per_epoch_s"].gt(0)]
    return _shared(usable, "seed", -np.log(usable["time_per_epoch_s"]))


def _shared(rows: pd.DataFrame, by: str, logs: pd.Series) -> Shared:
    """Return the logarithms of each arm of each cell, indexed by ``KEY``, by what the arms of a cell share."""
    groups = rows[[*KEY, by]].assign(log=logs).groupby(KEY, sort=False)
    return {key: dict(zip(group[by], group["log"], strict=True)) for key, group in groups}


def _ordered(matrix: Matrix) -> Matrix | None:
    """Put the fastest first; None where there are not two subjects to compare."""
    if len({setup.subject for setup in matrix.setups}) < 2:
        return None
    return replace(matrix, setups=sorted(matrix.setups, key=lambda setup: -float(np.mean(setup.logs))))


def _at_batch(rows: pd.DataFrame, figure: str, status: str) -> tuple[pd.DataFrame, str]:
    """Keep of each subject the rows of one batch size: the one that most have; where a subject has not, its verdict's.

    Of sizes that as many have, it is the one of most verdicts, then the largest.
    """
    tried = rows[rows[status].notna()]
    timed = tried[tried[figure].notna()]
    sizes = [set(group["batch_size"]) for _, group in timed.groupby(SUBJECT, sort=False)]
    references = [reference_batch(group) for _, group in timed.groupby(SUBJECT, sort=False)]
    counts = Counter(size for found in sizes for size in found)
    most = max(counts, key=lambda size: (counts[size], references.count(int(size)), size), default=0.0)
    common = most if counts[most] > 1 else None
    kept = []
    for _, group in tried.groupby(SUBJECT, sort=False):
        found = group[group[figure].notna()]
        has = ((group if found.empty else found)["batch_size"] == common).any()
        kept.append(group[group["batch_size"] == (common if has else reference_batch(group))])
    chosen = pd.concat(kept) if kept else tried
    if common is None:
        return chosen, "each at the batch size of its verdict, for no two have one in common"
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
        suffix = f" ({', '.join(more)})" if more else ""
        names.append(f"{row['device']}{suffix}, {row['precision']}")
    return names


def _paired(center: float, low: float, high: float) -> stats.Interval | None:
    if not center > 0:
        return None
    ends = [None if math.isnan(end) else end for end in (low, high)]
    return stats.Interval(center=center, low=ends[0], high=ends[1], n=0)
