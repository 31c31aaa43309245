"""Several devices, and the one that they are held against: of the same run, or else of one in like circumstances."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from bench.report.circumstances import differing, host
from bench.report.format import known
from bench.report.load import Run
from bench.technique_names import for_one_device
from bench.trial import members as placed

Row = Mapping[Hashable, Any]
"""A row of the summary."""


def is_joined(row: Row) -> bool:
    """Say whether a row is of several devices that trained together."""
    return len(members(row)) > 1


def members(row: Row) -> list[str]:
    """Return the devices' placements, one for each device."""
    return list(placed(str(row["placement"])))


def techniques(row: Row) -> tuple[str, ...]:
    """Return a row's techniques, but for those that mean nothing on one device."""
    return for_one_device(tuple(filter(None, str(row["techniques"]).split("+"))))


def singles(row: Row, timed: Sequence[Row]) -> list[Row]:
    """Return what was timed of one of the devices of a joined row, whatever the circumstances.

    In the same run that is a device among them; in another, where the same number may be another board, one of the same
    name.
    """
    names = re.sub(r"^\d+ × ", "", str(row["device"])).split(" + ")
    return [
        one
        for one in timed
        if not is_joined(one)
        and all(one[name] == row[name] for name in ("suite", "parameters", "data", "precision"))
        and techniques(one) == techniques(row)
        and (one["placement"] in members(row) if one["run"] == row["run"] else one["device"] in names)
    ]


def choose(row: Row, batch: float, found: Sequence[Row], runs: Mapping[str, Run]) -> Row | None:
    """Return the one of ``found`` to hold a joined row against, at a batch size; None where there is none.

    One of the same run is preferred, then one of the same host, then one of the same number.
    """
    fitting = [one for one in found if one["batch_size"] == batch and not obstacles(row, one, runs)]
    return min(fitting, key=lambda one: _distance(row, one, runs), default=None)


def _distance(row: Row, one: Row, runs: Mapping[str, Run]) -> tuple[bool, bool, int]:
    hosts = [host(runs[each["run"]], str(each["placement"])) for each in (row, one)]
    order = members(row)
    place = order.index(one["placement"]) if one["placement"] in order else len(order)
    return one["run"] != row["run"], hosts[0] is None or hosts[0] != hosts[1], place


def obstacles(row: Row, one: Row, runs: Mapping[str, Run]) -> list[str]:
    """Name what keeps a device of another run from being one of those of a joined row; none within a run."""
    if one["run"] == row["run"]:
        return []
    several, single = ((runs[each["run"]], str(each["placement"])) for each in (row, one))
    rounded = known(row["ieee"]) and known(one["ieee"]) and row["ieee"] != one["ieee"]
    return differing(several, single, str(row["suite"])) + ["arithmetic of fp32"] * bool(rounded)


def reason(rows: Sequence[Row], timed: Sequence[Row], runs: Mapping[str, Run]) -> str:
    """Say why there is no scaling of some joined rows, which are of one subject.

    Args:
        rows: the joined rows, at least one.
        timed: all rows of the summary that were timed.
        runs: by label.
    """
    every = [(one, obstacles(row, one, runs)) for row in rows for one in singles(row, timed)]
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
    return f"There is no scaling of {where}: {_sizes(rows, alike)}"


def _sizes(rows: Sequence[Row], alike: Sequence[Row]) -> str:
    count = len(members(rows[0]))
    whole = _listed(row["batch_size"] for row in rows)
    parts = _listed(row["batch_size"] / count for row in rows)
    there = _listed(one["batch_size"] for one in alike)
    return (
        f"it was timed at batch {whole}, and one of its devices alone at {there}; "
        f"that must be {whole} too (strong scaling) or {parts} (weak scaling)."
    )


def _listed(sizes: Any) -> str:
    return ", ".join(f"{size:g}" for size in sorted(set(sizes)))
