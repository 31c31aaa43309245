#!/usr/bin/env python3
"""Rewrite results folders of format 8, which has one trials.csv for all phases, as one CSV for each phase, in place.

    python perf/convert_results.py FOLDER...

Where a trial was tried again, the rows of the last attempt are kept. A run of an older format is converted first by the
version of this script that belongs to format 8.
"""

import io
import json
import re
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.results.columns import COLUMNS, OF_PHASES, whole_lines
from bench.results.files import write_atomically
from bench.results.run_json import FORMAT
from bench.spec.phases import MEASURING, PHASES

FORMER = 8
FIGURES = {"numerics": "numerics.csv", "layers": "numerics.csv", "explain": "explain.csv"}
"""The phases whose details have a file of another name now, and the former one."""


def convert(folder: Path) -> None:
    """Rewrite the files of a folder, run.json last, so that a conversion that was stopped can be repeated."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if run.get("format") != FORMER:
        sys.exit(f"'{folder}' is not of format {FORMER}: its run.json has the format {run.get('format')}.")
    trials = counting(texts(folder / "trials.csv"))
    attempts = trials.drop_duplicates("trial").set_index("trial")["attempt"]
    names = {row.trial: renamed(row.trial, row.phase) for row in trials.itertuples()}
    phase_of = trials.drop_duplicates("trial").set_index("trial")["phase"]
    details = {}
    for name in ("blocks.csv", "epochs.csv", *dict.fromkeys(FIGURES.values())):
        rows = texts(folder / name)
        if not rows.empty:
            rows = rows[rows["attempt"] == rows["trial"].map(attempts)]
            rows = rows.assign(phase=rows["trial"].map(phase_of), trial=rows["trial"].map(names))
        details[name] = rows
    written = {name: rows for name, rows in details.items() if name in COLUMNS and name not in OF_PHASES}
    for phase, former in FIGURES.items():
        rows = details[former]
        (name,) = PHASES[phase].details.values()
        written[name] = rows[rows["phase"] == phase] if not rows.empty else rows
    trials = trials.assign(trial=trials["trial"].map(names))
    for name, phase in MEASURING.items():
        written[phase.file] = of_phase(trials[trials["phase"] == name], name)
    (folder / "trials.csv").rename(folder / "trials.csv.converted")
    for name in dict.fromkeys(FIGURES.values()):
        (folder / name).unlink(missing_ok=True)
    for name, rows in written.items():
        if rows.empty and (folder / name).exists():
            write_atomically(folder / name, ",".join(COLUMNS[name]) + "\n")
        elif not rows.empty:
            columns = [column for column in COLUMNS[name] if column in rows]
            if name in OF_PHASES:
                columns = [column for column in columns if (rows[column] != "").any()]
            text = rows[columns].to_csv(index=False, lineterminator="\n")
            write_atomically(folder / name, text)
    planned = [{**trial, **renamed_plan(trial)} for trial in run.get("planned", [])]
    write_atomically(folder / "run.json", json.dumps({**run, "format": FORMAT, "planned": planned}, indent=2) + "\n")
    (folder / "trials.csv.converted").unlink()


def texts(path: Path) -> pd.DataFrame:
    """Read a CSV's whole rows as texts; a missing one is empty."""
    data = whole_lines(path)[0]
    return pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False) if data.strip() else pd.DataFrame()


def counting(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last whole attempt at each trial, without arms that were measured together after all."""
    size = trials.groupby(["trial", "attempt"])["trial"].transform("size")
    whole = trials[size >= trials["trial_rows"].astype(int)]
    last = whole.groupby("trial")["attempt"].transform(lambda attempts: max(attempts, key=int))
    rows = whole[whole["attempt"] == last]
    arm = ["cell", "phase", "replicate", "seed", "arm_precision", "arm_techniques"]
    of_trial = rows.groupby("trial")
    is_together = of_trial["trial"].transform("size").gt(1) & ~of_trial["status"].transform(lambda s: "oom" in set(s))
    together = rows[is_together][arm].apply(tuple, axis=1)
    is_apart = of_trial["trial"].transform("size").eq(1)
    return rows[~(is_apart & rows[arm].apply(tuple, axis=1).isin(set(together)))]


def of_phase(trials: pd.DataFrame, phase: str) -> pd.DataFrame:
    """Return the rows of a phase in its own columns."""
    if trials.empty:
        return trials
    rows = trials.assign(parameters=trials["parameters_json"].replace("{}", ""))
    if phase == "memory":
        rows["replicate"] = rows["trial"].str.extract(r"-r(\d+)$")[0]
    return rows


def renamed(trial: str, phase: str) -> str:
    """Return the name of a trial now: processes of the memory phase are counted as those of others are."""
    if phase != "memory":
        return trial
    return re.sub(r"-s(\d+)$", r"-r\1", trial) if re.search(r"-s\d+$", trial) else f"{trial}-r0"


def renamed_plan(trial: dict[str, object]) -> dict[str, object]:
    """Return what changes in an entry of the plan."""
    name = renamed(str(trial["trial"]), str(trial["phase"]))
    if trial["phase"] != "memory":
        return {}
    return {"trial": name, "replicate": int(name.rpartition("-r")[2]), "seed": 0}


if __name__ == "__main__":
    for argument in sys.argv[1:] or sys.exit(__doc__):
        if not (Path(argument) / "trials.csv").is_file():
            sys.exit(f"'{argument}' is no folder of a run of format {FORMER}: it has no trials.csv.")
        convert(Path(argument))
