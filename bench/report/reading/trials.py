"""The rows of all phases in one frame, with the columns that the report derives from them.

The CSVs have what was asked and what was measured. The frame adds the phase, the kind of the
device, and the names that reports give parameters and ablation steps.
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
# The columns that no CSV has.
ADDED = {name: Field(name=name, kind="word") for name in ABOUT}
# The columns that names follow from.
ASKED = [
    "parameters",
    "techniques",
    "ablation",
    "precision",
    "placement",
]


def _columns() -> dict[str, Field]:
    columns = dict(ADDED)
    for phase in MEASURING.values():
        columns |= COLUMNS[phase.file] | derived(phase)
    return columns


# The columns of the frame: those of all phases, and those that are added.
TRIALS = _columns()


def read_details(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the CSVs of a run with details of trials, by name.

    Raises:
        UsageError: one is damaged, or another program's.
    """
    details = {}
    for phase in MEASURING.values():
        for name in phase.details.values():
            # Phases may share a CSV, which can be large.
            if name not in details:
                details[name] = read(folder / name)
    return details


def check_details(folder: Path) -> None:
    """Raise the error that reading the details of a run for a report would raise.

    Raises:
        UsageError: as ``read_details`` does.
    """
    read_details(folder)


def read_trials(
    folder: Path,
    info: Mapping[str, Any],
    details: Mapping[str, pd.DataFrame],
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
        file = folder / phase.file
        if file.exists():
            frames.append(read(file).assign(phase=name))
    if not frames:
        return typed(pd.DataFrame(), TRIALS)
    rows = pd.concat(frames, ignore_index=True)
    rows = typed(rows, TRIALS)
    # A row that somebody copied by hand is still of one process.
    rows = rows.drop_duplicates(["trial", "precision", "techniques"], keep="last")
    rows = rows.sort_values("started", kind="stable", ignore_index=True)
    rows = _with_names(rows, info)
    _fill_unstored(rows, details)
    return rows


def _fill_unstored(rows: pd.DataFrame, details: Mapping[str, pd.DataFrame]) -> None:
    """Fill the columns that no CSV stores: they follow from a phase's rows and their details."""
    for name, phase in MEASURING.items():
        is_of_phase = rows["phase"] == name
        if phase.derive is None or not is_of_phase.any():
            continue
        filled = phase.derive(rows[is_of_phase], details)
        columns = [*derived(phase)]
        rows.loc[is_of_phase, columns] = filled[columns]


def _with_names(rows: pd.DataFrame, info: Mapping[str, Any]) -> pd.DataFrame:
    """Add columns with the names of parameters, ablation steps and the reference.

    Those with the kind of the device, its members and the asked width of the interval come, too.
    """
    devices = info.get("environment", {}).get("devices", [])
    kinds = {}
    for device in devices:
        kinds[device["placement"]] = device["kind"]
    # The different values are far fewer than the rows.
    number = rows.groupby(ASKED, sort=False, dropna=False).ngroup()
    different = rows[ASKED].drop_duplicates()
    names_of_different = [_names(row, kinds) for row in records(different)]
    names = pd.DataFrame(names_of_different, dtype=object)
    names_of_rows = names.loc[number].set_axis(rows.index)
    named = rows.assign(**names_of_rows)
    request = info.get("request", {})
    script = request.get("script") or {}
    # Others are compared with the first arm of a training script, else with the baseline.
    arms = script.get("arms") or [[BASELINE, ""]]
    named["reference"] = str(arms[0][0])
    protocol = request.get("protocol", {})
    named["target_ci"] = protocol.get("target_ci") or float("nan")
    named["seed"] = named["seed"].fillna(0)
    return named


def _names(row: Mapping[Hashable, Any], kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the names that follow from the columns ``ASKED`` of a row.

    ``kinds`` are those of devices by placement.
    """
    place = row["placement"]
    techniques = row["techniques"]
    precision = row["precision"]
    parameters = row["parameters"] or "{}"
    words = []
    for name, value in json.loads(parameters).items():
        words.append(plain(f"{name}={value}", one_line=True))
    # Of a run whose run.json does not name the device.
    kind = "cpu" if place.startswith("cpu") else "cuda"
    members = Placement(name=place).members
    names = {
        "parameters": " ".join(words),
        "parameters_json": parameters,
        "members": LIST.join(members),
        "device_kind": kinds.get(place, kind),
        "arm_precision": precision,
        "arm_techniques": "",
        "techniques": techniques,
        "precision": precision,
    }
    if row["ablation"] == "yes":
        # The techniques of a step are its arm's, not its cell's.
        names["arm_techniques"] = techniques
        names["techniques"] = ""
        if techniques:
            names["precision"] += LIST + techniques
    return names
