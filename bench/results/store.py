"""The CSV store of a run: appends rows as trials end, and reads what --resume needs.

A run is a folder under results/: run.json, and one CSV for each kind of record. A trial's rows in trials.csv are
appended last, in one write: a trial without all of them has not been done, and what is left of it is set aside when the
run goes on. Whatever is written has been fsynced before the next trial begins.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import mmap
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, cast

from bench.results import run_json
from bench.results.columns import COLUMNS, RECORDS, SCHEMA, cells
from bench.results.csv_rows import has_rows, read_header, rows_of_file
from bench.results.files import replacing, sync, sync_folder, write_atomically
from bench.results.records import MEASURED, Device, Identity, Message, Sample, Speed, Status, TrialResult
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.text import unquoted
from bench.spec.trial import Trial

FILES = {parts[0]: name for name, parts in RECORDS.items() if len(parts) == 1}
"""The CSV of each type of record that is a whole row."""
OF_TRIALS = tuple(name for name, columns in COLUMNS.items() if "trial" in columns)
"""The CSVs whose rows belong to trials."""
SPEEDUP = ("speedup", "speedup_low", "speedup_high")
COUNTS = ("warmup_steps", "switch_warmup_steps", "block_steps", "rounds")
READ = ("trial", "config", "phase", "precision", "status", "batch_size", "steady", "step_ms", *COUNTS, *SPEEDUP)
"""The columns that say what has been measured."""
FAILURES: tuple[Status, ...] = ("timeout", "failed")
"""The statuses that are not final: ``--resume`` tries such a trial again."""
LOG = "; log: "
"""In a row's detail, between why a process failed and the file with all that it printed."""
ASIDE = "unfinished"
"""The folder within a run's for rows that do not count."""
NEXT, DRAFT = ".next", ".next.part"
"""The folder of files that take the place of the run's, once it has its name, and its name while they are written."""
CHUNK = 2**20


class StoreLostError(Exception):
    """The run's folder cannot be written any more; the message says where its rows are, and how to go on."""


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``; it and the headers of its CSVs are written where they are missing.

        Raises:
            UsageError: a CSV's header is not that of a run; nothing has been changed then.
            OSError: the folder cannot be written.
        """
        headers = {name: read_header(folder / name) for name in COLUMNS}
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        self._headers = {name: headers[name] or list(columns) for name, columns in COLUMNS.items()}
        """The columns of each file in its own order, which may be an earlier version's."""
        self._aside: Counter[str] = Counter()
        """Lines set aside, by file."""
        self._stored: set[str] = set()
        """Ids of the trials that have final rows from before."""
        self._tried: set[str] = set()
        """Ids of the trials that have any."""
        self._run: dict[str, Any] = {}
        self._files: dict[str, io.FileIO] = {}
        self._sizes: dict[str, int] = {}
        """Bytes of each file that are whole rows."""
        self._lost: StoreLostError | None = None
        _finish_replacement(folder)
        for name in COLUMNS:
            if not headers[name]:
                write_atomically(folder / name, self._header_text(name))
            else:
                self._aside[name] += _cut_torn_line(folder / name)
            self._open(name)
        self._empty_bytes = len(self._header_text("trials.csv"))

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def _open(self, name: str) -> None:
        file = (self.folder / name).open("ab+", buffering=0)
        self._files[name], self._sizes[name] = file, os.fstat(file.fileno()).st_size

    def set_aside_unfinished(self) -> str:
        """Move what trials that did not end have left into the folder ``ASIDE``.

        These are the rows of a trial that was cut off while it was stored, and the blocks, epochs and figures of trials
        that have no final row, so that a trial which is tried again is not mixed with its earlier attempt.

        Returns:
            A sentence that says what was moved; empty where nothing was.

        Raises:
            UsageError: a file cannot be read; nothing has been moved then.
        """
        known = answers(self.folder)
        self._stored, self._tried = known.trials, set(known.attempts)
        unfinished = {"trials.csv": set(known.cut_off)} | {
            name: _rows_of(self.folder / name, lambda trial: trial not in known.trials)
            for name in OF_TRIALS
            if name != "trials.csv"
        }
        for name, rows in unfinished.items():
            self._move(name, rows)
        moved = ", ".join(f"{count} of {name}" for name, count in self._aside.items() if count)
        return f"Rows of trials that did not end were moved to {self.folder / ASIDE}: {moved}." if moved else ""

    def _move(self, name: str, rows: Collection[int]) -> None:
        """Set rows of a file aside, by their numbers; the header is number 0."""
        if rows:
            _set_aside(self.folder / name, rows, self.folder / name)
            self._aside[name] += len(rows)
            with self._files[name]:
                self._open(name)

    def add_results(
        self, trial: Trial, device: Device, results: Iterable[TrialResult], records: Iterable[Message | Sample] = ()
    ) -> None:
        """Append a trial that has ended: its records, and then its rows of trials.csv, one per precision, in one write.

        Raises:
            StoreLostError: the folder cannot be written; all rows are elsewhere now.
        """
        cell, rows, results = trial.cell, [], list(results)
        arms = trial.arms_by_name({result.precision for result in results if result.status == "unsupported"})
        for result in results:
            arm = arms[result.precision]
            identity = Identity(
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
                arm_precision=arm.precision,
                arm_techniques=arm.techniques,
                trial_rows=len(results),
            )
            rows.append(cells(identity, result))
        before = {trial.id} & self._stored
        if len(trial.arms) > 1:  # its arms may have been measured apart because they failed together, which they do not
            before |= {replace(trial, arms=(arm,)).id for arm in trial.arms} & self._tried
        self._append({**_by_file(records), "trials.csv": rows}, instead_of=before)

    def add(self, records: Iterable[Message | Sample]) -> None:
        """Append records, each to the CSV of its type; messages that belong to none are left out.

        Raises:
            StoreLostError: the folder cannot be written; all rows are elsewhere now.
        """
        self._append(_by_file(records))

    def _append(self, rows: Mapping[str, Iterable[dict[str, object]]], instead_of: Collection[str] = ()) -> None:
        """Append rows to files, in their order, each file's in one write.

        Args:
            rows: by file.
            instead_of: ids of trials whose rows these replace, in all files at once: the same question with other arms.
        """
        pending = {name: self._text(name, added) for name, added in rows.items()}
        old: dict[str, set[int]] = {}
        try:
            for name in OF_TRIALS if instead_of else ():
                old[name] = _rows_of(self.folder / name, lambda trial: trial in instead_of)
            if any(old.values()):
                self._replace(pending, old)
            for name in list(pending):
                self._write(name, pending[name])
                del pending[name]
        except OSError as error:
            self._rescue(pending, error, old)

    def _replace(self, pending: dict[str, bytes], old: dict[str, set[int]]) -> None:
        """Write rows in the place of others, whose copies are set aside: all of it, or nothing if it is cut off.

        Args:
            pending: the new rows by file; those that are written are removed from it.
            old: the numbers of the rows to replace by file; those that are gone are removed from it.
        """
        draft, names = self.folder / DRAFT, [name for name in old if old[name] or pending.get(name)]
        draft.mkdir()
        try:
            for name in names:
                _set_aside(self.folder / name, old[name], draft / name, pending.get(name, b""))
            sync_folder(draft)
            draft.rename(self.folder / NEXT)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_folder(self.folder)
        for name in names:
            (self.folder / NEXT / name).replace(self.folder / name)
            with self._files[name]:
                self._open(name)
            self._aside[name] += len(old.pop(name))
            pending.pop(name, None)
        _finish_replacement(self.folder)

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
            write_atomically(self.folder / "run.json", self._run_text())
        except OSError as error:
            self._rescue({}, error)

    def _run_text(self) -> str:
        return json.dumps(self._run, indent=2, default=str) + "\n"

    def _rescue(
        self, pending: Mapping[str, bytes], error: OSError, old: Mapping[str, Collection[int]] | None = None
    ) -> NoReturn:
        """Write the whole run into another folder: what the files hold, through their descriptors, and what they lack.

        Args:
            pending: rows that are not in the files, by file.
            error: why not.
            old: the numbers of the rows in whose place they belong, by file.

        Raises:
            StoreLostError: always; it says where the rows are.
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
                self._copy(place, pending, old or {})
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
        """Create a folder beside the run's, named after it."""
        number = 1
        while True:
            place = self.folder.with_name(f"{self.name}.rescued" + (f"-{number}" if number > 1 else ""))
            try:
                place.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return place

    def _copy(self, place: Path, pending: Mapping[str, bytes], old: Mapping[str, Collection[int]]) -> None:
        for name, file in self._files.items():
            with replacing(place / name) as draft, draft.open("wb") as copy:
                file.seek(0)
                left = self._sizes[name]
                while left and (data := file.read(min(left, CHUNK))):
                    copy.write(data)
                    left -= len(data)
                if not old.get(name):
                    copy.write(pending.get(name, b""))
            if rows := old.get(name):
                _set_aside(place / name, rows, place / name, pending.get(name, b""))
        write_atomically(place / "run.json", self._run_text())  # last: a run is where one is


def _by_file(records: Iterable[Message | Sample]) -> dict[str, list[dict[str, object]]]:
    """Return the rows that records are, by the file of their type."""
    rows: dict[str, list[dict[str, object]]] = {}
    for record in records:
        if type(record) in FILES:
            rows.setdefault(FILES[type(record)], []).append(cells(record))
    return rows


def planned(trial: Trial) -> dict[str, Any]:
    """Describe a trial for run.json, so that a reader finds the trials of the plan that have no row."""
    return {
        "trial": trial.id,
        "cell": trial.cell_id,
        "phase": trial.phase,
        "replicate": trial.replicate,
        "seed": trial.seed,
        "arms": [arm.added for arm in trial.arms],
    }


@dataclass(kw_only=True, slots=True)
class Answers:
    """What a run has measured, by the config hashes of its trials.

    A trial that ended in timeout or failure has no answer, for it is tried again; nor has one whose rows are not all
    there.
    """

    statuses: dict[str, dict[str, Status]] = field(default_factory=dict)
    """The status of each precision."""
    speeds: dict[str, dict[str, Speed]] = field(default_factory=dict)
    """The speed of each precision that has one: what decides on further processes, and how blocks are cut."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The largest batch size that a search has found."""
    trials: set[str] = field(default_factory=set)
    """The ids of the trials."""
    attempts: dict[str, dict[str, Status]] = field(default_factory=dict)
    """By the id of a trial, failed ones included, the statuses of its last attempt."""
    cut_off: list[int] = field(default_factory=list)
    """The numbers of the rows of trials that were not stored whole; the header is number 0."""


def answers(folder: Path) -> Answers:
    """Read what a run has measured from its trials.csv; of a trial that was tried again the last attempt counts.

    Raises:
        UsageError: the file is not a run's, of another schema version, or damaged.
    """
    found, path = Answers(), folder / "trials.csv"
    read_header(path)
    if not has_rows(path):
        return found
    from bench.results import csv_file  # pandas, which a new run does without until its report

    trials = csv_file.read_unchecked(path)
    whole = csv_file.stored_whole(trials)
    found.cut_off += [int(row) + 1 for row in trials.index[~whole]]
    rows = trials[whole].reindex(columns=list(READ)).to_dict("records")
    for _, attempt in itertools.groupby(
        zip(csv_file.attempts(trials)[whole], rows, strict=True), key=lambda numbered: numbered[0]
    ):
        _take(found, [{str(name): value for name, value in row.items()} for _, row in attempt])
    return found


def _take(found: Answers, attempt: list[dict[str, Any]]) -> None:
    trial, config = attempt[0]["trial"], attempt[0]["config"]
    statuses = {row["precision"]: cast(Status, row["status"]) for row in attempt}
    speeds = {row["precision"]: speed for row in attempt if (speed := _speed(row)) is not None}
    found.attempts[trial] = statuses
    if set(FAILURES) & set(statuses.values()):
        found.trials.discard(trial)
        found.statuses.pop(config, None)
        found.speeds.pop(config, None)
        found.sizes.pop(config, None)
        return
    found.trials.add(trial)
    found.statuses[config], found.speeds[config] = statuses, speeds
    for row in attempt:
        if row["phase"] == "fit" and row["status"] == "ok":
            found.sizes[config] = int(row["batch_size"])


def reason_of(detail: str) -> str:
    """Return a row's detail without the name of its log."""
    return detail.partition(LOG)[0]


def _speed(row: Mapping[str, Any]) -> Speed | None:
    """Return the speed of a row; None where it has none, or lacks a figure that every speed has."""
    if row["status"] not in MEASURED or any(math.isnan(row[name]) for name in (*COUNTS, "step_ms")):
        return None
    speedup, low, high = (None if math.isnan(row[name]) else row[name] for name in SPEEDUP)
    warmup, switch_warmup, block, rounds = (int(row[name]) for name in COUNTS)
    return Speed(
        steady=row["steady"] == "yes",
        warmup_steps=warmup,
        switch_warmup_steps=switch_warmup,
        block_steps=block,
        rounds=rounds,
        step_ms=row["step_ms"],
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
    )


def _rows_of(path: Path, chosen: Callable[[str], bool]) -> set[int]:
    """Return the numbers of the rows of some trials, by a function of the trial's id; the header is number 0."""
    found: set[int] = set()
    known: dict[str, bool] = {}
    at = 0
    for number, (_, _, fields) in enumerate(rows_of_file(path)):
        if number == 0:
            at = fields.index("trial")
        elif len(fields) > at:
            cell = fields[at]
            if cell not in known:
                known[cell] = chosen(unquoted(cell))
            if known[cell]:
                found.add(number)
    return found


def read_run(folder: Path) -> dict[str, Any]:
    """Read a run's run.json.

    Raises:
        UsageError: there is no run, or one of another schema version, or a value is of another type.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise UsageError(f"There is no run in '{folder}': it has no run.json.")
    run = run_json.parse(path)
    schema = run.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise UsageError(f"The run in '{folder}' has schema {json.dumps(schema)}; this version reads schema {SCHEMA}.")
    run_json.check(path, run)
    return run


def _set_aside(path: Path, rows: Collection[int], rest: Path, added: bytes = b"") -> None:
    """Copy rows of a CSV, by their numbers, to the file of the same name in the folder ``ASIDE``.

    Args:
        path: the CSV.
        rows: the numbers.
        rest: receives the other rows; it may be the CSV itself.
        added: rows to write after them.
    """
    with (
        _opened_aside(path) as aside,
        replacing(rest) as draft,
        draft.open("w", newline="", encoding="utf-8", errors="surrogateescape") as kept,
    ):
        for number, (_, text, _) in enumerate(rows_of_file(path)):
            (aside if number in rows else kept).write(text)
        kept.write(added.decode())
        aside.flush()
        os.fsync(aside.fileno())  # before the rows are gone from the other


def _finish_replacement(folder: Path) -> None:
    """Put files in their places that replace a run's; those that were not all written when it was cut off are none."""
    shutil.rmtree(folder / DRAFT, ignore_errors=True)
    following = folder / NEXT
    if following.is_dir():
        for path in following.iterdir():
            path.replace(folder / path.name)
        sync_folder(folder)
        following.rmdir()


def _opened_aside(path: Path) -> IO[str]:
    """Open the file for rows that do not count; a new one begins with the header."""
    aside = path.parent / ASIDE / path.name
    aside.parent.mkdir(exist_ok=True)
    file = aside.open("a", newline="", encoding="utf-8", errors="surrogateescape")
    if not file.tell():
        file.write(next(rows_of_file(path))[1])
        file.flush()
        sync_folder(aside.parent)
        sync_folder(path.parent)
    return file


def _cut_torn_line(path: Path) -> int:
    """Set an incomplete last line aside, which a crash in the middle of a write leaves; return how many there were."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        whole = data.rfind(b"\n") + 1
        torn = data[whole:]
    if not whole:  # the header alone
        with path.open("ab") as header:
            header.write(b"\n")
        return 0
    if not torn:
        return 0
    with _opened_aside(path) as aside:
        aside.write(torn.decode(errors="surrogateescape") + "\n")
        aside.flush()
        os.fsync(aside.fileno())
    os.truncate(path, whole)
    sync(path)
    return 1
