"""The rows of all phases in one frame, with the columns that the report derives from them.

The CSVs say what was asked and what was measured. The frame adds the phase, the kind of the device
and the names by which reports know parameters and ablation steps.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.format import records
from bench.results.columns import COLUMNS, LIST, Field, derived
from bench.results.csv_file import read, typed
from bench.spec.phases import MEASURING
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE
from bench.spec.text import plain

ABOUT = {
    "phase": "The phase, which is the name of the CSV.",
    "parameters_json": "The suite's parameters as a JSON object.",
    "members": "The placement of each device, joined by +.",
    "device_kind": "cuda or cpu.",
    "arm_precision": "The precision, of an ablation step too.",
    "arm_techniques": "The techniques of an ablation step.",
    "reference": "The arm that speedups and changes are over.",
}
# The columns that no CSV holds.
DERIVED = {name: Field(name=name, kind="word") for name in ABOUT}
# The columns that names follow from.
ASKED = ["parameters", "techniques", "ablation", "precision", "placement"]


def _fields() -> dict[str, Field]:
    columns = dict(DERIVED)
    for phase in MEASURING.values():
        columns |= COLUMNS[phase.file] | derived(phase)
    return columns


# The columns of the frame: those of all phases, and those that are derived.
TRIALS = _fields()


def read_details(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the CSVs of a run with details of trials, by name.

    Raises:
        UsageError: one is damaged, or another program's.
    """
    names = dict.fromkeys(name for phase in MEASURING.values() for name in phase.details.values())
    return {name: read(folder / name) for name in names}


def read_trials(
    folder: Path, info: Mapping[str, Any], details: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Read the rows of a run's phases, in the order measured, and derive what follows from them.

    Args:
        folder: the run's.
        info: the content of its run.json.
        details: from ``read_details``.

    Raises:
        UsageError: a CSV is damaged, or another program's.
    """
    frames = []
    for name, phase in MEASURING.items():
        of_phase = read(folder / phase.file)
        if not of_phase.empty:
            frames.append(of_phase.assign(phase=name))
    if not frames:
        return typed(pd.DataFrame(), TRIALS)
    rows = typed(pd.concat(frames, ignore_index=True), TRIALS)
    # A row that somebody copied by hand is of one process all the same.
    rows = rows.drop_duplicates(["trial", "precision", "techniques"], keep="last")
    rows = rows.sort_values("started", kind="stable", ignore_index=True)
    return _derived(_with_names(rows, info), details)


def _derived(rows: pd.DataFrame, details: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Fill the columns that follow from the rows of each phase and their details."""
    for name, phase in MEASURING.items():
        of_phase = rows["phase"] == name
        if phase.derive is not None and of_phase.any():
            figures = phase.derive(rows[of_phase], details)
            columns = [*derived(phase)]
            rows.loc[of_phase, columns] = figures[columns]
    return rows


def _with_names(rows: pd.DataFrame, info: Mapping[str, Any]) -> pd.DataFrame:
    """Add what follows from a row: names of parameters and of ablation steps, and its device."""
    devices = info.get("environment", {}).get("devices", [])
    kinds = {device["placement"]: device["kind"] for device in devices}
    # The different values are far fewer than the rows.
    different = rows.groupby(ASKED, sort=False, dropna=False).ngroup()
    names = [_names(row, kinds) for row in records(rows[ASKED].drop_duplicates())]
    columns = pd.DataFrame(names, dtype=object).loc[different].set_axis(rows.index)
    request = info.get("request", {})
    # Others are compared with the first arm of a training script, else with the baseline.
    arms = (request.get("script") or {}).get("arms") or [[BASELINE, ""]]
    target_ci = request.get("protocol", {}).get("target_ci") or float("nan")
    return rows.assign(
        **columns, seed=rows["seed"].fillna(0), reference=str(arms[0][0]), target_ci=target_ci
    )


def _names(row: Mapping[Hashable, Any], kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the names that follow from the columns ``ASKED`` of a row.

    ``kinds`` are those of devices by placement.
    """
    place, techniques, precision = row["placement"], row["techniques"], row["precision"]
    parameters = row["parameters"] or "{}"
    given = json.loads(parameters).items()
    words = [plain(f"{name}={value}", one_line=True) for name, value in given]
    names = {
        "parameters": " ".join(words),
        "parameters_json": parameters,
        "members": LIST.join(Placement(name=place).members),
        "device_kind": kinds.get(place, "cpu" if place.startswith("cpu") else "cuda"),
        "arm_precision": precision,
        "arm_techniques": "",
        "techniques": techniques,
        "precision": precision,
    }
    if row["ablation"] == "yes":
        # The techniques of a step are its arm's, not its cell's.
        names |= {"arm_techniques": techniques, "techniques": ""}
        if techniques:
            names["precision"] += LIST + techniques
    return names
