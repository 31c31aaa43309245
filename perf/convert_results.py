#!/usr/bin/env python3
"""Rewrite results folders of a former format, whose run.json has a ``schema`` or the ``format`` 6 or 7, in place.

    python perf/convert_results.py FOLDER...

What this version does not have is dropped: columns, fields of the request, rows of precisions, figures of the explain
phase. A converted run can be reported and compared; ``--resume`` refuses one that had a ``schema``, because the hashes
of suites are others now.
"""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.results.columns import COLUMNS, whole_lines
from bench.results.files import write_atomically
from bench.results.records import Finding
from bench.results.run_json import FORMAT
from bench.spec.precisions import PRECISIONS
from bench.spec.trial import Protocol, Request


def convert(folder: Path) -> None:
    """Rewrite the files of a folder, run.json last, so that a conversion that was stopped can be repeated."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if "schema" not in run and run.get("format") not in (6, 7):
        sys.exit(
            f"'{folder}' is not of a former format: its run.json has no schema, and its format is neither 6 nor 7."
        )
    request = run.setdefault("request", {})
    protocol = request.setdefault("protocol", {})

    def is_known(arm: str) -> bool:  # an ablation step adds a technique; the arms of a script have any names
        return (
            arm.startswith("+")
            or request.get("script") is not None
            or arm.replace("+", ":").partition(":")[0] in PRECISIONS
        )

    frames = read(folder, is_known)
    if "most_replicates" not in protocol:  # such a run had no target to meet
        protocol.pop("target_ci", None)
        trials = frames["trials.csv"]
        trials.loc[trials["status"] == "unconverged", ["status", "detail"]] = ["ok", ""]
    for name, rows in frames.items():
        write_atomically(folder / name, rows.to_csv(index=False, lineterminator="\n"))
    for part, kind in ((request, Request), (protocol, Protocol)):
        for name in part.keys() - {field.name for field in fields(kind)}:
            del part[name]
    for device in run.get("environment", {}).get("devices", []):
        for name in (device.get("unsupported") or {}).keys() - PRECISIONS:
            del device["unsupported"][name]
    planned = [{**trial, "arms": [*filter(is_known, trial["arms"])]} for trial in run.get("planned", [])]
    run["planned"] = [trial for trial in planned if trial["arms"]]
    kept = {name: value for name, value in run.items() if name not in ("schema", "sha256", "edited", "format")}
    write_atomically(folder / "run.json", json.dumps({"format": FORMAT, **kept}, indent=2) + "\n")


def read(folder: Path, is_known: Callable[[str], bool]) -> dict[str, pd.DataFrame]:
    """Return the CSVs of a folder as texts: this version's columns of the whole rows of precisions that it knows."""
    frames = {}
    for name in filter(lambda name: (folder / name).is_file(), COLUMNS):
        whole = whole_lines(folder / name)[0]
        rows = pd.read_csv(io.BytesIO(whole), dtype=str, keep_default_na=False)
        rows = rows[rows["precision"].map(is_known).astype(bool)] if "precision" in rows else rows
        rows = rows[rows["kind"].isin(get_args(Finding))] if name == "explain.csv" else rows
        frames[name] = rows.reindex(columns=list(COLUMNS[name]), fill_value="").replace("\n", " ", regex=True)
    trials = frames["trials.csv"]
    fill(trials, "attempt", trials.groupby(["trial", "precision"]).cumcount() + 1)
    fill(trials, "trial_rows", trials.groupby(["trial", "attempt"])["trial"].transform("size"))
    last = trials.drop_duplicates("trial", keep="last").set_index("trial")["attempt"]
    for name in frames.keys() - {"trials.csv", "telemetry.csv"}:
        fill(frames[name], "attempt", frames[name]["trial"].map(last).fillna(""))
    if "epochs.csv" in frames:  # the first epoch warms up, which the former median of their times counted
        arms = frames["epochs.csv"].astype({"train_s": float}).groupby(["trial", "precision"])["train_s"]
        medians = arms.apply(lambda times: times.iloc[1 if len(times) > 1 else 0 :].median())
        times = trials.join(medians, on=["trial", "precision"])["train_s"]
        trials["time_per_epoch_s"] = times.where((trials["time_per_epoch_s"] != "") & times.notna(), "")
    return frames


def fill(rows: pd.DataFrame, column: str, values: pd.Series) -> None:
    """Write values into the empty cells of a column."""
    rows[column] = rows[column].where(rows[column] != "", values.astype(str))


if __name__ == "__main__":
    for argument in sys.argv[1:] or sys.exit(__doc__):
        if not (Path(argument) / "trials.csv").is_file():
            sys.exit(f"'{argument}' is no folder of a run: it has no trials.csv.")
        convert(Path(argument))
