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
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bench.results import csv_file, run_json
from bench.results.columns import COLUMNS, OF_PHASES, cells, whole_lines
from bench.results.files import replacing, sync_folder, write_atomically
from bench.results.records import Device, Identity, Ran, Sample, Status, TrialResult
from bench.spec.errors import UsageError
from bench.spec.phases import MEASURING, PHASES
from bench.spec.techniques import AblationStep
from bench.spec.text import unquoted
from bench.spec.trial import Trial

DETAILS = tuple(name for name in COLUMNS if name not in OF_PHASES)
FAILURES: tuple[Status, ...] = ("timeout", "failed")
"""The statuses that are not final: ``--resume`` tries such a trial again."""
LOG = "; log: "
"""In a row's detail, between why a process failed and the file with all that it printed."""

Row = dict[str, Any]
"""A row of a CSV by its columns, as it is written or as its text was read."""


class CsvFile:
    """One CSV of a run, which rows are appended to."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made with its first row."""
        self.path = path
        self.header = [] if path.name in OF_PHASES else list(COLUMNS[path.name])
        """The columns in the file: of a phase's those that a row has a value in; last those that somebody added."""
        self._file: io.FileIO | None = None

    def recover(self, lost: set[str]) -> int:
        """Leave out a torn last row, and the rows of ``lost`` trials; return how many these are."""
        data, torn = whole_lines(self.path)
        if not data.strip():
            return 0
        before = next(csv.reader([data.decode().partition("\n")[0].rstrip("\r")]))
        self.header = self._with(self.header, before)
        dropped = sum(row["trial"] in lost for row in self.rows()) if lost else 0
        if dropped or torn or before != self.header:
            self.rewrite(lambda row: row.get("trial") not in lost)
        return dropped + torn

    def rows(self) -> Iterator[Row]:
        """Yield the whole rows as they are written."""
        csv.field_size_limit(sys.maxsize)  # a model may have thousands of layers
        return csv.DictReader(io.StringIO(whole_lines(self.path)[0].decode(), newline=""))

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one write, or leave the file as it was and raise the OSError."""
        filled = {column: "" for row in rows for column, value in row.items() if value != ""}
        if not self.path.exists() or not filled.keys() <= {*self.header}:
            self.header = self._with(self.header, filled)
            self.rewrite()
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        text = io.StringIO()
        csv.DictWriter(text, self.header, extrasaction="ignore", lineterminator="\n").writerows(rows)
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size
        left = memoryview(text.getvalue().encode())
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):  # the first error is the one to tell
                os.ftruncate(descriptor, size)
            raise

    def rewrite(self, keep: Callable[[Row], bool] = lambda _row: True) -> None:
        """Replace the file by one with the present columns and the rows that are to be kept, atomically."""
        self.close()
        with replacing(self.path) as draft, draft.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.header, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for row in self.rows() if keep(row))

    def require(self) -> None:
        """Raise an OSError if the file was deleted while it is open: what is written to it is lost."""
        if self._file is not None:
            self.path.stat()

    def close(self) -> None:
        """Close the file, which the next row opens again."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _with(self, header: Iterable[str], more: Iterable[str]) -> list[str]:
        """Return a header with more columns: in their order, and last those that somebody added."""
        named = dict.fromkeys([*header, *more])
        known = [column for column in COLUMNS[self.path.name] if column in named]
        return [*known, *(column for column in named if column not in COLUMNS[self.path.name])]


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``, making it if it is missing, and drop the details of trials that have not ended.

        Raises:
            UsageError: a CSV is not a run's, or cannot be read; nothing has been changed then.
            OSError: the folder cannot be written.
        """
        trials = {name: _trials(folder / name) for name in COLUMNS}
        _require_phases(folder, trials)
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        for draft in folder.glob(".*.part.csv"):  # left by a run that was killed
            draft.unlink()
        self._files = {name: CsvFile(folder / name) for name in COLUMNS}
        self._ended = {name: trials[name] for name in OF_PHASES}
        """The trials that have rows, by the file of their phase."""
        ended = set().union(*self._ended.values())
        dropped = {name: file.recover(trials[name] - ended) for name, file in self._files.items()}
        self.dropped = {name: count for name, count in dropped.items() if count}
        """How many rows were dropped that were torn, or details of trials that have not ended, by file."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

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
            parts = (self._identity(trial, device, result, arms[result.precision]), result.row, _ran(result))
            rows.append(cells(*(part for part in parts if part is not None)))
        replaced = {trial.id}
        if "oom" not in {result.status for result in results}:
            replaced |= {each.id for each in trial.apart()}
        with _Lost(self):
            if replaced & self._ended[phase.file]:
                for name in (phase.file, *phase.details.values()):  # first: details are never those of two attempts
                    self._files[name].rewrite(lambda row: row["trial"] not in replaced)
            self._append(phase.details, records)
            self._files[phase.file].append(rows)
            self._ended[phase.file] -= replaced
            self._ended[phase.file].add(trial.id)

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
        with _Lost(self):
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
        with _Lost(self):
            write_atomically(self.folder / "run.json", run_json.text_of(content))

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


def _trials(path: Path) -> set[str]:
    """Return the trials that a CSV has rows of, once it is known to be a run's; none where it is missing.

    Raises:
        UsageError: it is damaged, or another program's.
    """
    frame = csv_file.read(path)
    return set(frame["trial"]) if "trial" in frame else set()


def _require_phases(folder: Path, trials: Mapping[str, set[str]]) -> None:
    """Refuse a folder with details of several trials and no file of their phases: opening it would drop them all.

    A run that was killed leaves those of one trial at most.
    """
    for name in DETAILS:
        files = [phase.file for phase in MEASURING.values() if name in phase.details.values()]
        if files and len(trials[name]) > 1 and not any(trials[file] for file in files):
            raise UsageError(
                f"'{folder}' has no {' or '.join(files)}, so the rows of its {name} would be dropped. Put it back, or "
                "start a new run."
            )


class _Lost:
    """Turns an OSError of a store's folder, or the loss of the folder, into the UsageError that ends the run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> None:
        try:
            self._store.folder.stat()
            for file in self._store._files.values():
                file.require()
        except OSError as error:
            raise self._store.lost(error) from error

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, OSError):
            raise self._store.lost(error) from error


def _ran(result: TrialResult) -> Ran:
    return Ran(
        wall_s=result.wall_s,
        compile_s=result.compile_s,
        switches=result.switches,
        operations=result.operations,
        conversion=result.conversion,
    )


@dataclass(kw_only=True, slots=True)
class StoredResults:
    """What a run has measured so far."""

    statuses: dict[str, dict[str, Status]] = field(default_factory=dict)
    """By the id of each trial, the status of each arm by its name; arms that are tried again have none."""
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    """Likewise the rows of their CSVs, of what earlier processes have stored, as texts."""

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
        _trials(folder / name)  # refuses what no run has written
        for row in CsvFile(folder / name).rows():
            arm = arm_name(row)
            if row["status"] not in FAILURES:
                known.statuses.setdefault(row["trial"], {})[arm] = cast(Status, row["status"])
            known.rows.setdefault(row["trial"], {})[arm] = row
    return known


def arm_name(row: Mapping[str, Any]) -> str:
    """Return the name of a row's arm: its precision, and of an ablation step the techniques, too."""
    techniques = unquoted(row.get("techniques") or "")
    precision = unquoted(row["precision"])
    return f"{precision}+{techniques}" if row.get("ablation") == "yes" and techniques else precision


def reason_of(detail: str) -> str:
    """Return a row's detail without the name of its log."""
    return detail.partition(LOG)[0]
