"""The CSV store of a run: appends rows as trials end, and tells what has been measured, for --resume.

A run is a folder under results/: run.json, one CSV for each phase, and CSVs with the details of trials. When a trial
ends, the rows of its details are appended to their files, and then its own, in one write, to its phase's CSV; each file
is flushed to disk before the next. So a trial has ended if its phase's CSV has its rows. Details of other trials do not
count: readers leave them out, and a store that is opened drops them.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.results import csv_file, run_json
from bench.results.columns import COLUMNS, LIST, OF_PHASES, cells, whole_lines
from bench.results.files import replacing, sync, write_atomically
from bench.results.records import Device, Identity, Sample, Status, TrialResult
from bench.spec.errors import UsageError
from bench.spec.phases import MEASURING, PHASES
from bench.spec.techniques import AblationStep
from bench.spec.trial import Trial

FAILURES: tuple[Status, ...] = ("timeout", "failed")
"""The statuses that are not final: ``--resume`` tries such a trial again."""
ARM = ["precision", "techniques", "ablation"]
"""The columns that name an arm."""
LOG = "; log: "
"""In a row's detail, between why a process failed and the file with all that it printed."""

Row = dict[str, Any]
"""A row of a CSV by its columns, as it is written."""


class CsvFile:
    """One CSV of a run, which rows are appended to."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made with its first row."""
        self.path = path
        self.header: list[str] = []
        """The columns in the file: of a phase's those that a row has a value in; last those that somebody added."""

    def recover(self, lost: set[str]) -> bool:
        """Cut off a torn last row, and leave out the rows of ``lost`` trials; return whether a row was torn."""
        is_torn = whole_lines(self.path)[1]
        if is_torn:
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        self.header = [*self._texts(rows=0)]
        if lost:
            self.rewrite(without=lost)
        return is_torn

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one write, or leave the file as it was and raise the OSError."""
        wanted = {column for row in rows for column, value in row.items() if value != ""}
        if self.path.name not in OF_PHASES:
            wanted = {*COLUMNS[self.path.name]}
        if not wanted <= {*self.header}:
            named = wanted.union(self.header)
            in_order = dict.fromkeys([*COLUMNS[self.path.name], *self.header])
            self.header = [column for column in in_order if column in named]
            self.rewrite()
        text = io.StringIO()
        csv.DictWriter(text, self.header, extrasaction="ignore", lineterminator="\n").writerows(rows)
        left = text.getvalue().encode()
        with self.path.open("r+b", buffering=0) as file:  # fails where somebody deleted it
            size = file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):  # the first error is the one to tell
                    file.truncate(size)
                raise

    def rewrite(self, without: Set[str] = frozenset()) -> None:
        """Replace the file, atomically, by one with the present columns, and without the rows of some trials."""
        rows = self._texts()
        if without and len(rows):
            rows = rows[~rows["trial"].isin(without)]
        with replacing(self.path) as draft:
            rows.reindex(columns=self.header, fill_value="").to_csv(draft, index=False, lineterminator="\n")

    def _texts(self, rows: int | None = None) -> pd.DataFrame:
        """Return the cells as they are written, of all rows or the first."""
        data = whole_lines(self.path)[0]
        if not data.strip():
            return pd.DataFrame()
        return pd.read_csv(io.BytesIO(data), dtype=object, keep_default_na=False, nrows=rows)


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``, making it if it is missing, and drop the details of trials that have not ended.

        Raises:
            UsageError: a CSV is not a run's, or cannot be read; nothing has been changed then.
            OSError: the folder cannot be written.
        """
        rows = {name: csv_file.read(folder / name) for name in COLUMNS}  # refuses what no run has written
        _require_phases(folder, rows)
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)
        for draft in folder.glob(".*.part.csv"):  # left by a run that was killed
            draft.unlink()
        self._files = {name: CsvFile(folder / name) for name in COLUMNS}
        self._ended = {trial for name in OF_PHASES for trial in rows[name]["trial"]}
        """The trials that have rows in the file of their phase."""
        self.dropped: dict[str, int] = {}
        """How many rows were dropped that were torn, or details of trials that have not ended, by file."""
        for name, file in self._files.items():
            trials = rows[name].get("trial", pd.Series(dtype=object))
            is_lost = ~trials.isin(self._ended)
            is_torn = file.recover(set(trials[is_lost]))
            count = int(is_lost.sum()) + is_torn
            if count:
                self.dropped[name] = count

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the store; there is nothing to close."""

    def add_results(
        self, trial: Trial, device: Device, results: Iterable[TrialResult], records: Iterable[object] = ()
    ) -> None:
        """Store a trial that has ended: its records, and then a row of its phase's CSV for each precision.

        They take the place of an earlier attempt at the trial; where its arms fit together, also of those that were
        measured apart before.

        Raises:
            UsageError: the folder cannot be written; what was stored before is still there.
        """
        phase, results = PHASES[trial.phase], list(results)
        arms = {arm.name: arm for arm in trial.arms}
        rows = []
        for result in results:
            rows.append(cells(result, self._identity(trial, device, result, arms[result.precision])))
        replaced = {trial.id}
        if "oom" not in {result.status for result in results}:
            replaced |= {each.id for each in trial.apart()}
        with self._writing():
            if replaced & self._ended:
                for name in (phase.file, *phase.details.values()):  # first: details are never those of two attempts
                    if self._files[name].header:
                        self._files[name].rewrite(without=replaced)
            self._append(phase.details, records)
            self._files[phase.file].append(rows)
        self._ended = self._ended - replaced | {trial.id}

    def _identity(self, trial: Trial, device: Device, result: TrialResult, arm: AblationStep) -> Identity:
        cell, key = trial.cell, PHASES[trial.phase].key
        return Identity(
            trial=trial.id,
            suite=cell.suite.name,
            parameters=dict(cell.suite.parameters) or None,
            device=device.name,
            architecture=device.architecture,
            placement=cell.placement.name,
            batch_size=cell.batch_size,
            precision=arm.precision,
            techniques=arm.techniques or cell.techniques,
            ablation=trial.ablation or None,
            data=str(cell.data),
            replicate=trial.replicate if key == "replicate" else None,
            seed=trial.seed if key == "seed" else None,
            status=result.status,
            detail=result.detail,
            started=result.started,
        )

    def add(self, records: Iterable[Sample]) -> None:
        """Append readings of GPUs, which are of no trial.

        Raises:
            UsageError: the folder cannot be written; what was stored before is still there.
        """
        with self._writing():
            self._append({}, records)

    def _append(self, details: Mapping[type, str], records: Iterable[object]) -> None:
        """Append records, each file's in one write; those that are of no file are left out."""
        rows: dict[str, list[Row]] = {}
        files: dict[type, str] = {**details, Sample: "telemetry.csv"}
        for record in records:
            if (name := files.get(type(record))) is not None:
                rows.setdefault(name, []).append(cells(record))
        for name, added in rows.items():
            self._files[name].append(added)

    def write_run(self, run: dict[str, Any]) -> None:
        """Replace run.json, atomically.

        Raises:
            UsageError: the folder cannot be written.
        """
        content = {"format": run_json.FORMAT, "run": self.name, **run}
        with self._writing():
            write_atomically(self.folder / "run.json", run_json.text_of(content))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an OSError into the UsageError that ends the run."""
        try:
            yield
        except OSError as error:
            raise self.lost(error) from error

    def lost(self, error: OSError) -> UsageError:
        """Return the error that ends the run."""
        if isinstance(error, FileNotFoundError):
            return UsageError(
                f"The run's folder '{self.folder}' was deleted or moved. Move it back, and go on with "
                f"--resume {self.folder}, or start the run again."
            )
        return UsageError(
            f"The run's folder '{self.folder}' cannot be written: {error.strerror or error}. What was stored before is "
            f"still there. Make room, and go on with --resume {self.folder}."
        )


def _require_phases(folder: Path, rows: Mapping[str, pd.DataFrame]) -> None:
    """Refuse a folder with details of several trials and no file of their phases: opening it would drop them all.

    A run that was killed leaves those of one trial at most.
    """
    for name in COLUMNS:
        files = [phase.file for phase in MEASURING.values() if name in phase.details.values()]
        if files and rows[name]["trial"].nunique() > 1 and not any(len(rows[file]) for file in files):
            raise UsageError(
                f"'{folder}' has no {' or '.join(files)}, so the rows of its {name} would be dropped. Put it back, or "
                "start a new run."
            )


@dataclass(kw_only=True, slots=True)
class StoredResults:
    """What a run has measured so far."""

    statuses: dict[str, dict[str, Status]] = field(default_factory=dict)
    """By the id of each trial, the status of each arm by its name; arms that are tried again have none."""
    batch_sizes: dict[str, int] = field(default_factory=dict)
    """The batch size of each trial that earlier processes have stored, by its id."""

    def final(self, trial: Trial) -> set[str]:
        """Return the names of the arms of a trial whose outcome is final, measured in it or apart."""
        arms = set()
        for each in (trial, *trial.apart()):
            for name, status in self.statuses.get(each.id, {}).items():
                if status not in FAILURES:
                    arms.add(name)
        return arms

    def is_done(self, trial: Trial) -> bool:
        """Return whether each arm of a trial has a final row, of this trial or apart from the others."""
        return {*trial.precisions} <= self.final(trial)


def stored_results(folder: Path) -> StoredResults:
    """Read what a run has measured.

    Raises:
        UsageError: a CSV is not a run's, or damaged.
    """
    known = StoredResults()
    for name in OF_PHASES:
        rows = csv_file.read(folder / name)
        for row in rows[["trial", *ARM, "batch_size", "status"]].to_dict("records"):
            known.batch_sizes[row["trial"]] = int(row["batch_size"])
            if row["status"] not in FAILURES:
                known.statuses.setdefault(row["trial"], {})[arm_name(row)] = row["status"]
    return known


def arm_name(row: Mapping[Any, Any]) -> str:
    """Return the name of a row's arm: its precision, and of an ablation step the techniques, too."""
    is_step = row.get("ablation") == "yes" and row["techniques"]
    return f"{row['precision']}{LIST}{row['techniques']}" if is_step else str(row["precision"])
