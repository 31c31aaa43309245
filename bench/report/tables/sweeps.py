"""Sweeps: a parameter's values side by side, against the first and precision by precision."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.format import ratio, records
from bench.report.reading.load import CELL, Runs
from bench.report.tables.table import BATCH, DEVICE, PRECISION, Row, Table, figures, optional, over_fp32, table, words

VALUE, REST = "value", "rest"
BATCH_SIZE = "batch_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """A suite with one of its parameters varied, all else alike."""

    suite: str
    name: str
    rows: pd.DataFrame
    """Of the summary, with ``value``, ``rest`` (the other parameters) and ``turn`` (which value came how early)."""


def swept(summary: pd.DataFrame, runs: Runs) -> list[Swept]:
    """Return the parameters that runs were asked to sweep and of which two values or more were measured."""
    names = {run.label: [str(pair[0]) for pair in run.part("request").get("sweep") or []] for run in runs.runs}
    order = {text: turn for turn, text in enumerate(runs.trials["parameters"].drop_duplicates())}
    timed = summary[summary["step_ms"].notna()]
    found = []
    for name in dict.fromkeys(name for asked in names.values() for name in asked):
        asked_for = [run for run, asked in names.items() if name in asked]
        rows = timed[timed["run"].isin(asked_for)]
        parts = [parameters(row) for row in rows["parameters_json"]]
        rows = rows.assign(
            value=pd.Series([part.get(name) for part in parts], index=rows.index, dtype=object),
            rest=[" ".join(f"{key}={value}" for key, value in part.items() if key != name) for part in parts],
            turn=[order[text] for text in rows["parameters"]],
        )
        for suite, group in rows[rows[VALUE].notna()].groupby("suite", sort=False):
            if group[VALUE].nunique() > 1:
                found.append(Swept(suite=str(suite), name=name, rows=group))
    return found


def parameters(cell: str) -> dict[str, str]:
    """Return the parameters of a cell of ``parameters_json``, as text."""
    return {name: str(value) for name, value in json.loads(cell).items()}


def table_of(sweep: Swept) -> Table | None:
    """Return step time, its ratio to the first value's, and speedup for each value, precision by precision."""
    lines: list[dict[Hashable, Any]] = []
    for _, alike in groups(sweep):
        first: dict[str, Row] = {}
        for row in records(alike.sort_values(["turn", "rank"], kind="stable")):
            reference = first.setdefault(row["precision"], row)
            lines.append(row | {"against_first": "first" if row is reference else _step_ratio(row, reference)})
    columns = [
        DEVICE,
        *optional(words("other parameters", REST)),
        *([] if sweep.name == BATCH_SIZE else [BATCH]),
        figures(sweep.name, VALUE),
        PRECISION,
        figures("step (ms)", "step_ms"),
        figures("× step of the first value [95 % interval]", "against_first"),
        figures("speedup [95 % interval]", over_fp32, status="speed_status", lost="lost_speed"),
        words("verdict", "verdict"),
    ]
    about = (
        f"Each value of {sweep.name}; all else is equal. A step's time is compared with the time at the first value in "
        "the same precision. The two were not measured side by side, so the interval is Welch's over processes. More "
        "work takes more time: the cost of a value shows where its neighbours do nearly the same work. The speedup is "
        "over fp32 at the same value."
    )
    return table(f"{sweep.suite}: {sweep.name}", lines, columns, about)


def groups(sweep: Swept) -> Any:
    """Return the sweep's rows in groups in which all but the parameter's value and the precision is equal."""
    keys = [key for key in CELL if key not in ("parameters", *([BATCH_SIZE] if sweep.name == BATCH_SIZE else []))]
    return sweep.rows.groupby([*keys, REST], sort=False)


def _step_ratio(row: Row, first: Row) -> str:
    """Return the ratio of two step times, which are batch sizes over throughputs."""
    steps, before = (np.log(one["batch_size"] / np.asarray(one["paces"], dtype=float)) for one in (row, first))
    interval = stats.welch_interval(steps, before).exp()
    return ratio(interval.center, interval.low, interval.high)
