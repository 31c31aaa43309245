"""CSV to frames: what a run left behind, checked, with a retried trial's last answer only."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.report.reading import sources
from bench.report.reading import validation as block_counts
from bench.report.reading import validation as sanity
from bench.report.reading.folders import copies, labels, shown
from bench.report.reading.validation import missing_columns, refuse_schema, whole_lines
from bench.results.columns import COLUMNS, SCHEMA
from bench.results.store import read_run
from bench.spec.errors import UsageError
from bench.spec.phases import LADDER

TRIAL = ["trial", "replicate", "seed", "precision"]
"""What tells one row of trials.csv from another that is not the same trial, tried again."""
CELL = ["run", "suite", "parameters", "techniques", "data", "architecture", "device", "placement", "batch_size"]
"""What tells one cell from another: within one, precisions are compared."""
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
    """One row per timed block of the speed phase, with the columns of its cell."""
    climbs: pd.DataFrame
    """One row per trial and rung of the ladder."""
    climb_blocks: pd.DataFrame
    """One row per timed block of the ladder, with the columns of its cell."""
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
        rows = _read(folder / "trials.csv").assign(run=label)
        if rows.empty:
            raise UsageError(
                f"The run in '{folder}' has no finished trial yet, so there is nothing to report. "
                f"Finish it with --resume {folder}."
            )
        odd = [said for name in COLUMNS for said in sanity.torn(folder / name)]
        odd += sanity.repeated(folder / "trials.csv", rows) + sanity.absent(folder, rows)
        rows = rows.drop_duplicates(TRIAL, keep="last")
        sanity.refuse_too_much_memory(folder / "trials.csv", rows, info)
        timed = _blocks(folder, rows)
        odd += [f"{shown(other)} is a copy of it, and is left out." for other, of in twice.items() if of == folder]
        odd += block_counts.remarks(rows, timed) if sanity.is_there(folder / "blocks.csv") else []
        runs.append(Run(label=label, info=info, folder=folder, remarks=tuple(odd)))
        trials.append(rows)
        epochs.append(_epochs(folder, rows))
        blocks.append(timed)
        numerics.append(_numerics(folder, rows))
    every, timed = (sources.unify(runs, pd.concat(rows, ignore_index=True)) for rows in (trials, blocks))
    climbs, climbing = every["phase"].isin(LADDER), timed["phase"].isin(LADDER)
    return Runs(
        runs=runs,
        trials=every[~climbs].reset_index(drop=True),
        epochs=sources.unify(runs, pd.concat(epochs, ignore_index=True)),
        blocks=timed[~climbing].reset_index(drop=True),
        climbs=every[climbs].reset_index(drop=True),
        climb_blocks=timed[climbing].reset_index(drop=True),
        numerics=sources.unify(runs, pd.concat(numerics, ignore_index=True)),
    )


def _info(folder: Path) -> dict[str, Any]:
    if not (folder / "run.json").is_file():
        beside = folder.parent if folder.parent.is_dir() else Path()
        known = sorted(path.parent.name for path in beside.glob("*/run.json"))[:20]
        there = f"Runs beside it: {', '.join(known)}." if known else "There is none beside it either."
        raise UsageError(f"'{folder}' is no run: it has no run.json. {there} Give the folder that a run wrote.")
    return read_run(folder)


def _read(path: Path, words: str = "object") -> pd.DataFrame:
    """Read one CSV; a last line without its end, which a crash leaves, is left out.

    Args:
        path: the file; one that is not there is empty.
        words: pandas' type of the columns that are not numbers.
    """
    columns = COLUMNS[path.name]
    dtypes = {name: float if field.kind == "number" else words for name, field in columns.items()}
    whole = whole_lines(path)
    missing = missing_columns(path, whole) if whole else None
    if missing is None:
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes.items()})
    there = {name: dtype for name, dtype in dtypes.items() if name not in missing}
    numbers = [name for name, dtype in there.items() if dtype is float]
    try:
        frame = pd.read_csv(
            io.BytesIO(whole),
            usecols=list(there),
            dtype=there,
            keep_default_na=False,
            na_values={name: ["", "nan", "NaN"] for name in numbers},
        )
    except ValueError as error:
        why = sanity.blame(path, numbers) or error
        raise UsageError(f"'{path}' cannot be read: {why}. Repair or remove that line.") from error
    for other in frame.loc[frame["schema"] != SCHEMA, "schema"].iloc[:1]:
        refuse_schema(path, f"{other:g}")
    many = path.name == "blocks.csv"  # of which there may be millions
    if not many:
        sanity.refuse_short_lines(path, whole)
    sanity.check(path, frame)
    if missing:
        empty = {name: float("nan") if dtypes[name] is float else "" for name in missing}
        frame = pd.concat([frame, pd.DataFrame(empty, index=frame.index)], axis=1)[list(columns)]
    return frame if many else frame.copy()  # its columns together: rows are taken from it hundreds of times


def _epochs(folder: Path, trials: pd.DataFrame) -> pd.DataFrame:
    """Read the epochs of a run's trials, each with the columns of its cell."""
    epochs = _read(folder / "epochs.csv")
    epochs = epochs.drop_duplicates(["trial", "precision", "seed", "epoch"], keep="last")
    cells = trials.loc[trials["phase"] == "train", ["trial", "precision", *CELL]]
    return epochs.merge(cells.drop_duplicates(["trial", "precision"], keep="last"), on=["trial", "precision"])


def _blocks(folder: Path, trials: pd.DataFrame) -> pd.DataFrame:
    """Read the blocks of a run's speed trials and ladders, each with the columns of its cell; words are categories.

    There may be millions, so that they are told apart by numbers.
    """
    blocks = _read(folder / "blocks.csv", words="category")
    pair = blocks["trial"].cat.codes.astype("int64") * (1 + len(blocks["precision"].cat.categories))
    pair += blocks["precision"].cat.codes
    place = pd.DataFrame({"pair": pair, "round": blocks["round"], "position": blocks["position"]})
    blocks, pair = blocks[kept := ~place.duplicated(keep="last")], pair[kept]
    timed = trials.loc[trials["phase"].isin(("speed", "ladder")), ["trial", "precision", "phase", *CELL]]
    timed = timed.drop_duplicates(["trial", "precision"], keep="last")
    codes, first = np.unique(pair, return_index=True)
    known = pd.MultiIndex.from_frame(timed[["trial", "precision"]])
    rows = known.get_indexer(pd.MultiIndex.from_frame(blocks[["trial", "precision"]].iloc[first].astype(object)))
    row = rows[np.searchsorted(codes, pair)]
    words = {name: "category" for name in ("phase", *CELL) if name != "batch_size"}
    cells = timed[["phase", *CELL]].astype(words).iloc[row[row >= 0]]
    return pd.concat([blocks[row >= 0].reset_index(drop=True), cells.reset_index(drop=True)], axis=1)


def _numerics(folder: Path, trials: pd.DataFrame) -> pd.DataFrame:
    """Read the figures of a run's numerics trials, each with its seed and the columns of its cell."""
    numerics = _read(folder / "numerics.csv")
    numerics = numerics.drop_duplicates(["trial", "precision", "kind", "step", "layer", "name"], keep="last")
    cells = trials.loc[trials["phase"] == "numerics", ["trial", "precision", "seed", *CELL]]
    return numerics.merge(cells.drop_duplicates(["trial", "precision"], keep="last"), on=["trial", "precision"])
