"""Tables that compare more than precisions: devices together with one, and the values of a factor."""

from __future__ import annotations

from typing import Any

from bench.report.analysis import scaling as analysis
from bench.report.analysis.contrast import Contrast
from bench.report.analysis.factors import BATCH_SIZE, Varied
from bench.report.format import estimate, number, records, written
from bench.report.reading.labels import placement
from bench.report.tables.table import (
    BATCH,
    DEVICE,
    PRECISION,
    RECIPE,
    Entry,
    Material,
    Row,
    Table,
    figures,
    general,
    optional,
    over_fp32,
    table,
    words,
)
from bench.spec.metrics import SPEED, untabled

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


def _scaling(material: Material) -> list[Table | str | None]:
    lines, remarks = analysis.scaling(material.rows, material.summary, material.runs)
    return [scaling(lines), *remarks]


def _one(line: dict[str, Any]) -> str:
    name = placement(str(line["one"]["placement"]))
    return name if line["same_run"] else f"{name}, run {line['one']['run']}"


def _communication(line: dict[str, Any]) -> str | None:
    share = line["communication_pct"]
    if share is None:
        return None
    interval = "" if share.low is None else f" [{number(share.low, 2)}, {number(share.high, 2)}]"
    return f"{number(share.center, 2)}{interval}"


def along(one: Varied) -> Table | None:
    """Return step time, its ratio to the first value's, and speedup for each value, precision by precision."""
    frames = {metric.name: one.contrasts(metric)["contrast"] for metric in (SPEED, *untabled())}
    lines: list[Row] = []
    for _, alike in one.groups():
        ordered = alike.sort_values(["turn", "rank"], kind="stable")
        for place, row in zip(ordered.index, records(ordered), strict=True):
            changes = {f"against_{name}": _change(frame.get(place)) for name, frame in frames.items()}
            lines.append(row | changes)
    columns = [
        DEVICE,
        *optional(words("other parameters", "rest")),
        *([] if one.name == BATCH_SIZE else [BATCH]),
        figures(one.name, "value"),
        PRECISION,
        figures("step (ms)", "step_ms"),
        figures("× step of the first value [95 % interval]", "against_speed"),
        figures("speedup [95 % interval]", over_fp32, status="speed_status", lost="lost_speed"),
        words("verdict", "verdict"),
        *general(lambda metric: f"against_{metric.name}", "the first value's"),
    ]
    about = (
        f"Each value of {one.name}; all else is equal. A step's time is compared with the time at the first value in "
        "the same precision. The two were not measured side by side, so the interval is Welch's over processes. More "
        "work takes more time: the cost of a value shows where the values next to it do nearly the same work. The "
        "speedup is over fp32 at the same value."
    )
    return table(f"{one.suite}: {one.name}", lines, columns, about)


def _change(contrast: Contrast | None) -> str:
    """Write a row's change from the first value's; the row of the first value has none."""
    return "first" if contrast is None else written(contrast.metric, contrast.shown.ends)


TABLES = (Entry(62, RECIPE, _scaling),)
