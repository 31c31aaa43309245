"""Factors other than the precision that arms are compared along: a parameter, or whatever else tells runs apart.

To add a factor: an entry of ``FACTORS`` with a ``value``. Its section with table and figure follows.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from bench.report.analysis.contrast import FACTORS, Arm, Contrast, Factor, contrasts
from bench.report.format import records
from bench.report.reading.load import CELL, KEY, Run, Runs
from bench.spec.metrics import Metric

PARAMETERS, BATCH_SIZE = "parameters", "batch_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class Varied:
    """A suite measured at several values of a factor, all else alike."""

    suite: str
    factor: Factor
    rows: pd.DataFrame
    """Of the summary, with ``value``, ``rest`` (the other parameters) and ``turn`` (which value came how early)."""

    @property
    def name(self) -> str:
        """The name of the factor."""
        return self.factor.name

    @property
    def title(self) -> str:
        """The title of its section."""
        is_parameter = PARAMETERS in self.factor.varies
        return f"Sweep of {self.suite}'s {self.name}" if is_parameter else f"{self.suite} by {self.name}"

    def groups(self) -> Any:
        """Return the rows in groups in which all but the factor's value and the precision is equal."""
        return self.rows.groupby([*(key for key in CELL if key not in self.factor.varies), "rest"], sort=False)

    def contrasts(self, metric: Metric) -> dict[int, Contrast]:
        """Return each row against the first value's in the same precision, by the row's index; see ``contrasts``."""
        ordered = self.rows.assign(group=self.groups().ngroup()).sort_values(["turn", "rank"], kind="stable")
        rows = zip(ordered.index, ordered[metric.arm], ordered["group"], ordered["precision"], strict=True)
        measured = {row: (arm, (group, precision)) for row, arm, group, precision in rows if isinstance(arm, Arm)}
        arms = {row: arm for row, (arm, _) in measured.items()}
        return contrasts(self.factor, metric, arms, {row: alike for row, (_, alike) in measured.items()})


def varied(summary: pd.DataFrame, runs: Runs) -> list[Varied]:
    """Return the factors of which two values or more were timed, suite by suite; of runs with one value the first."""
    by_label = {run.label: run for run in runs.runs}
    places = {run.label: place for place, run in enumerate(runs.runs)}
    order = {text: turn for turn, text in enumerate(runs.trials[PARAMETERS].drop_duplicates())}
    timed = summary[summary["step_ms"].notna()]
    factors = []
    for factor in [*_parameters(runs), *(factor for factor in FACTORS.values() if factor.value)]:
        assert factor.value is not None
        values = [factor.value(row, by_label[row["run"]]) for row in records(timed)]
        rows = timed.assign(
            value=pd.Series(values, index=timed.index, dtype=object),
            rest=[_rest(row, factor) for row in records(timed)],
            turn=timed[PARAMETERS].map(order) if PARAMETERS in factor.varies else timed["run"].map(places),
        )
        alike = [*(key for key in KEY if key not in factor.varies), "rest", "value"]
        rows = rows[rows["value"].notna()].sort_values("turn", kind="stable").drop_duplicates(alike).sort_index()
        for suite, of_suite in rows.groupby("suite", sort=False):
            if of_suite["value"].nunique() > 1:
                factors.append(Varied(suite=str(suite), factor=factor, rows=of_suite))
    return factors


def _parameters(runs: Runs) -> Iterator[Factor]:
    """Yield a factor for each parameter that runs were asked to sweep."""
    names = {run.label: [str(pair[0]) for pair in run.part("request").get("sweep") or []] for run in runs.runs}
    for name in dict.fromkeys(name for asked in names.values() for name in asked):
        varies = {PARAMETERS, BATCH_SIZE} if name == BATCH_SIZE else {PARAMETERS}
        value = partial(_parameter, name=name, swept={label for label, asked in names.items() if name in asked})
        yield Factor(name=name, varies=frozenset(varies), value=value)


def _parameter(row: Mapping[Hashable, Any], run: Run, *, name: str, swept: set[str]) -> str | None:
    parameters = json.loads(row["parameters_json"])
    return str(parameters[name]) if run.label in swept and name in parameters else None


def _rest(row: Mapping[Hashable, Any], factor: Factor) -> str:
    """Write the parameters that are equal, where the factor is one of them."""
    if PARAMETERS not in factor.varies:
        return ""
    return " ".join(f"{key}={value}" for key, value in json.loads(row["parameters_json"]).items() if key != factor.name)
