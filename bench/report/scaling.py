"""Several devices against one of them: how much faster, how much of that they could gain, and what sending costs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.format import UNKNOWN, known, number, ratio
from bench.report.speed import KEY, MEASURED
from bench.report.tables import Table, table
from bench.trial import members

ABOUT = (
    "Throughput of devices that train together over that of one of them alone. Strong scaling keeps the whole batch, "
    "of which each device has a part; weak scaling keeps each device's part. Efficiency is the speedup over the number "
    "of devices. The interval is Welch's over processes, for they were not measured side by side; with one process "
    "each there is none. Communication is the share of a step by which it is longer than one that says nothing to the "
    "others (DistributedDataParallel's no_sync), over processes, with Student's interval: the sending of gradients "
    "beyond what overlaps with backward, the broadcast of batch norm's buffers, and the wait of each step for the "
    "slowest device, which without a word is one of each block."
)


def scaling(rows: pd.DataFrame, trials: pd.DataFrame) -> Table | None:
    """Return the scaling of one workload; None where nothing was measured on several devices and on one of them.

    Args:
        rows: rows of the summary, of one workload.
        trials: rows of trials.csv, of the same.
    """
    timed = [row for row in rows.to_dict("records") if known(row["step_ms"])]
    sending = _sending(trials)
    body = []
    for row in timed:
        together = members(str(row["placement"]))
        if len(together) < 2:
            continue
        for word, batch in (("strong", row["batch_size"]), ("weak", row["batch_size"] / len(together))):
            alone = _alone(timed, row, together, batch)
            if alone is not None:
                body.append(_row(row, alone, len(together), word, sending.get(tuple(row[name] for name in KEY))))
    if not body:
        return None
    headers = ["devices", "precision", "batch size", "scaling", "throughput (samples/s)", "of one device"]
    headers += ["speedup over one [95 % interval]", "efficiency (%)"]
    headers += ["communication (% of a step) [95 % interval]"]
    return table("Scaling", headers, body, about=ABOUT)


def _alone(
    timed: list[dict[Hashable, Any]], row: dict[Hashable, Any], together: tuple[str, ...], batch: float
) -> dict[Hashable, Any] | None:
    """Return the row of one of the devices at a batch size, the first of them that was measured."""
    found = {
        str(other["placement"]): other
        for other in timed
        if other["run"] == row["run"] and other["precision"] == row["precision"] and other["batch_size"] == batch
    }
    return next((found[member] for member in together if member in found), None)


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


def _row(row: dict[Hashable, Any], alone: dict[Hashable, Any], count: int, word: str, sending: str | None) -> list[str]:
    many, one = (np.log(np.asarray(arm["paces"], dtype=np.float64)) for arm in (row, alone))
    found = stats.welch_interval(many, one).exp()
    return [
        str(row["where"]),
        str(row["precision"]),
        f"{row['batch_size']:.0f}",
        word if word == "strong" else f"weak, {alone['batch_size']:.0f} a device",
        number(row["samples_per_s"]),
        number(alone["samples_per_s"]),
        ratio(found.center, found.low, found.high),
        number(100 * found.center / count, 3),
        sending or UNKNOWN,
    ]
