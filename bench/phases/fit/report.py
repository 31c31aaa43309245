"""The table of the largest batches that fit."""

from __future__ import annotations

import pandas as pd

from bench.report.format import GIB, records
from bench.report.parts import PhaseReport
from bench.report.reading.load import SUBJECT
from bench.report.tables.table import (
    DEVICE,
    EACH_RECIPE,
    PRECISION,
    Entry,
    Table,
    make_table,
    number_column,
    text_column,
    whole,
)
from bench.spec.precisions import BASELINE

ABOUT = (
    "The largest batch of which a few training steps fit, found by doubling and bisection to a "
    "sixteenth of its size, with one precision alone in each process. Bound by memory: the next "
    "larger batch tried ran out of it. Predicted memory: less than a fifth of a CPU's available "
    "memory would have been left. Time: a step was predicted to take too long, so a larger batch "
    "may fit (docs/measuring.md)."
)
COLUMNS = (
    DEVICE,
    PRECISION,
    number_column("largest batch", "batch_size", whole, status="status"),
    number_column("× fp32's", "over_fp32", 3),
    text_column("bound by", "fit_bound"),
    number_column("held at its peak (GiB)", "fit_peak_bytes", 3, per=GIB),
    number_column("free before (GiB)", "fit_free_bytes", 3, per=GIB),
)


def largest_batch(trials: pd.DataFrame, rows: pd.DataFrame) -> Table | None:
    """Return the largest batch of each precision that fits.

    Args:
        trials: all rows of ``Runs.trials``: the batch sizes that were found need not be in the
            summary.
        rows: those of the summary, of the recipes that are shown.
    """
    subjects = rows[[*SUBJECT, "where"]].drop_duplicates()
    tried = trials[trials["phase"] == "fit"].merge(subjects, on=SUBJECT)
    fits = tried["batch_size"].where(tried["status"] == "ok")
    of_fp32 = fits.where(tried["precision"] == BASELINE)
    largest_fp32 = of_fp32.groupby([tried[name] for name in SUBJECT], sort=False).transform("max")
    tried = tried.assign(over_fp32=fits / largest_fp32)
    return make_table("Largest batch", records(tried), COLUMNS, ABOUT)


REPORT = PhaseReport(
    tables=(
        Entry(
            52,
            EACH_RECIPE,
            lambda material: [largest_batch(material.runs.trials, material.rows)],
        ),
    ),
    has_details=True,
)
