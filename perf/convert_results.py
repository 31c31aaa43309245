#!/usr/bin/env python3
"""Rewrite results folders of format 9, which store figures that follow from other rows, without these, in place.

    python perf/convert_results.py FOLDER...

What a step counts is kept in other words: samples_per_step, and tokens_per_sample. A run of an
older format is converted first by the version of this script that belongs to format 9.
"""

import io
import json
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.results.columns import COLUMNS, derived, whole_lines
from bench.results.files import write_atomically
from bench.results.run_json import FORMAT
from bench.spec.phases import MEASURING

FORMER = 9


def convert(folder: Path) -> None:
    """Rewrite the files of a folder, run.json last, so that a conversion that was stopped can be repeated."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if run.get("format") != FORMER:
        sys.exit(
            f"'{folder}' is not of format {FORMER}: its run.json has the format "
            f"{run.get('format')}."
        )
    for phase in MEASURING.values():
        rows = texts(folder / phase.file)
        if rows.empty:
            continue
        if "step_ms" in rows:
            rows = counted(rows)
        rows = rows.drop(columns=[name for name in derived(phase) if name in rows])
        columns = [
            name for name in COLUMNS[phase.file] if name in rows and (rows[name] != "").any()
        ]
        added = [name for name in rows if name not in COLUMNS[phase.file]]  # by somebody
        write_atomically(
            folder / phase.file, rows[columns + added].to_csv(index=False, lineterminator="\n")
        )
    write_atomically(folder / "run.json", json.dumps({**run, "format": FORMAT}, indent=2) + "\n")


def texts(path: Path) -> pd.DataFrame:
    """Read a CSV's whole rows as texts; a missing one is empty."""
    data = whole_lines(path)[0]
    return (
        pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)
        if data.strip()
        else pd.DataFrame()
    )


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of speed with what a step counts, to the ten digits that its throughput bears."""
    step_ms, samples_per_s = (pd.to_numeric(rows[name]) for name in ("step_ms", "samples_per_s"))
    rows = rows.assign(samples_per_step=words(samples_per_s * step_ms / 1e3))
    if "tokens_per_s" in rows:
        rows["tokens_per_sample"] = words(pd.to_numeric(rows["tokens_per_s"]) / samples_per_s)
    return rows


def words(numbers: pd.Series) -> pd.Series:
    """Write numbers for a CSV."""
    return numbers.map(lambda number: "" if pd.isna(number) else f"{number:.10g}").astype(object)


if __name__ == "__main__":
    for argument in sys.argv[1:] or sys.exit(__doc__):
        if not (Path(argument) / "run.json").is_file():
            sys.exit(f"'{argument}' is no folder of a run: it has no run.json.")
        convert(Path(argument))
