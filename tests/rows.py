"""The rows of a run's CSVs as texts, read and edited."""

import csv
from collections.abc import Callable, Iterable
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
    return [{**EMPTY, **row, "phase": name.removesuffix(".csv")} for row in rows(folder, name)]


def write_rows(folder: Path, name: str, written: Iterable[Row]) -> None:
    """Replace a CSV; of a phase it has the columns that a row has a value in."""
    written = list(written)
    filled, extra = set(), []
    for row in written:
        filled |= {column for column in row if row[column] != ""}
        extra += [column for column in row if column not in EMPTY]
    columns = list(dict.fromkeys([*COLUMNS[name], *extra]))
    if name in OF_PHASES:
        columns = [column for column in columns if column in filled]
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(written)


def edit_rows(folder: Path, change: Callable[[Row], Any], name: str | None = None) -> None:
    """Change every row of a CSV in place; without a name those of all phases."""
    if name is not None:
        files = {name: rows(folder, name)}
    else:
        files = {each: _of_phase(folder, each) for each in OF_PHASES if (folder / each).exists()}
    for each, found in files.items():
        for row in found:
            change(row)
            for column in ADDED:
                row.pop(column, None)
        write_rows(folder, each, found)


def keep_rows(folder: Path, keep: Callable[[Row], bool]) -> None:
    """Remove the rows of phases that are not to be kept."""
    for name in OF_PHASES:
        if (folder / name).exists():
            write_rows(folder, name, [row for row in rows(folder, name) if keep(row)])
