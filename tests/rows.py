"""The rows of a run's CSVs as texts, read and edited."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report.reading.trials import ADDED, TRIALS, read_details, read_trials
from bench.results.columns import COLUMNS, OF_PHASES
from bench.results.run_json import read_run

Row = dict[str, str]
EMPTY = dict.fromkeys(TRIALS, "")


def rows(folder: Path, name: str) -> list[Row]:
    """The rows of one CSV; none where it is missing."""
    if not (folder / name).exists():
        return []
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def trial_rows(folder: Path) -> list[Row]:
    """The rows of all phases, each with its phase, in the order measured; a column that a file
    lacks is empty.
    """
    found = []
    for name in OF_PHASES:
        found += _of_phase(folder, name)
    return sorted(found, key=lambda row: row["started"])


def trial_figures(folder: Path) -> list[dict[str, Any]]:
    """The rows of all phases as reports read them, with the figures that follow from blocks and
    epochs.
    """
    return read_trials(folder, read_run(folder), read_details(folder)).to_dict("records")


def _of_phase(folder: Path, name: str) -> list[Row]:
    phase = name.removesuffix(".csv")
    return [{**EMPTY, **row, "phase": phase} for row in rows(folder, name)]


def write_rows(folder: Path, name: str, written: list[Row]) -> None:
    """Replace a CSV; of a phase it has the columns that a row has a value in."""
    columns = [*COLUMNS[name]]
    filled = set()
    for row in written:
        for column, value in row.items():
            if column not in EMPTY and column not in columns:
                columns.append(column)
            if value != "":
                filled.add(column)
    if name in OF_PHASES:
        columns = [column for column in columns if column in filled]
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(written)


def edit_rows(folder: Path, change: Callable[[Row], Any], name: str | None = None) -> None:
    """Change every row of a CSV in place; without a name those of all phases."""
    for each in OF_PHASES if name is None else [name]:
        if not (folder / each).exists():
            continue
        found = rows(folder, each) if name else _of_phase(folder, each)
        for row in found:
            change(row)
            for column in ADDED:
                row.pop(column, None)
        write_rows(folder, each, found)
