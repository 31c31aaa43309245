"""The rows of a run's CSVs as texts, read and edited."""

import csv
from collections.abc import Callable
from typing import Any

from bench.report.reading.trials import ADDED, TRIALS, read_details, read_trials
from bench.results.columns import COLUMNS, OF_PHASES
from bench.results.run_json import read_run

Row = dict[str, str]
Change = Callable[[Row], Any]
EMPTY = dict.fromkeys(TRIALS, "")


def rows(folder, name):
    """The rows of one CSV; none where it is missing."""
    path = folder / name
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def trial_rows(folder):
    """The rows of all phases, each with its phase, in the order measured; a column that a file
    lacks is empty.
    """
    of_phases = []
    for name in OF_PHASES:
        of_phases += _of_phase(folder, name)
    return sorted(of_phases, key=lambda row: row["started"])


def trial_figures(folder):
    """The rows of all phases as reports read them, with the figures that follow from blocks and
    epochs.
    """
    details = read_details(folder)
    trials = read_trials(folder, read_run(folder), details)
    return trials.to_dict("records")


def _of_phase(folder, name):
    phase = name.removesuffix(".csv")
    of_phase = []
    for row in rows(folder, name):
        of_phase.append(EMPTY | row | {"phase": phase})
    return of_phase


def write_rows(folder, name, written):
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


def edit_rows(folder, change, name=None):
    """Change every row of a CSV in place; without a name those of all phases."""
    for file in OF_PHASES if name is None else [name]:
        if (folder / file).exists():
            table = _of_phase(folder, file) if name is None else rows(folder, file)
            for row in table:
                change(row)
                for column in ADDED:
                    row.pop(column, None)
            write_rows(folder, file, table)
