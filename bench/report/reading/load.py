"""Runs as frames: the CSVs of each run, checked, with the last answer of a retried trial only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.report.reading import csv_file
from bench.report.reading.csv_file import PAIR, is_filled, read, torn
from bench.report.reading.folders import copies, labels, shown
from bench.results.columns import COLUMNS
from bench.results.records import MEASURED
from bench.results.store import read_run
from bench.spec.errors import UsageError
from bench.spec.phases import LADDER, PHASES

TRIAL = ["trial", "replicate", "seed", "precision"]
"""What tells rows of trials.csv apart; where all are equal, a trial was tried again."""
CELL = ["run", "suite", "parameters", "techniques", "data", "architecture", "device", "placement", "batch_size"]
"""What tells one cell from another: within one, precisions are compared."""
KEY = [*CELL, "precision"]
"""What tells one row of the summary from another."""
SUBJECT = CELL[:-1]
"""What a verdict is about: one recipe on one device in one run."""
WORKLOAD = ["suite", "parameters", "techniques", "data"]
"""What devices and runs may be compared on: the same recipe on the same data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run's run.json, under the name that the report gives it."""

    label: str
    info: dict[str, Any]
    folder: Path = Path()
    remarks: tuple[str, ...] = ()
    """What was odd about its files, one sentence each."""

    def part(self, name: str) -> dict[str, Any]:
        """Return an object of run.json, empty where it was not written."""
        part = self.info.get(name)
        return part if isinstance(part, dict) else {}

    def list(self, name: str) -> list[Any]:
        """Return a list of run.json, empty where it was not written."""
        part = self.info.get(name)
        return part if isinstance(part, list) else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """All runs of a report: their rows in one frame, told apart by the column ``run``."""

    runs: list[Run]
    trials: pd.DataFrame
    """One row per trial and precision, in the order measured."""
    epochs: pd.DataFrame
    """One row per epoch, with the columns of its cell."""
    blocks: pd.DataFrame
    """One row per timed block of the other phases, with the columns of its cell."""
    ablations: pd.DataFrame
    """One row per trial and step of an ablation."""
    ablation_blocks: pd.DataFrame
    """One row per timed block of an ablation, with the columns of its cell."""
    numerics: pd.DataFrame
    """One row per figure of the numerics phase, with the seed and the columns of its cell."""


def load(folders: list[Path]) -> Runs:
    """Read runs.

    Raises:
        UsageError: there is none, or one is no run, of another schema version, or without a finished trial.
    """
    unique = list(dict.fromkeys(folder.resolve() for folder in folders))
    if not unique:
        raise UsageError("There is no run to report. Give at least one folder that a run wrote, such as results/NAME.")
    infos = {folder: _info(folder) for folder in unique}
    twice = copies(infos)
    unique = [folder for folder in unique if folder not in twice]
    runs, trials, epochs, blocks, numerics = [], [], [], [], []
    for folder, label in zip(unique, labels(unique), strict=True):
        info = infos[folder]
        rows = read(folder / "trials.csv").assign(run=label)
        if rows.empty:
            raise UsageError(
                f"The run in '{folder}' has no finished trial yet, so there is nothing to report. "
                f"Finish it with --resume {folder}."
            )
        odd = [warning for name in COLUMNS for warning in torn(folder / name)]
        odd += csv_file.repeated(folder / "trials.csv", rows, TRIAL) + _absent(folder, rows)
        rows = rows.drop_duplicates(TRIAL, keep="last")
        csv_file.refuse_too_much_memory(folder / "trials.csv", rows, info)
        timed = _blocks(folder, rows)
        odd += [f"{shown(other)} is a copy of it, and is left out." for other, of in twice.items() if of == folder]
        odd += csv_file.lost_blocks(_filling(rows, "blocks.csv"), timed) if is_filled(folder / "blocks.csv") else []
        runs.append(Run(label=label, info=info, folder=folder, remarks=tuple(odd)))
        trials.append(rows)
        epochs.append(_with_cells(folder / "epochs.csv", rows, ["seed", "epoch"]))
        blocks.append(timed)
        numerics.append(_with_cells(folder / "numerics.csv", rows, ["kind", "step", "layer", "name"], more=["seed"]))
    every, timed = (_unify(runs, pd.concat(rows, ignore_index=True)) for rows in (trials, blocks))
    ablation, ablation_block = every["phase"].isin(LADDER), timed["phase"].isin(LADDER)
    return Runs(
        runs=runs,
        trials=every[~ablation].reset_index(drop=True),
        epochs=_unify(runs, pd.concat(epochs, ignore_index=True)),
        blocks=timed[~ablation_block].reset_index(drop=True),
        ablations=every[ablation].reset_index(drop=True),
        ablation_blocks=timed[ablation_block].reset_index(drop=True),
        numerics=_unify(runs, pd.concat(numerics, ignore_index=True)),
    )


def _filling(trials: pd.DataFrame, file: str) -> pd.DataFrame:
    """Return the trials of phases that write rows to a CSV beside trials.csv."""
    return trials[trials["phase"].isin([name for name, phase in PHASES.items() if phase.file == file])]


def _absent(folder: Path, trials: pd.DataFrame) -> list[str]:
    """Warn, in one sentence, of files that are not there although measured trials filled them."""
    measured = trials[trials["status"].isin(MEASURED)]
    lost = [file for file in COLUMNS if len(_filling(measured, file)) and not is_filled(folder / file)]
    verb, them = ("is", "it") if len(lost) == 1 else ("are", "them")
    return [f"{' and '.join(lost)} {verb} missing, so what is made from {them} is not in the report."] if lost else []


def _info(folder: Path) -> dict[str, Any]:
    if not (folder / "run.json").is_file():
        beside = folder.parent if folder.parent.is_dir() else Path()
        known = sorted(path.parent.name for path in beside.glob("*/run.json"))[:20]
        there = f"Runs beside it: {', '.join(known)}." if known else "There is none beside it either."
        raise UsageError(f"'{folder}' is no run: it has no run.json. {there} Give the folder that a run wrote.")
    return read_run(folder)


def _with_cells(path: Path, trials: pd.DataFrame, key: list[str], more: list[str] | None = None) -> pd.DataFrame:
    """Read a CSV of a run, each row with the columns of its trial's cell; a retried trial's last rows count.

    Args:
        path: the file.
        trials: the run's rows of trials.csv.
        key: what tells apart the rows of one trial and precision.
        more: further columns to take from trials.csv.
    """
    rows = read(path).drop_duplicates([*PAIR, *key], keep="last")
    cells = _filling(trials, path.name)[[*PAIR, *(more or []), *CELL]]
    return rows.merge(cells.drop_duplicates(PAIR, keep="last"), on=PAIR)


def _blocks(folder: Path, trials: pd.DataFrame) -> pd.DataFrame:
    """Read the timed blocks of a run, each with the phase and the columns of its cell; words are categories.

    There may be millions of blocks, so trials and precisions are compared by their codes.
    """
    blocks = read(folder / "blocks.csv", words="category")
    pair = blocks["trial"].cat.codes.astype("int64") * (1 + len(blocks["precision"].cat.categories))
    pair += blocks["precision"].cat.codes
    position = pd.DataFrame({"pair": pair, "round": blocks["round"], "position": blocks["position"]})
    blocks, pair = blocks[kept := ~position.duplicated(keep="last")], pair[kept]
    timed = _filling(trials, "blocks.csv")[[*PAIR, "phase", *CELL]]
    timed = timed.drop_duplicates(PAIR, keep="last")
    codes, first = np.unique(pair, return_index=True)
    known = pd.MultiIndex.from_frame(timed[PAIR])
    rows = known.get_indexer(pd.MultiIndex.from_frame(blocks[PAIR].iloc[first].astype(object)))
    row = rows[np.searchsorted(codes, pair)]
    cells = timed[["phase", *CELL]].astype({name: "category" for name in ("phase", *CELL) if name != "batch_size"})
    cells = cells.iloc[row[row >= 0]]
    return pd.concat([blocks[row >= 0].reset_index(drop=True), cells.reset_index(drop=True)], axis=1)


def fingerprints(run: Run) -> dict[str, str]:
    """Return the fingerprints that a run kept of its sources of data, by the sources' names."""
    found = [part for part in run.list("data") if isinstance(part, dict)]
    return {str(part["source"]): str(part["fingerprint"]) for part in found if part.get("fingerprint")}


def _renamed(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """Return what each source of a run is to be called, by the run's label and the source's own name.

    Sources of one fingerprint have the name that the first of them has; a name that stands for other images already
    gets the fingerprint's first six digits. Sources without a fingerprint keep their names.
    """
    names: dict[str, str] = {}
    for run in runs:
        for source, print_of in fingerprints(run).items():
            if print_of not in names:
                names[print_of] = f"{source}#{print_of[:6]}" if source in names.values() else source
    return {(run.label, source): names[print_of] for run in runs for source, print_of in fingerprints(run).items()}


def _unify(runs: Sequence[Run], frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the column ``data`` as ``_renamed`` says."""
    changes = {key: name for key, name in _renamed(runs).items() if key[1] != name}
    if not changes or frame.empty:
        return frame
    pairs = frame["run"].astype(str), frame["data"].astype(str)
    data = [changes.get(pair, pair[1]) for pair in zip(*pairs, strict=True)]
    return frame.assign(data=pd.Series(data, index=frame.index, dtype=str).astype(frame["data"].dtype))


def data_remarks(runs: Sequence[Run]) -> list[str]:
    """Say which paths hold the same images, and which one path holds other ones."""
    said, fingerprints_of = [], {run.label: fingerprints(run) for run in runs}
    for (label, source), name in _renamed(runs).items():
        if source != name and name == f"{source}#{fingerprints_of[label][source][:6]}":
            said.append(f"{source} of run {label} holds other images than in the runs before it; it is called {name}.")
        elif source != name:
            said.append(f"{source} of run {label} holds the same images as {name}, and is called that here.")
    return said
