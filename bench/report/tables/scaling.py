"""Several devices that train together against one of them alone."""

from __future__ import annotations

from typing import Any

from bench.report.format import number, ratio
from bench.report.reading.labels import placement
from bench.report.tables.table import BATCH, PRECISION, Table, figures, table, words

ABOUT = (
    "Throughput of devices that train together over that of one of them alone. Strong scaling keeps the whole batch, "
    "of which each device has a part; weak scaling keeps each device's part. Efficiency is the speedup divided by the "
    "number of devices. The interval is Welch's over processes, because the two were not measured side by side; with "
    "one process each there is none. Communication is the share of a step that goes away when the devices do not "
    "synchronize gradients (DistributedDataParallel's no_sync), over processes, with Student's interval: sending "
    "gradients beyond what overlaps with backward, the broadcast of batch norm's buffers, and each step's wait for the "
    "slowest device; without synchronization there is one such wait in a block."
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
    """Return the table of one workload's scaling; None where several devices were not compared with one.

    Args:
        lines: as ``analysis.scaling.scaling`` returns them.
    """
    columns = [
        words("devices", "where"),
        PRECISION,
        BATCH,
        words("scaling", "scaling"),
        figures("throughput (samples/s)", "samples_per_s"),
        words("one device", _one),
        figures("its throughput", lambda line: line["one"]["samples_per_s"]),
        figures("speedup over one [95 % interval]", _speedup, status="status"),
        figures("efficiency (%)", "efficiency_pct", 3),
        figures("communication (% of a step) [95 % interval]", _communication),
    ]
    notes = [ANOTHER_RUN] if not all(line["same_run"] for line in lines) else []
    notes += [ON_A_CPU] if any(line["on_cpu"] for line in lines) else []
    return table("Scaling", lines, columns, ABOUT, notes)


def _one(line: dict[str, Any]) -> str:
    name = placement(str(line["one"]["placement"]))
    return name if line["same_run"] else f"{name}, run {line['one']['run']}"


def _speedup(line: dict[str, Any]) -> str:
    return ratio(line["speedup"].center, line["speedup"].low, line["speedup"].high)


def _communication(line: dict[str, Any]) -> str | None:
    share = line["communication_pct"]
    if share is None or share.low is None or share.high is None:
        return None if share is None else number(share.center, 2)
    return f"{number(share.center, 2)} [{number(share.low, 2)}, {number(share.high, 2)}]"
