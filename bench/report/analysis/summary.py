"""Summary of trials: one row for each precision of a cell, with the figures of all phases."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import Any, Literal

import pandas as pd

from bench import stats
from bench.report.analysis.arms import ARM_NUMBER, CELL_NUMBER, Arm, arms, numbered
from bench.report.analysis.changes import Contrast, contrasts, estimate, intervals
from bench.report.analysis.doubts import doubts
from bench.report.format import records
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, KEY, SUBJECT
from bench.results.records import MEASURED
from bench.spec.generations import generation_rank
from bench.spec.metric import Metric
from bench.spec.metrics import METRICS, SPEED, THROUGHPUT
from bench.spec.optional import definitions
from bench.spec.phase import Phase
from bench.spec.phases import MEASURING
from bench.spec.precisions import (
    BASELINE,
    IEEE_ERROR,
    precision_rank,
    unexpected_types_in_words,
)

# Settings of the fp32 switches under which factors are rounded before they are multiplied.
ROUNDED = ("tf32", "bf16")
# The statuses of the phases that advice rests on. Of optional phases an arm may have others, with
# which alone it has no row in tables. Where one status stands for the arm, it is the first that is
# set.
CORE_STATUSES = ["speed_status", "memory_status", "train_status"]
UNSUPPORTED = "unsupported"
# The columns by which tables are ordered.
ORDER = [
    "suite",
    "parameters",
    "techniques",
    "data",
    "generation",
    "architecture",
    "device",
    "run",
    "placement",
    "batch_size",
    "rank",
]


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each precision of each cell, ordered as tables show them.

    As well as the columns of ``KEY`` and the names of ``labels.subjects`` it has

    - of each phase its status, how many of its trials were lost, and the columns of
      ``Phase.summarised``,
    - of each metric its figure, its change from fp32 with the interval, and what each arm measured
      (``Metric.arm``),
    - the columns that ``add`` of a phase's summary.py adds,
    - ``other_types``, in words the types that its precision does not allow, ``fp32_strayed``, the
      same of the fp32 that it is compared with, and ``doubts``, the names of the doubts about it.
    """
    trials = numbered(trials)
    firsts = trials.drop_duplicates(ARM_NUMBER).set_index(ARM_NUMBER)
    table = firsts[[CELL_NUMBER, *KEY, "unfinished"]]
    parts: list[Any] = [_of_phase(trials, phase) for phase in MEASURING.values()]
    changes = {}
    for metric in METRICS.values():
        measured = arms(trials, metric)
        changes[metric] = contrasts(metric, measured)
        parts.append(_of_metric(metric, measured, changes[metric]))
    # The copy is not in many fragments, of which pandas would warn the user.
    table = table.join(parts).copy()
    lost = [f"lost_{name}" for name in MEASURING]
    table[lost] = table[lost].fillna(0)
    for add in definitions("summary", "add"):
        table = add(table, trials, changes)
    types = other_types(trials)
    of_arms = trials.assign(other_types=types).groupby(ARM_NUMBER, sort=False)
    table["matmul_error"] = of_arms["matmul_error"].max()
    table["other_types"] = of_arms["other_types"].first()
    table = table.merge(subjects(trials), on=SUBJECT, how="left")
    of_fp32 = table["other_types"].where(table["precision"] == BASELINE)
    table["fp32_strayed"] = _spread(of_fp32, table, SUBJECT, "first")
    table["in_common"] = _in_common(table)
    ranks = {name: precision_rank(name) for name in table["precision"].unique()}
    table["rank"] = table["precision"].map(ranks)
    table["generation"] = table["architecture"].map(generation_rank)
    table["doubts"] = [doubts(row) for row in records(table)]
    table = table.sort_values(ORDER, kind="stable", ignore_index=True)
    return table.drop(columns=CELL_NUMBER)


def _spread(
    values: pd.Series, rows: pd.DataFrame, names: list[str], how: Literal["any", "first", "nunique"]
) -> pd.Series:
    """Give each row what the values of its group, by columns of ``rows``, come to."""
    groups = values.groupby([rows[name] for name in names], sort=False, dropna=False)
    return groups.transform(how)


def _of_phase(trials: pd.DataFrame, phase: Phase) -> pd.DataFrame:
    """Return what a phase says of each arm of ``numbered`` trials, by its number."""
    rows = trials[trials["phase"] == phase.name]
    is_measured = rows["status"].isin(MEASURED)
    table = _status_of(rows).to_frame(f"{phase.name}_status")
    table[f"lost_{phase.name}"] = _lost(rows).groupby(ARM_NUMBER).size()
    measured_arms = rows[is_measured].groupby(ARM_NUMBER, sort=False)
    return table.join(measured_arms.agg(dict(phase.summarised)))


def _status_of(rows: pd.DataFrame) -> pd.Series:
    """Return one word for each arm of a phase's rows, by its number.

    Where anything was measured it is ``ok``, or ``unconverged`` if any was; otherwise the last
    trial's own word.
    """
    ranks = rows["status"].map({"ok": 1, "unconverged": 2}).fillna(0)
    ranked = rows[[ARM_NUMBER, "status"]].assign(rank=ranks)
    ordered = ranked.sort_values("rank", kind="stable")
    return ordered.groupby(ARM_NUMBER, sort=False)["status"].last()


def _lost(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a phase that do not count, one for each arm, process and seed.

    An arm that did not fit in memory together with others, and was then measured alone, has lost
    nothing.
    """
    trial = [ARM_NUMBER, "replicate", "seed"]
    is_measured = rows["status"].isin(MEASURED)
    is_measured_later = _spread(is_measured, rows, trial, "any").astype(bool)
    did_not_fit_at_first = rows["status"].eq("oom") & is_measured_later
    lost = rows[~is_measured & ~did_not_fit_at_first]
    return lost.drop_duplicates(trial)


def _of_metric(
    metric: Metric, measured: Mapping[int, Arm], changes: Mapping[int, Contrast]
) -> pd.DataFrame:
    """Return each arm's figure of a metric, its change from fp32, and the arm, by its number."""
    figures = {number: arm.figure(metric) for number, arm in measured.items()}
    table = pd.Series(figures, dtype=float).to_frame(metric.figure)
    table[metric.arm] = pd.Series(dict(measured), dtype=object)
    # The speedups are judged together, see bench/phases/speed/summary.py.
    if metric in (SPEED, THROUGHPUT):
        return table
    reported = intervals(changes, metric.changes, attrgetter("reported"))
    return table.join(reported, how="outer")


def other_types(trials: pd.DataFrame) -> pd.Series:
    """Return in words which products of each row ran in another type than its precision's.

    They are those that a step was seen to compute, and of fp32 all where its switches or a probed
    product say so. Without any it is None.
    """
    columns = trials[["precision", "compute_dtypes", "other_modules"]]
    seen = [unexpected_types_in_words(*row) or None for row in columns.itertuples(index=False)]
    words = pd.Series(seen, trials.index, dtype=object)
    switches = trials[["fp32_matmul", "fp32_conv", "fp32_rnn"]]
    is_switched = switches.isin(ROUNDED).any(axis=1)
    is_inexact = trials["matmul_error"] > IEEE_ERROR
    is_rounded = (trials["precision"] == BASELINE) & (is_switched | is_inexact)
    return words.mask(words.isna() & is_rounded, "rounded its products to TF32 or less")


def without_unsupported(summary: pd.DataFrame) -> pd.DataFrame:
    """Leave out rows that are ``unsupported`` in all that was tried, if their cell has others.

    ``tables.diagnostics.not_measured`` says what they were.
    """
    statuses = summary[CORE_STATUSES]
    refused = statuses == UNSUPPORTED
    refused_or_untried = refused | statuses.isna()
    is_unsupported = refused.any(axis=1) & refused_or_untried.all(axis=1)
    has_others = _spread(~is_unsupported, summary, CELL, "any")
    return summary[~(is_unsupported & has_others)]


# Batch sizes: the speedup at one batch next to that of each precision at its own best, and what
# fits.


def _in_common(table: pd.DataFrame) -> pd.Series:
    """Return whether all devices with speeds of a row's workload have one at its batch size."""
    devices = table["where"].where(table["speedup"].notna())
    at_size = _spread(devices, table, ["workload", "batch_size"], "nunique")
    of_all = _spread(devices, table, ["workload"], "nunique")
    return at_size == of_all


def reference_batch(rows: pd.DataFrame) -> int:
    """Choose the batch size that a subject is judged at.

    It is the largest that was trained with and has a speedup, else the largest at which all devices
    have one, else the largest that has one.
    """
    sizes = rows["batch_size"]
    compared = rows["speedup"].notna()
    sizes_trained = sizes[rows["train_status"].notna()]
    trained = sizes.isin(sizes_trained)
    timed = rows["step_ms"].notna()
    for choice in (compared & trained, compared & rows["in_common"], compared, trained, timed):
        if choice.any():
            return int(sizes[choice].max())
    return int(sizes.max())


def over(row: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> stats.Interval:
    """Return how many times as fast one row's steps are as another's, with its interval."""
    contrast = estimate(THROUGHPUT, row[THROUGHPUT.arm], other[THROUGHPUT.arm])
    assert contrast is not None  # throughput has nothing that both sides must agree in
    return contrast.gain
