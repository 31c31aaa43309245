"""Several devices against one of them: how much faster, how much of that they could gain, and what sending costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bench import stats
from bench.records import MEASURED
from bench.report import one_device
from bench.report.format import UNKNOWN, known, number, ratio
from bench.report.labels import placement
from bench.report.load import SUBJECT, Run, Runs
from bench.report.one_device import Row
from bench.report.rows import records
from bench.report.speed import KEY
from bench.report.tables import Table, table, told

ABOUT = (
    "Throughput of devices that train together over that of one of them alone. Strong scaling keeps the whole batch, "
    "of which each device has a part; weak scaling keeps each device's part. Efficiency is the speedup over the number "
    "of devices. The interval is Welch's over processes, for they were not measured side by side; with one process "
    "each there is none. Communication is the share of a step by which it is longer than one that says nothing to the "
    "others (DistributedDataParallel's no_sync), over processes, with Student's interval: the sending of gradients "
    "beyond what overlaps with backward, the broadcast of batch norm's buffers, and the wait of each step for the "
    "slowest device, which without a word is one of each block."
)
ANOTHER_RUN = (
    "Where a run is named, the one device was measured in that run, with the same software, recipe and limits: it has "
    "the same name, but may be another board."
)
ON_A_CPU = (
    "On a CPU there is no efficiency: alone, it computes with all of its threads, and several processes have a share "
    "of the same ones each, so that nothing was added."
)


def scaling(rows: pd.DataFrame, summary: pd.DataFrame, runs: Runs) -> tuple[Table | None, list[str]]:
    """Return the scaling of one workload, and a sentence on each subject of several devices that has none.

    Args:
        rows: rows of the summary, of one workload.
        summary: all rows of the summary; without ``sync-bn`` and the like, one device is another workload.
        runs: where they come from.
    """
    timed = [row for row in records(summary) if known(row["step_ms"])]
    by_label, sending = {run.label: run for run in runs.runs}, _sending(runs.trials)
    body, said = [], []
    joined = [row for row in records(rows) if known(row["step_ms"]) and one_device.is_joined(row)]
    for subject in dict.fromkeys(tuple(row[name] for name in SUBJECT) for row in joined):
        own = [row for row in joined if tuple(row[name] for name in SUBJECT) == subject]
        made = [line for row in own for line in _lines(row, timed, by_label, sending)]
        body += made
        said += [] if made else [one_device.reason(own, timed, by_label)]
    if not body:
        return None, said
    headers = [
        "devices",
        "precision",
        "batch size",
        "scaling",
        "throughput (samples/s)",
        "one device",
        "its throughput",
    ]
    headers += ["speedup over one [95 % interval]", "efficiency (%)", "communication (% of a step) [95 % interval]"]
    notes = [ANOTHER_RUN] if any(", run " in row[5] for row in body) else []
    notes += [ON_A_CPU] if any(row[5].startswith("cpu") for row in body) else []
    found = table("Scaling", headers, body, about=ABOUT)
    return replace(found, footnotes=[*found.footnotes, *notes]), said


def _lines(row: Row, timed: Sequence[Row], runs: Mapping[str, Run], sending: Mapping[Hashable, str]) -> list[list[str]]:
    """Return the lines of a joined row: strong scaling and weak scaling, as far as one device was measured so."""
    found, count = one_device.singles(row, timed), len(one_device.members(row))
    lines = []
    for word, batch in (("strong", row["batch_size"]), ("weak", row["batch_size"] / count)):
        one = one_device.choose(row, batch, found, runs)
        if one is not None:
            lines.append(_row(row, one, count, word, sending.get(tuple(row[name] for name in KEY))))
    return lines


def _sending(trials: pd.DataFrame) -> dict[Hashable, str]:
    """Return each arm's share of a step that communication takes, over processes.

    It is averaged as the logarithm of a step's time over that of a step without a word.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin(MEASURED) & trials["communication_pct"].notna()]
    return {arm: _share(group["communication_pct"]) for arm, group in rows.groupby(KEY, sort=False)}


def _share(processes: pd.Series[float]) -> str:
    found = stats.student_interval(-np.log1p(-processes.to_numpy(dtype=np.float64) / 100))
    center, low, high = (
        None if log is None else number(-100 * float(np.expm1(-log)), 2)
        for log in (found.center, found.low, found.high)
    )
    return f"{center} [{low}, {high}]" if low and high else str(center)


def _row(row: Row, one: Row, count: int, word: str, sending: str | None) -> list[str]:
    many, few = (np.log(np.asarray(arm["paces"], dtype=np.float64)) for arm in (row, one))
    found = stats.welch_interval(many, few).exp()
    on_cpu = str(one["placement"]).startswith("cpu")
    unconverged = "unconverged" in (row["speed_status"], one["speed_status"])
    return [
        str(row["where"]),
        str(row["precision"]),
        f"{row['batch_size']:.0f}",
        word if word == "strong" else f"weak, {one['batch_size']:.0f} a device",
        number(row["samples_per_s"]),
        placement(str(one["placement"])) + ("" if one["run"] == row["run"] else f", run {one['run']}"),
        number(one["samples_per_s"]),
        told("unconverged" if unconverged else "ok", ratio(found.center, found.low, found.high)),
        UNKNOWN if on_cpu else number(100 * found.center / count, 3),
        sending or UNKNOWN,
    ]
