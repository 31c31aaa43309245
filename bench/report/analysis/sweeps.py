"""Sweeps: a suite measured at several values of a parameter, all else alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.report.format import records
from bench.report.reading.load import CELL, KEY, Runs

PARAMETERS, BATCH_SIZE = "parameters", "batch_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A suite measured at several values of a parameter."""

    suite: str
    name: str
    """The parameter."""
    rows: pd.DataFrame
    """Of the summary, with ``value``, ``rest`` (the other parameters) and ``turn`` (which value came how early)."""

    @property
    def title(self) -> str:
        """The title of its section."""
        return f"Sweep of {self.suite}'s {self.name}"

    def groups(self) -> Any:
        """Return the rows in groups in which all but the parameter's value and the precision is equal."""
        return self.rows.groupby([*_fixed(CELL, self.name), "rest"], sort=False)


def sweeps(summary: pd.DataFrame, runs: Runs) -> list[Sweep]:
    """Return the parameters that runs were asked to sweep, and of which two values or more were timed."""
    swept = {run.label: [str(pair[0]) for pair in run.part("request").get("sweep") or []] for run in runs.runs}
    order = {text: turn for turn, text in enumerate(runs.trials[PARAMETERS].drop_duplicates())}
    timed = summary[summary["step_ms"].notna()]
    found = []
    for name in dict.fromkeys(name for names in swept.values() for name in names):
        values, rests = [], []
        for row in records(timed):
            parameters = json.loads(row["parameters_json"])
            value = parameters.pop(name, None)
            values.append(None if value is None or name not in swept[row["run"]] else str(value))
            rests.append(" ".join(f"{key}={value}" for key, value in parameters.items()))
        rows = timed.assign(
            value=pd.Series(values, index=timed.index, dtype=object), rest=rests, turn=timed[PARAMETERS].map(order)
        )
        rows = rows[rows["value"].notna()].sort_values("turn", kind="stable")
        rows = rows.drop_duplicates([*_fixed(KEY, name), "rest", "value"]).sort_index()  # of several runs the first
        for suite, of_suite in rows.groupby("suite", sort=False):
            if of_suite["value"].nunique() > 1:
                found.append(Sweep(suite=str(suite), name=name, rows=of_suite))
    return found


def _fixed(columns: list[str], name: str) -> list[str]:
    """Return the columns in which rows of a sweep are equal, but for the precision."""
    varied = {PARAMETERS, BATCH_SIZE} if name == BATCH_SIZE else {PARAMETERS}
    return [column for column in columns if column not in varied]
