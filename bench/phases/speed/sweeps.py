"""Sweeps: a suite timed at several values of a parameter, all else alike."""

from __future__ import annotations

import json

import pandas as pd

from bench.report.analysis.doubts import marked_verdict
from bench.report.format import ratio, records
from bench.report.reading.load import CELL, Runs
from bench.report.tables.table import (
    BATCH,
    DEVICE,
    PRECISION,
    Row,
    Table,
    make_table,
    number_column,
    optional_columns,
    over_fp32,
    text_column,
)

PARAMETERS = "parameters"
BATCH_SIZE = "batch_size"


def tables(summary: pd.DataFrame, runs: Runs) -> list[Table | None]:
    """Return a table for each parameter that runs swept, and of which several values were timed."""
    swept = {}
    for run in runs.runs:
        swept[run.label] = [name for name, _ in run.part("request").get("sweep") or []]
    turns = list(runs.trials[PARAMETERS].drop_duplicates())  # which values came first
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in records(summary[summary["step_ms"].notna()]):
        for name in swept[row["run"]]:
            others = json.loads(row["parameters_json"])
            value = others.pop(name, None)
            if value is None:
                continue
            rest = " ".join(f"{key}={other}" for key, other in others.items())
            turn = turns.index(row[PARAMETERS])
            line = row | {"value": str(value), "rest": rest, "turn": turn}
            lines.setdefault((name, row["suite"]), []).append(line)
    found = []
    for (name, suite), of_sweep in lines.items():
        rows = pd.DataFrame(of_sweep)
        if rows["value"].nunique() > 1:
            found.append(_along(suite, name, rows.sort_values(["turn", "rank"], kind="stable")))
    return found


def _along(suite: str, name: str, rows: pd.DataFrame) -> Table | None:
    """Return step time, its ratio to the first value's, and speedup for each value.

    Args:
        suite: the suite that was measured.
        name: the parameter.
        rows: of the summary, with ``value``, ``rest`` (the other parameters) and ``turn``, in their
            order.
    """
    # A sweep of batch sizes varies the cell's own, too.
    varied = {PARAMETERS, BATCH_SIZE} if name == BATCH_SIZE else {PARAMETERS}
    recipe = [column for column in CELL if column not in varied]
    lines = []
    for _, alike in rows.groupby([*recipe, "rest"], sort=False):
        first: dict[str, Row] = {}
        for row in records(alike):
            reference = first.setdefault(row["precision"], row)
            against = "first" if reference is row else ratio(row["step_ms"] / reference["step_ms"])
            lines.append(row | {"against": against})
    columns = [
        DEVICE,
        *optional_columns(text_column("other parameters", "rest")),
        *([] if name == BATCH_SIZE else [BATCH]),
        number_column(name, "value"),
        PRECISION,
        number_column("step (ms)", "step_ms"),
        number_column("× step of the first value", "against"),
        number_column(
            "speedup [95 % interval]", over_fp32, status="speed_status", lost="lost_speed"
        ),
        text_column("verdict", marked_verdict, has_marks=True),
    ]
    about = (
        f"Each value of {name}; all else is equal. A step's time is divided by the time at the "
        "first value in the same precision, in other processes. More work takes more time: the "
        "cost of a value shows where the values next to it do nearly the same work. The speedup "
        "is over fp32 at the same value."
    )
    return make_table(f"Sweep of {suite}'s {name}", lines, columns, about)
