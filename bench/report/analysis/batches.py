"""Batch sizes: the speedup at one batch beside that of each precision at its own best, and what fits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.contrast import estimate
from bench.report.format import ratio, records
from bench.report.reading.load import SUBJECT
from bench.spec.metrics import THROUGHPUT
from bench.spec.precisions import BASELINE

Row = Mapping[Hashable, Any]
RATED = ["precision", "batch_size", "samples_per_s", THROUGHPUT.arm]
"""Columns of the summary that a best-batch speedup rests on."""


class BestBatch(NamedTuple):
    """A precision at its own best batch against fp32 at its own."""

    fp32: int
    """fp32's best batch size."""
    own: int
    interval: stats.Interval
    """Of the ratio of throughputs."""

    def __str__(self) -> str:
        return ratio(self.interval.center, self.interval.low, self.interval.high)


def reference_batch(rows: pd.DataFrame) -> int:
    """Choose the batch size that a subject is judged at: the one trained with, else the largest with a speedup."""
    sizes = rows["batch_size"].to_numpy()
    compared, trained, timed = (rows[name].notna().to_numpy() for name in ("speedup", "train_status", "step_ms"))
    both = compared & np.isin(sizes, sizes[trained])
    for choice in (both, compared, trained, timed, np.ones_like(timed)):
        if choice.any():
            return int(sizes[choice].max())
    raise ValueError("a subject has at least one row")


def best_rows(rows: pd.DataFrame, by: Sequence[str] = (*SUBJECT, "precision")) -> pd.DataFrame:
    """Return of each subject's precision the row of the batch size at which its throughput was highest.

    Args:
        rows: rows of the summary.
        by: what tells the subjects and precisions apart that are in ``rows``.
    """
    timed = rows[rows["samples_per_s"].notna()]
    best: pd.DataFrame = timed.loc[timed.groupby(list(by), sort=False)["samples_per_s"].idxmax()]
    return best


def over(row: Row, other: Row) -> stats.Interval:
    """Return the ratio of two precisions' throughputs, with its interval where there is one."""
    contrast = estimate(THROUGHPUT, row[THROUGHPUT.arm], other[THROUGHPUT.arm])
    assert contrast is not None  # throughput has nothing that both sides must agree in
    return contrast.gain


def best_speedups(rows: pd.DataFrame) -> dict[str, BestBatch]:
    """Return each precision's best-batch speedup, by name; empty without fp32, or where one batch size was timed.

    Args:
        rows: rows of the summary, of one subject.
    """
    if rows.loc[rows["samples_per_s"].notna(), "batch_size"].nunique() < 2:
        return {}
    best = {str(row["precision"]): row for row in records(best_rows(rows[RATED], ["precision"]))}
    fp32 = best.pop(BASELINE, None)
    if fp32 is None:
        return {}
    return {
        name: BestBatch(int(fp32["batch_size"]), int(row["batch_size"]), over(row, fp32)) for name, row in best.items()
    }


def largest(trials: pd.DataFrame, rows: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Return the trial that found the largest batch of each precision, with ``where`` and ``over_fp32``, its ratio.

    Args:
        trials: rows of trials.csv, of one workload.
        rows: rows of the summary, of the same workload.
    """
    found = trials[trials["phase"] == "fit"].merge(rows[[*SUBJECT, "where"]].drop_duplicates(), on=SUBJECT)
    lines: list[dict[Hashable, Any]] = []
    for _, subject in found.groupby(SUBJECT, sort=False):
        fits = subject["status"] == "ok"
        fp32 = subject.loc[fits & (subject["precision"] == BASELINE), "batch_size"].max()
        lines += records(subject.assign(over_fp32=(subject["batch_size"] / fp32).where(fits)))
    return lines
