"""Tables that compare more than precisions: devices together with one, and the values of a parameter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.report.analysis.contrast import estimate as estimate_of
from bench.report.format import estimate, number, records
from bench.report.reading.labels import placement
from bench.report.reading.load import CELL, Runs
from bench.report.tables.table import (
    BATCH,
    DEVICE,
    PRECISION,
    Row,
    Table,
    figures,
    optional,
    over_fp32,
    table,
    words,
)
from bench.spec.metrics import SPEED

BATCH_SIZE = "batch_size"
ABOUT = (
    "Throughput of devices that train together over that of one of them alone. Strong scaling keeps the whole batch; "
    "weak scaling keeps each device's part of it. Efficiency is the speedup divided by the number of devices. The "
    "interval is Welch's over processes, because the two were not measured side by side; with one process each there "
    "is none. Communication is the share of a step that goes away when the devices do not synchronize gradients "
    "(DistributedDataParallel's no_sync), with Student's interval over processes: sending gradients beyond what "
    "overlaps with backward, and each step's wait for the slowest device."
)
ANOTHER_RUN = (
    "Where a run is named, the one device was measured in that run, with the same software, recipe and limits: it has "
    "the same name, but may be another board."
)
ON_A_CPU = (
    "On a CPU there is no efficiency: one process computes with all threads, several processes share them, so nothing "
    "was added."
)


def scaling(lines: list[dict[str, Any]]) -> Table | None:
    """Return the table of the lines of ``analysis.scaling``; None where several devices were not compared with one."""
    columns = [
        words("devices", "where"),
        PRECISION,
        BATCH,
        words("scaling", "scaling"),
        figures("throughput (samples/s)", "samples_per_s"),
        words("one device", _one),
        figures("its throughput", lambda line: line["one"]["samples_per_s"]),
        figures("speedup over one [95 % interval]", lambda line: estimate(line["speedup"]), status="status"),
        figures("efficiency (%)", "efficiency_pct", 3),
        figures("communication (% of a step) [95 % interval]", _communication),
    ]
    notes = [ANOTHER_RUN] if not all(line["same_run"] for line in lines) else []
    notes += [ON_A_CPU] if any(line["on_cpu"] for line in lines) else []
    return table("Scaling", lines, columns, ABOUT, notes)


def _one(line: dict[str, Any]) -> str:
    name = placement(str(line["one"]["placement"]))
    return name if line["same_run"] else f"{name}, run {line['one']['run']}"


def _communication(line: dict[str, Any]) -> str | None:
    share = line["communication_pct"]
    if share is None:
        return None
    interval = "" if share.low is None else f" [{number(share.low, 2)}, {number(share.high, 2)}]"
    return f"{number(share.center, 2)}{interval}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """A suite with one of its parameters varied, all else alike."""

    suite: str
    name: str
    rows: pd.DataFrame
    """Of the summary, with ``value``, ``rest`` (the other parameters) and ``turn`` (which value came how early)."""

    @property
    def title(self) -> str:
        """The title of its section."""
        return f"Sweep of {self.suite}'s {self.name}"

    def groups(self) -> Any:
        """Return the rows in groups in which all but the parameter's value and the precision is equal."""
        varied = ("parameters", *([BATCH_SIZE] if self.name == BATCH_SIZE else []))
        return self.rows.groupby([*(key for key in CELL if key not in varied), "rest"], sort=False)


def swept(summary: pd.DataFrame, runs: Runs) -> list[Swept]:
    """Return the parameters that runs were asked to sweep and of which two values or more were measured."""
    names = {run.label: [str(pair[0]) for pair in run.part("request").get("sweep") or []] for run in runs.runs}
    order = {text: turn for turn, text in enumerate(runs.trials["parameters"].drop_duplicates())}
    timed = summary[summary["step_ms"].notna()]
    found = []
    for name in dict.fromkeys(name for asked in names.values() for name in asked):
        rows = timed[timed["run"].map(lambda run, name=name: name in names[run]).astype(bool)]
        parts = [json.loads(cell) for cell in rows["parameters_json"]]
        values = [str(part[name]) if name in part else None for part in parts]
        rows = rows.assign(
            value=pd.Series(values, index=rows.index, dtype=object),
            rest=[" ".join(f"{key}={value}" for key, value in part.items() if key != name) for part in parts],
            turn=rows["parameters"].map(order),
        )
        groups = rows[rows["value"].notna()].groupby("suite", sort=False)
        found += [Swept(suite=str(suite), name=name, rows=own) for suite, own in groups if own["value"].nunique() > 1]
    return found


def sweep(one: Swept) -> Table | None:
    """Return step time, its ratio to the first value's, and speedup for each value, precision by precision."""
    lines: list[Row] = []
    for _, alike in one.groups():
        first: dict[str, Row] = {}
        for row in records(alike.sort_values(["turn", "rank"], kind="stable")):
            reference = first.setdefault(row["precision"], row)
            lines.append(row | {"against_first": "first" if row is reference else _step_ratio(row, reference)})
    columns = [
        DEVICE,
        *optional(words("other parameters", "rest")),
        *([] if one.name == BATCH_SIZE else [BATCH]),
        figures(one.name, "value"),
        PRECISION,
        figures("step (ms)", "step_ms"),
        figures("× step of the first value [95 % interval]", "against_first"),
        figures("speedup [95 % interval]", over_fp32, status="speed_status", lost="lost_speed"),
        words("verdict", "verdict"),
    ]
    about = (
        f"Each value of {one.name}; all else is equal. A step's time is compared with the time at the first value in "
        "the same precision. The two were not measured side by side, so the interval is Welch's over processes. More "
        "work takes more time: the cost of a value shows where the values next to it do nearly the same work. The "
        "speedup is over fp32 at the same value."
    )
    return table(f"{one.suite}: {one.name}", lines, columns, about)


def _step_ratio(row: Row, first: Row) -> str:
    """Return the ratio of two step times."""
    contrast = estimate_of(SPEED, row[SPEED.arm], first[SPEED.arm])
    assert contrast is not None
    return estimate(contrast.shown)
