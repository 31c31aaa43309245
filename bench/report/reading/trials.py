"""The rows of all phases in one frame, with the columns that the report derives from what the CSVs hold.

The CSVs say what was asked and what was measured. The frame adds the phase, the cell, the kind of the device and the
names by which reports know parameters and ablation steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bench.results.columns import COLUMNS, LIST, Field, derived
from bench.results.csv_file import read, typed
from bench.spec.phases import MEASURING, SEARCHES
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE
from bench.spec.text import plain

DERIVED: dict[str, Field] = {
    "phase": Field(name="phase", kind="word", text="The phase, which is the name of the CSV."),
    "cell": Field(name="cell", kind="word", text="Readable name of its cell, which all phases share."),
    "parameters_json": Field(name="parameters_json", kind="word", text="The suite's parameters as a JSON object."),
    "members": Field(name="members", kind="list", text="The placement of each device, joined by +."),
    "device_names": Field(name="device_names", kind="word", text="The names of its devices, as a JSON array."),
    "device_kind": Field(name="device_kind", kind="word", text="cuda or cpu."),
    "arm_precision": Field(name="arm_precision", kind="word", text="The precision, of an ablation step too."),
    "arm_techniques": Field(name="arm_techniques", kind="list", text="The techniques of an ablation step."),
    "reference": Field(name="reference", kind="word", text="The arm that speedups and changes are over."),
}
"""The columns that no CSV holds."""


def _fields() -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for phase in MEASURING.values():
        fields |= COLUMNS[phase.file] | derived(phase)
    return {"phase": DERIVED["phase"], "cell": DERIVED["cell"]} | fields | DERIVED


TRIALS = _fields()
"""The columns of the frame: those of all phases, and those that are derived."""


def read_details(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the CSVs of a run with details of trials, by name.

    Raises:
        UsageError: one is damaged, or another program's.
    """
    names = dict.fromkeys(name for phase in MEASURING.values() for name in phase.details.values())
    return {name: read(folder / name) for name in names}


def read_trials(folder: Path, info: Mapping[str, Any], details: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Read the rows of a run's phases, in the order measured, and derive what follows from them.

    Args:
        folder: the run's.
        info: the content of its run.json.
        details: from ``read_details``.

    Raises:
        UsageError: a CSV is damaged, or another program's.
    """
    frames = [_of_phase(folder / phase.file, phase.name) for phase in MEASURING.values()]
    rows = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    rows = rows.drop_duplicates(["trial", "precision", "techniques"], keep="last")  # copied by hand: one process each
    rows = rows.sort_values("started", kind="stable", ignore_index=True)
    return rows if rows.empty else _with_devices(_derived(_with_names(rows, _reference(info)), details), info)


def _derived(rows: pd.DataFrame, details: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Fill the columns that follow from the rows of each phase and their details."""
    for name, phase in MEASURING.items():
        of_phase = rows["phase"] == name
        if phase.derive is not None and of_phase.any():
            figures = phase.derive(rows[of_phase], details)
            columns = [*derived(phase)]
            rows.loc[of_phase, columns] = figures[columns]
    return rows


def _of_phase(path: Path, phase: str) -> pd.DataFrame:
    """Read the CSV of a phase as a frame with the columns of all phases; those of others are empty."""
    return typed(read(path).assign(phase=phase), TRIALS)


def _with_names(rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Add what follows from a row: names of the cell, of parameters and of ablation steps."""
    parameters = {text: json.loads(text) if text else {} for text in rows["parameters"].unique()}
    words = {
        text: [plain(f"{name}={value}", one_line=True) for name, value in given.items()]
        for text, given in parameters.items()
    }
    is_step = rows["ablation"] == "yes"
    added = rows["techniques"].where(rows["techniques"] == "", LIST + rows["techniques"])
    techniques = rows["techniques"].mask(is_step, "")
    named = rows.assign(
        parameters=rows["parameters"].map({text: " ".join(each) for text, each in words.items()}),
        parameters_json=rows["parameters"].where(rows["parameters"] != "", "{}"),
        members=rows["placement"].map(
            {name: LIST.join(Placement(name=name).members) for name in set(rows["placement"])}
        ),
        arm_precision=rows["precision"],
        arm_techniques=rows["techniques"].where(is_step, ""),
        techniques=techniques,
        precision=rows["precision"].mask(is_step, rows["precision"] + added),
        seed=rows["seed"].fillna(0),
        reference=reference,
    )
    changed = rows["parameters"].map({text: "".join(f"-{word}" for word in each) for text, each in words.items()})
    batch = ("-b" + rows["batch_size"].map("{:.0f}".format)).mask(rows["phase"].isin(SEARCHES), "")
    ablation = is_step.map({True: "-ablation", False: ""})
    cell = rows["suite"] + changed + added.mask(is_step, "") + "-" + rows["placement"] + ablation + batch
    return named.assign(cell=cell)


def _with_devices(rows: pd.DataFrame, info: Mapping[str, Any]) -> pd.DataFrame:
    """Add what run.json says of the devices; where it says nothing, what their placements do."""
    known = {each.get("placement"): each for each in info.get("environment", {}).get("devices", [])}
    kinds, names = {}, {}
    for place, device in rows[["placement", "device"]].drop_duplicates().itertuples(index=False):
        entry = known.get(place, {})
        kinds[place] = entry.get("kind") or ("cpu" if place.startswith("cpu") else "cuda")
        names[place] = json.dumps(list(entry.get("names") or (device,)))
    return rows.assign(device_kind=rows["placement"].map(kinds), device_names=rows["placement"].map(names))


def _reference(info: Mapping[str, Any]) -> str:
    """Return the arm that others are compared with: the first of a training script's, else the baseline."""
    arms = (info.get("request", {}).get("script") or {}).get("arms") or [[BASELINE, ""]]
    return str(arms[0][0])
