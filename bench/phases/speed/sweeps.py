"""Sweeps: a suite timed at several values of a parameter, all else alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.report.analysis.doubts import marked_verdict
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Chart
from bench.report.figures.devices import speedups, with_panels
from bench.report.format import ratio, records
from bench.report.reading.labels import slug
from bench.report.reading.load import CELL, Runs
from bench.report.tables.table import BATCH, DEVICE, PRECISION, Row, Table, figures, optional, over_fp32, table, words

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
        varied = {PARAMETERS, BATCH_SIZE} if self.name == BATCH_SIZE else {PARAMETERS}
        return self.rows.groupby([*(name for name in CELL if name not in varied), "rest"], sort=False)


def sweeps(summary: pd.DataFrame, runs: Runs) -> list[Sweep]:
    """Return the parameters that runs were asked to sweep, and of which two values or more were timed."""
    swept = {run.label: [name for name, _ in run.part("request").get("sweep") or []] for run in runs.runs}
    order = {text: turn for turn, text in enumerate(runs.trials[PARAMETERS].drop_duplicates())}
    of_sweep: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for row in records(summary[summary["step_ms"].notna()]):
        parameters = json.loads(row["parameters_json"])
        for name in swept[row["run"]]:
            if name in parameters:
                rest = " ".join(f"{key}={value}" for key, value in parameters.items() if key != name)
                line = row | {"value": str(parameters[name]), "rest": rest, "turn": order[row[PARAMETERS]]}
                of_sweep.setdefault((name, row["suite"]), []).append(line)
    found = []
    for (name, suite), lines in of_sweep.items():
        rows = pd.DataFrame(lines).sort_values("turn", kind="stable")
        if rows["value"].nunique() > 1:
            found.append(Sweep(suite=suite, name=name, rows=rows))
    return found


def along(sweep: Sweep) -> Table | None:
    """Return step time, its ratio to the first value's, and speedup for each value, precision by precision."""
    lines: list[Row] = []
    for _, alike in sweep.groups():
        first: dict[str, Row] = {}
        for row in records(alike.sort_values(["turn", "rank"], kind="stable")):
            reference = first.setdefault(row["precision"], row)
            against = "first" if reference is row else ratio(row["step_ms"] / reference["step_ms"])
            lines.append(row | {"against": against})
    columns = [
        DEVICE,
        *optional(words("other parameters", "rest")),
        *([] if sweep.name == BATCH_SIZE else [BATCH]),
        figures(sweep.name, "value"),
        PRECISION,
        figures("step (ms)", "step_ms"),
        figures("× step of the first value", "against"),
        figures("speedup [95 % interval]", over_fp32, status="speed_status", lost="lost_speed"),
        words("verdict", marked_verdict, has_marks=True),
    ]
    about = (
        f"Each value of {sweep.name}; all else is equal. A step's time is divided by the time at the first value in "
        "the same precision, in other processes. More work takes more time: the cost of a value shows where the values "
        "next to it do nearly the same work. The speedup is over fp32 at the same value."
    )
    return table(sweep.title, lines, columns, about)


def against_value(sweep: Sweep) -> Chart | None:
    """Describe speedup against the value, a panel for each group with all else equal; None where values are words."""
    numbers = pd.to_numeric(sweep.rows["value"], errors="coerce")
    rows = sweep.rows.assign(value=sweep.rows["speedup"], line=sweep.rows["precision"], number=numbers, status="ok")
    rows = rows.assign(low=rows["speedup_low"], high=rows["speedup_high"])
    rows = rows[rows["value"].notna()]
    values = sorted(rows["number"].unique())
    if numbers.isna().any() or len(values) < 2:
        return None
    # values may be 0, or far from each other, so each has as much room as any other
    rows["batch_size"] = rows["number"].map(values.index).astype(float)
    ticks = [(float(place), f"{value:g}") for place, value in enumerate(values)]
    x = Axis(label=sweep.name, ticks=ticks, low=-0.2, high=len(values) - 0.8)
    y = speedups(rows)
    groups = []
    for _, group in rows.groupby(sweep.groups().ngroup().loc[rows.index]):
        groups.append((_all_else(sweep.rows.loc[group.index[0]], sweep), "", group))
    bare = Chart(
        name=slug(f"sweep-{sweep.suite}-{sweep.name}"),
        caption=f"{sweep.suite}: speedup against {sweep.name}",
        about="Speedup over fp32 at the same value, with its 95 % interval. Values are evenly spaced.",
    )
    return with_panels(bare, groups, x, y, dict(chart.legend(rows)), is_speedup=True)


def _all_else(row: pd.Series, sweep: Sweep) -> str:
    """Name what is equal in a panel."""
    batch = "" if sweep.name == BATCH_SIZE else f"batch {row['batch_size']:.0f}"
    return ", ".join(filter(None, [str(row["where"]), str(row["rest"]), batch]))
