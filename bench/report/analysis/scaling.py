"""Several devices against one of them: how much faster, how much of that they could gain, and what sending costs."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.comparability import differing, host
from bench.report.analysis.contrast import estimate
from bench.report.format import known, records
from bench.report.reading.load import KEY, SUBJECT, Run, Runs
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.metrics import THROUGHPUT
from bench.spec.techniques import for_one_device

Row = Mapping[Hashable, Any]
"""A row of the summary."""


def _members(row: Row) -> tuple[str, ...]:
    """Return the placements of the devices that trained together; of one alone, its own."""
    return listed(row["members"])


def _techniques(row: Row) -> tuple[str, ...]:
    """Return a row's techniques, but for those that mean nothing on one device."""
    return for_one_device(listed(row["techniques"]))


def _singles(row: Row, timed: Sequence[Row]) -> list[Row]:
    """Return what was timed of one of the devices of a distributed row, whatever the circumstances.

    In the same run that is a device among them; in another, where the same number may be another board, one of the same
    name.
    """
    names = json.loads(row["device_names"])
    return [
        one
        for one in timed
        if len(_members(one)) == 1
        and all(one[name] == row[name] for name in ("suite", "parameters", "data", "precision"))
        and _techniques(one) == _techniques(row)
        and (one["placement"] in _members(row) if one["run"] == row["run"] else one["device"] in names)
    ]


def _choose(row: Row, batch: float, singles: Sequence[Row], runs: Mapping[str, Run]) -> Row | None:
    """Return the single device to compare a distributed row with, at a batch size; None where there is none.

    One of the same run is preferred, then one of the same host, then one of the same number.
    """

    def distance(one: Row) -> tuple[bool, bool, int]:
        hosts = [host(runs[each["run"]], each["placement"]) for each in (row, one)]
        order = (*_members(row), one["placement"])
        return one["run"] != row["run"], hosts[0] is None or hosts[0] != hosts[1], order.index(one["placement"])

    fitting = [one for one in singles if one["batch_size"] == batch and not _obstacles(row, one, runs)]
    return min(fitting, key=distance, default=None)


def _obstacles(row: Row, one: Row, runs: Mapping[str, Run]) -> list[str]:
    """Name what keeps a device of another run from being one of those of a distributed row; none within a run."""
    if one["run"] == row["run"]:
        return []
    several, single = ((runs[each["run"]], each["placement"]) for each in (row, one))
    rounded = known(row["ieee"]) and known(one["ieee"]) and row["ieee"] != one["ieee"]
    return differing(several, single, row["suite"]) + ["arithmetic of fp32"] * bool(rounded)


def _reason(rows: Sequence[Row], timed: Sequence[Row], runs: Mapping[str, Run]) -> str:
    """Say why there is no scaling of some distributed rows, which are of one subject.

    Args:
        rows: the distributed rows, at least one.
        timed: all rows of the summary that were timed.
        runs: by label.
    """
    every = [(one, _obstacles(row, one, runs)) for row in rows for one in _singles(row, timed)]
    where = rows[0]["where"]
    if not every:
        return (
            f"There is no scaling of {where}: none of its devices was measured alone. Measure it too, "
            "as in --gpus 0,1,0+1, or report a run beside that did."
        )
    alike = [one for one, names in every if not names]
    if not alike:
        others = {str(one["run"]): " and another ".join(names) for one, names in every}
        named = "; ".join(f"run {run} has another {names}" for run, names in others.items())
        return f"There is no scaling of {where}: one of its devices was measured alone, but {named}."
    whole = _listed(row["batch_size"] for row in rows)
    parts = _listed(row["batch_size"] / len(_members(row)) for row in rows)
    return (
        f"There is no scaling of {where}: it was timed at batch {whole}, and one of its devices alone at "
        f"{_listed(one['batch_size'] for one in alike)}; that must be {whole} too (strong scaling) or {parts} "
        "(weak scaling)."
    )


def _listed(sizes: Iterable[float]) -> str:
    return ", ".join(f"{size:g}" for size in sorted(set(sizes)))


def scaling(rows: pd.DataFrame, summary: pd.DataFrame, runs: Runs) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the scaling of one workload, and a sentence on each subject of several devices that has none.

    Args:
        rows: rows of the summary, of one workload.
        summary: all rows of the summary; without ``sync-bn`` and the like, one device is another workload.
        runs: where they come from.

    Returns:
        A dict for each distributed row and kind of scaling: where, precision, batch_size, scaling (strong, or weak
        with the batch size of a device), samples_per_s, one (the row of the one device), same_run, on_cpu, status,
        speedup (an interval), efficiency_pct (None on a CPU) and communication_pct (an interval, or None).
    """
    timed = [row for row in records(summary) if known(row["step_ms"])]
    by_label, communication = {run.label: run for run in runs.runs}, _communication(runs.trials)
    found, remarks = [], []
    distributed = rows[rows["step_ms"].notna() & rows["members"].map(lambda cell: len(listed(cell)) > 1).astype(bool)]
    for _, subject in distributed.groupby(SUBJECT, sort=False):
        own = records(subject)
        lines = [line for row in own for line in _lines(row, timed, by_label, communication)]
        found += lines
        remarks += [] if lines else [_reason(own, timed, by_label)]
    return found, remarks


def _lines(
    row: Row, timed: Sequence[Row], runs: Mapping[str, Run], communication: Mapping[Hashable, stats.Interval]
) -> Iterator[dict[str, Any]]:
    """Return the strong scaling and the weak scaling of a distributed row, as far as one device was measured so."""
    singles, count = _singles(row, timed), len(_members(row))
    for word, batch in (("strong", row["batch_size"]), ("weak", row["batch_size"] / count)):
        one = _choose(row, batch, singles, runs)
        if one is None:
            continue
        contrast = estimate(THROUGHPUT, row[THROUGHPUT.arm], one[THROUGHPUT.arm])
        assert contrast is not None
        speedup = contrast.gain
        on_cpu = one["device_kind"] == "cpu"
        unconverged = "unconverged" in (row["speed_status"], one["speed_status"])
        yield {
            **{name: row[name] for name in ("where", "precision", "batch_size", "samples_per_s")},
            "scaling": word if word == "strong" else f"weak, {one['batch_size']:.0f} a device",
            "one": one,
            "same_run": one["run"] == row["run"],
            "on_cpu": on_cpu,
            "status": "unconverged" if unconverged else "ok",
            "speedup": speedup,
            "efficiency_pct": None if on_cpu else 100 * speedup.center / count,
            "communication_pct": communication.get(tuple(row[name] for name in KEY)),
        }


def _communication(trials: pd.DataFrame) -> dict[Hashable, stats.Interval]:
    """Return each arm's share of a step that communication takes, in per cent, over processes.

    Averaged is the logarithm of a step's time over that of a step without synchronization.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin(MEASURED) & trials["communication_pct"].notna()]
    return {arm: _share(group["communication_pct"]) for arm, group in rows.groupby(KEY, sort=False)}


def _share(processes: pd.Series[float]) -> stats.Interval:
    logs = stats.student_interval(-np.log1p(-processes.to_numpy(dtype=np.float64) / 100))
    center, low, high = (
        None if log is None else -100 * float(np.expm1(-log)) for log in (logs.center, logs.low, logs.high)
    )
    assert center is not None
    return replace(logs, center=center, low=low, high=high)
