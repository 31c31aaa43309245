"""The CSV store of a run: appends rows as trials end, and reads what --resume needs.

A run is a folder under results/: run.json, and one CSV for each kind of record. A trial is a transaction: its rows are
appended to the other CSVs and then, in one write, to trials.csv, each file flushed to disk before the next. Rows that
no trial has committed so do not count: readers leave them out, and a store that is opened drops them.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.results import run_json
from bench.results.columns import COLUMNS, RECORDS, cells, has_rows, whole_lines
from bench.results.files import sync_folder, write_atomically
from bench.results.records import MEASURED, Device, Identity, Message, Sample, Speed, Status, TrialResult
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

FILES = {parts[0]: name for name, parts in RECORDS.items() if len(parts) == 1}
"""The CSV of each type of record that is a whole row."""
FIGURES = ("step_ms", "speedup", "speedup_low", "speedup_high", "foreign_load_pct", "switches_per_s")
COUNTS = ("warmup_steps", "switch_warmup_steps", "block_steps", "rounds")
ANSWER = ("config", "phase", "batch_size", "precision", "status", "steady")
"""What ``answers`` reads of a row, beside its speed."""
FAILURES: tuple[Status, ...] = ("timeout", "failed")
"""The statuses that are not final: ``--resume`` tries such a trial again."""
LOG = "; log: "
"""In a row's detail, between why a process failed and the file with all that it printed."""


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``, writing it and the headers of its CSVs where they are missing, and drop uncommitted rows.

        Raises:
            UsageError: a CSV is not a run's, or cannot be read; nothing has been changed then.
            OSError: the folder cannot be written.
        """
        if not (folder / "trials.csv").exists() and any(has_rows(folder / name) for name in COLUMNS):
            raise UsageError(
                f"'{folder}' has no trials.csv, so the rows of its other CSVs would be dropped. Put it back, or start "
                "a new run."
            )
        known = answers(folder)
        files = {name: _recovered(folder / name, known.committed) for name in COLUMNS}
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        self._numbers: Counter[str] = Counter()
        """The number of the last attempt at each trial, by its id."""
        for trial, number in known.committed:
            self._numbers[trial] = max(number, self._numbers[trial])
        self.dropped = {name: file.dropped for name, file in files.items() if file.dropped}
        """How many rows were dropped that no trial had committed, by file."""
        self._headers = {name: file.header for name, file in files.items()}
        self._files: dict[str, io.FileIO] = {}
        for name, file in files.items():
            if file.text is not None:
                write_atomically(folder / name, file.text)
            self._files[name] = (folder / name).open("ab", buffering=0)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add_results(
        self, trial: Trial, device: Device, results: Iterable[TrialResult], records: Iterable[Message | Sample] = ()
    ) -> None:
        """Append a trial that has ended: its records, and then its rows of trials.csv, one per precision, in one write.

        Raises:
            UsageError: the folder cannot be written; what was stored before is still there.
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
            UsageError: the folder cannot be written; what was stored before is still there.
        """
        self._append(_by_file(records))

    def _append(self, rows: Mapping[str, Iterable[dict[str, object]]]) -> None:
        """Append rows to files, in their order, each file's in one write."""
        try:
            (self.folder / "trials.csv").stat()  # what is written to a deleted file is lost
            for name, added in rows.items():
                self._write(name, added)
        except OSError as error:
            raise self.lost(error) from error

    def _write(self, name: str, rows: Iterable[dict[str, object]]) -> None:
        """Append rows to a file, or leave the file as it was and raise the OSError."""
        text = io.StringIO()
        csv.DictWriter(text, self._headers[name], lineterminator="\n").writerows(rows)
        descriptor = self._files[name].fileno()
        size = os.fstat(descriptor).st_size
        left = memoryview(text.getvalue().encode())
        try:
            while left:
                left = left[self._files[name].write(left) :]
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):  # the first error is the one to tell
                os.ftruncate(descriptor, size)
            raise

    def write_run(self, run: dict[str, Any]) -> None:
        """Replace run.json, atomically.

        Raises:
            UsageError: the folder cannot be written.
        """
        content = {"format": run_json.FORMAT, "run": self.name, **run}
        try:
            write_atomically(self.folder / "run.json", run_json.text_of(content))
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


def _by_file(records: Iterable[Message | Sample], attempt: int | None = None) -> dict[str, list[dict[str, object]]]:
    """Return the rows of records by the file of their type, with the number of the attempt that they belong to."""
    rows: dict[str, list[dict[str, object]]] = {}
    for record in records:
        if type(record) not in FILES:
            continue
        file = FILES[type(record)]
        row = cells(record)
        if "attempt" in COLUMNS[file] and attempt is not None:  # readings of a GPU are of no trial
            row["attempt"] = attempt
        rows.setdefault(file, []).append(row)
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
    """The attempts that were stored whole: the trial's id and the attempt's number."""


def answers(folder: Path) -> Answers:
    """Read what a run has measured from its trials.csv; of a trial that was tried again the last attempt counts.

    Raises:
        UsageError: the file is not a run's, or damaged.
    """
    known, path = Answers(), folder / "trials.csv"
    if has_rows(path):
        from bench.results import csv_file  # pandas, which a new run does without until its report

        trials = csv_file.read(path)
        whole = trials[csv_file.stored_whole(trials)]
        rows = whole[[*csv_file.ATTEMPT, *ANSWER, *COUNTS, *FIGURES, "disturbance"]].to_dict("records")
        for _, attempt in itertools.groupby(rows, key=lambda row: (row["trial"], row["attempt"])):
            _take(known, list(attempt))
    return known


def _take(known: Answers, attempt: list[dict[Hashable, Any]]) -> None:
    trial, config = attempt[0]["trial"], attempt[0]["config"]
    statuses = {row["precision"]: cast(Status, row["status"]) for row in attempt}
    speeds = {row["precision"]: speed for row in attempt if (speed := _speed(row)) is not None}
    known.committed.add((trial, int(attempt[0]["attempt"])))
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
    return Speed(steady=row["steady"] == "yes", disturbance=row["disturbance"], **counts, **figures)


class Recovered(NamedTuple):
    """A CSV of a run that is opened."""

    header: list[str]
    """The columns, with those that somebody added."""
    text: str | None = None
    """What it is to hold; None if it may stay as it is."""
    dropped: int = 0
    """Rows that are not kept, a torn last one included."""


def _recovered(path: Path, committed: set[tuple[str, int]]) -> Recovered:
    """Return a CSV with the columns that it lacks, and without rows of attempts that were not stored whole.

    Readings of GPUs belong to no attempt, and are kept.

    Raises:
        UsageError: the file is not a run's, or damaged.
    """
    columns = list(COLUMNS[path.name])
    data, torn = whole_lines(path)
    if not data:
        return Recovered(columns, ",".join(columns) + "\n")
    import pandas as pd

    from bench.results import csv_file

    frame = csv_file.read(path)
    kept = [True] * len(frame)
    if "trial" in frame:
        kept = [attempt in committed for attempt in zip(frame["trial"], frame["attempt"], strict=True)]
    before = [str(name) for name in pd.read_csv(io.BytesIO(data), nrows=0)]
    header = [*columns, *(name for name in before if name not in columns)]
    dropped = kept.count(False) + torn
    if not dropped and header == before and data.endswith(b"\n"):
        return Recovered(header)
    rows = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)[kept]
    text = rows.reindex(columns=header, fill_value="").to_csv(index=False, lineterminator="\n")
    return Recovered(header, text, dropped)
