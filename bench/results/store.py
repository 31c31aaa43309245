"""The CSV store of a run: appends rows as trials end, and reads what --resume needs.

A run is a folder under results/: run.json, and one CSV for each kind of record. A trial is a transaction: its rows are
appended to the other CSVs and then, in one write, to trials.csv, each file flushed to disk before the next. Rows that
no trial has committed so do not count: readers leave them out, and a store that is opened drops them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from bench.results import run_json
from bench.results.columns import COLUMNS, RECORDS, SCHEMA, cells, has_rows, read_header, rows, whole_lines
from bench.results.files import replacing, sync_folder, write_atomically
from bench.results.records import MEASURED, Device, Identity, Message, Sample, Speed, Status, TrialResult
from bench.spec.phases import PHASES
from bench.spec.text import plain, unquoted
from bench.spec.trial import Trial

FILES = {parts[0]: name for name, parts in RECORDS.items() if len(parts) == 1}
"""The CSV of each type of record that is a whole row."""
FIGURES = ("step_ms", "speedup", "speedup_low", "speedup_high", "foreign_load_pct", "switches_per_s")
COUNTS = ("warmup_steps", "switch_warmup_steps", "block_steps", "rounds", "discarded_rounds")
FAILURES: tuple[Status, ...] = ("timeout", "failed")
"""The statuses that are not final: ``--resume`` tries such a trial again."""
LOG = "; log: "
"""In a row's detail, between why a process failed and the file with all that it printed."""
CHUNK = 2**20


class StoreLostError(Exception):
    """The run's folder cannot be written any more; the message says where its rows are, and how to go on."""


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``, writing it and the headers of its CSVs where they are missing, and drop uncommitted rows.

        Raises:
            UsageError: a CSV is not a run's, or trials.csv cannot be read; nothing has been changed then.
            OSError: the folder cannot be written.
        """
        headers = {name: read_header(folder / name) for name in COLUMNS}
        known = answers(folder)
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        self._headers = {
            name: [*columns, *(column for column in headers[name] if column not in columns)]
            for name, columns in COLUMNS.items()
        }
        """The columns of each file: this version's, and those that a later version has added to it."""
        self._numbers: Counter[str] = Counter()
        """The number of the last attempt at each trial, by its id."""
        for trial, number in known.committed:
            self._numbers[trial] = max(number, self._numbers[trial])
        self.dropped: dict[str, int] = {}
        """How many rows were dropped that no trial had committed, by file."""
        self._run: dict[str, Any] = {}
        self._files: dict[str, io.FileIO] = {}
        self._sizes: dict[str, int] = {}
        """Bytes of each file that are whole rows."""
        self._lost: StoreLostError | None = None
        for name, columns in self._headers.items():
            path = folder / name
            if not headers[name]:
                write_atomically(path, self._header_text(name))
            elif dropped := _recover(path, columns, known):
                self.dropped[name] = dropped
            file = path.open("ab+", buffering=0)
            self._files[name], self._sizes[name] = file, os.fstat(file.fileno()).st_size
        self._empty_bytes = len(self._header_text("trials.csv"))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files, and add to run.json the SHA-256 that each has now that the run has ended or stopped."""
        for file in self._files.values():
            file.close()
        if self._run and self._lost is None:
            with suppress(OSError):  # a run without them is one whose files are not checked
                self._run["sha256"] = checksums(self.folder)
                write_atomically(self.folder / "run.json", run_json.text_of(self._run))

    def add_results(
        self, trial: Trial, device: Device, results: Iterable[TrialResult], records: Iterable[Message | Sample] = ()
    ) -> None:
        """Append a trial that has ended: its records, and then its rows of trials.csv, one per precision, in one write.

        Raises:
            StoreLostError: the folder cannot be written; all rows are elsewhere now.
        """
        cell, results = trial.cell, list(results)
        arms = trial.arms_by_name({result.precision for result in results if result.status == "unsupported"})
        self._numbers[trial.id] += 1
        attempt = self._numbers[trial.id]
        answered = [
            cells(
                Identity(
                    run=self.name,
                    trial=trial.id,
                    cell=trial.cell_id,
                    config=trial.config,
                    suite=cell.suite.name,
                    parameters=" ".join(f"{name}={value}" for name, value in cell.suite.parameters),
                    parameters_json=dict(cell.suite.parameters),
                    techniques=cell.techniques,
                    placement=cell.placement.name,
                    members=cell.placement.members,
                    device=device.name,
                    device_names=list(device.names or (device.name,)),
                    device_kind=device.kind,
                    architecture=device.architecture,
                    batch_size=cell.batch_size,
                    data=str(cell.data),
                    phase=trial.phase,
                    replicate=trial.replicate if PHASES[trial.phase].key == "replicate" else None,
                    seed=trial.seed,
                    arm_precision=arms[result.precision].precision,
                    arm_techniques=arms[result.precision].techniques,
                    reference=cell.reference,
                    trial_rows=len(results),
                    attempt=attempt,
                ),
                result,
            )
            for result in results
        ]
        self._append({**_by_file(records, attempt), "trials.csv": answered})

    def add(self, records: Iterable[Message | Sample]) -> None:
        """Append records that no trial commits, such as readings of GPUs, each to the CSV of its type.

        Raises:
            StoreLostError: the folder cannot be written; all rows are elsewhere now.
        """
        self._append(_by_file(records))

    def _append(self, rows: Mapping[str, Iterable[dict[str, object]]]) -> None:
        """Append rows to files, in their order, each file's in one write."""
        pending = {name: self._text(name, added) for name, added in rows.items()}
        try:
            for name in list(pending):
                self._write(name, pending[name])
                del pending[name]
        except OSError as error:
            self._rescue(pending, error)

    def _header_text(self, name: str) -> bytes:
        return self._text(name, [{column: column for column in self._headers[name]}])

    def _text(self, name: str, rows: Iterable[dict[str, object]]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self._headers[name], extrasaction="ignore", lineterminator="\n").writerows(rows)
        return text.getvalue().encode()

    def _write(self, name: str, data: bytes) -> None:
        """Append to a file; where that fails, none of it is left there."""
        if self._lost is not None:
            raise self._lost
        file = self._files[name]
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
            self._require(name)
        except OSError:
            with suppress(OSError):  # the first error is the one to tell
                os.ftruncate(file.fileno(), self._sizes[name])
            raise
        self._sizes[name] += len(data)

    def _require(self, name: str) -> None:
        """Raise FileNotFoundError if a file that is open is in the folder no more."""
        (self.folder / name).stat()
        if not os.fstat(self._files[name].fileno()).st_nlink:
            raise FileNotFoundError

    def check(self) -> None:
        """Notice a folder that was deleted or moved, before there is something to write.

        Raises:
            StoreLostError: it is gone; all rows are elsewhere now.
        """
        if self._lost is not None:
            raise self._lost
        try:
            self._require("trials.csv")
        except FileNotFoundError as error:  # others may pass; writing will tell
            self._rescue({}, error)

    def write_run(self, run: dict[str, Any]) -> None:
        """Replace run.json, atomically.

        Raises:
            StoreLostError: the folder cannot be written; all rows are elsewhere now.
        """
        self._run = {"schema": SCHEMA, "run": self.name, **run}
        try:
            write_atomically(self.folder / "run.json", run_json.text_of(self._run))
        except OSError as error:
            self._rescue({}, error)

    def _rescue(self, pending: Mapping[str, bytes], error: OSError) -> NoReturn:
        """Write the whole run into another folder: what the files hold, by their descriptors, and the ``pending`` rows.

        Raises:
            StoreLostError: always; it says why, and where the rows are.
        """
        if isinstance(error, FileNotFoundError):
            what = f"The run's folder '{self.folder}' was deleted or moved"
        else:
            what = f"The run's folder '{self.folder}' cannot be written: {error.strerror or error}"
        if not (pending.get("trials.csv") or self._sizes["trials.csv"] > self._empty_bytes):
            self._lost = StoreLostError(f"{what}, before a trial had ended. Start the run again.")
            raise self._lost from error
        failures = []
        for make in (self._beside, lambda: Path(tempfile.mkdtemp(prefix=f"{self.name}.rescued-"))):
            place = None
            try:
                place = make()
                self._copy(place, pending)
            except OSError as another:
                failures.append(another.strerror or str(another))
                if place is not None:
                    shutil.rmtree(place, ignore_errors=True)
                continue
            self._lost = StoreLostError(
                f"{what}. All that was measured until then is in '{place}': go on with --resume {place}, or make its "
                f"report with report {place}."
            )
            raise self._lost from error
        rest = "" if isinstance(error, FileNotFoundError) else f" What was stored before is still in '{self.folder}'."
        self._lost = StoreLostError(
            f"{what}, and its rows could not be written elsewhere either ({'; '.join(dict.fromkeys(failures))})."
            f"{rest} Make room, and go on with --resume {self.folder}."
        )
        raise self._lost from error

    def _beside(self) -> Path:
        """Create a folder next to the run's, named after it."""
        for number in itertools.count(1):
            place = self.folder.with_name(f"{self.name}.rescued" + (f"-{number}" if number > 1 else ""))
            with suppress(FileExistsError):
                place.mkdir(parents=True)
                break
        return place

    def _copy(self, place: Path, pending: Mapping[str, bytes]) -> None:
        for name, file in self._files.items():
            with replacing(place / name) as draft, draft.open("wb") as copy:
                file.seek(0)
                left = self._sizes[name]
                while left and (data := file.read(min(left, CHUNK))):
                    copy.write(data)
                    left -= len(data)
                copy.write(pending.get(name, b""))
        write_atomically(place / "run.json", run_json.text_of(self._run))  # last: a run is where one is


def _by_file(records: Iterable[Message | Sample], attempt: int | None = None) -> dict[str, list[dict[str, object]]]:
    """Return the rows of records by the file of their type, with the number of the attempt that they belong to."""
    rows: dict[str, list[dict[str, object]]] = {}
    known = {"attempt": attempt} if attempt is not None else {}
    for record in records:
        if type(record) in FILES:
            rows.setdefault(FILES[type(record)], []).append(cells(record) | known)
    return rows


@dataclass(kw_only=True, slots=True)
class Answers:
    """Results of a run so far, by the config hashes of its trials; trials that are tried again have none.

    These are the trials that ended in timeout or failure, and those of which trials.csv lacks rows.
    """

    statuses: dict[str, dict[str, Status]] = field(default_factory=dict)
    """The status of each precision."""
    speeds: dict[str, dict[str, Speed]] = field(default_factory=dict)
    """By the ids of trials: the speed of each precision, which decides on further processes and how blocks are cut."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The largest batch size that a search has found."""
    attempts: dict[str, dict[str, Status]] = field(default_factory=dict)
    """By the id of a trial, failed ones included, the statuses of its last attempt."""
    committed: set[tuple[str, int]] = field(default_factory=set)
    """The attempts that were stored whole: the trial's id and the attempt's number, 0 where it was not written."""
    cut_off: set[int] = field(default_factory=set)
    """The numbers of the rows of trials that were not stored whole, from 0."""


def answers(folder: Path) -> Answers:
    """Read what a run has measured from its trials.csv; of a trial that was tried again the last attempt counts.

    Raises:
        UsageError: the file is not a run's, of another schema version, or damaged.
    """
    known, path = Answers(), folder / "trials.csv"
    read_header(path)
    if not has_rows(path):
        return known
    from bench.results import csv_file  # pandas, which a new run does without until its report

    trials = csv_file.read(path, checked=False)
    whole = csv_file.stored_whole(trials)
    known.cut_off |= {int(row) for row in trials.index[~whole]}
    for _, attempt in trials[whole].groupby(csv_file.attempts(trials)[whole], sort=True):
        _take(known, attempt.to_dict("records"))
    return known


def _take(known: Answers, attempt: list[dict[Hashable, Any]]) -> None:
    trial, config = attempt[0]["trial"], attempt[0]["config"]
    statuses = {row["precision"]: cast(Status, row["status"]) for row in attempt}
    speeds = {row["precision"]: speed for row in attempt if (speed := _speed(row)) is not None}
    number = attempt[0]["attempt"]
    known.committed.add((trial, 0 if math.isnan(number) else int(number)))
    known.attempts[trial] = statuses
    if set(FAILURES) & set(statuses.values()):
        known.statuses.pop(config, None)
        known.speeds.pop(trial, None)
        known.sizes.pop(config, None)
        return
    known.statuses[config], known.speeds[trial] = statuses, speeds
    for row in attempt:
        if row["phase"] == "fit" and row["status"] == "ok":
            known.sizes[config] = int(row["batch_size"])


def reason_of(detail: str) -> str:
    """Return a row's detail without the name of its log."""
    return detail.partition(LOG)[0]


def _speed(row: Mapping[Hashable, Any]) -> Speed | None:
    """Return the speed of a row; None where it has none, or lacks a figure that every speed has."""
    if row["status"] not in MEASURED or any(math.isnan(row[name]) for name in (*COUNTS, "step_ms")):
        return None
    counts: dict[str, Any] = {name: int(row[name]) for name in COUNTS}
    figures: dict[str, Any] = {name: None if math.isnan(row[name]) else row[name] for name in FIGURES}
    return Speed(steady=row["steady"] == "yes", **counts, **figures)


def _recover(path: Path, columns: list[str], known: Answers) -> int:
    """Drop the rows of a CSV that no trial has committed, a torn last one included, and add the columns that it lacks.

    Returns:
        How many rows were dropped.
    """
    data, torn = whole_lines(path)
    every = [fields for _, fields in rows(path, io.BytesIO(data))]
    header, kept = every[0], every[1:]
    if path.name == "trials.csv":
        kept = [fields for number, fields in enumerate(kept) if number not in known.cut_off]
    elif "trial" in header:
        at, attempt_at = header.index("trial"), header.index("attempt") if "attempt" in header else None

        @cache
        def is_committed(trial: str, attempt: str) -> bool:
            return (plain(unquoted(trial)), int(float(attempt or 0))) in known.committed

        kept = [fields for fields in kept if is_committed(fields[at], "" if attempt_at is None else fields[attempt_at])]
    dropped = len(every) - 1 - len(kept) + torn
    if dropped or columns != header or not data.endswith(b"\n"):
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dict(zip(header, fields, strict=False)) for fields in kept)
        write_atomically(path, text.getvalue().encode(errors="surrogateescape"))
    return dropped


def edited(folder: Path, info: Mapping[str, Any]) -> list[str]:
    """Return the CSVs that are not as a run left them, or as ``--resume`` found them; none if it has no checksums."""
    then = info.get("sha256") or {}
    now = checksums(folder) if then else {}
    return sorted({*(info.get("edited") or ()), *(name for name in now if now[name] != then.get(name, now[name]))})


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each CSV of a run that is there."""
    there = {name: folder / name for name in COLUMNS if (folder / name).is_file()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()}
