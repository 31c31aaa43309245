"""Records to CSV: the only file that knows columns.

A run is a folder under results/: run.json, and one CSV for each kind of record. A row is flushed and
fsynced when it is appended, so what a crash leaves behind is whole rows.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from bench.results.records import (
    Block,
    Climb,
    Device,
    Energy,
    EpochResult,
    Fit,
    Inference,
    MemoryPeak,
    Numeric,
    Operations,
    Sample,
    Speed,
    Status,
    Switches,
    Training,
    TrialResult,
)
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

SCHEMA = 4
"""Version of the columns."""
READABLE = (1, 2, 3, 4)
"""Versions that a reader understands: each added columns, which are empty where an earlier run is read."""


def _names(record: type) -> list[str]:
    return [field.name for field in fields(record)]


_PARTS = {
    "switches": Switches,
    "operations": Operations,
    "memory": MemoryPeak,
    "speed": Speed,
    "energy": Energy,
    "training": Training,
    "inference": Inference,
    "climb": Climb,
    "fit": Fit,
}
_ASKED = [
    "schema",
    "run",
    "trial",
    "config",
    "suite",
    "parameters",
    "techniques",
    "placement",
    "device",
    "architecture",
]
_ASKED += ["batch_size", "data", "phase", "replicate", "seed"]
TRIAL_COLUMNS = (
    _ASKED
    + [name for name in _names(TrialResult) if name not in _PARTS]
    + [name for part in _PARTS.values() for name in _names(part)]
)
BLOCK_COLUMNS = ["schema", *_names(Block)]
EPOCH_COLUMNS = ["schema", *_names(EpochResult)]
NUMERIC_COLUMNS = ["schema", *_names(Numeric)]
TELEMETRY_COLUMNS = ["schema", *_names(Sample)]
FILES = {
    "trials.csv": TRIAL_COLUMNS,
    "blocks.csv": BLOCK_COLUMNS,
    "epochs.csv": EPOCH_COLUMNS,
    "numerics.csv": NUMERIC_COLUMNS,
    "telemetry.csv": TELEMETRY_COLUMNS,
}


def _cell(value: object) -> object:
    """Format one value: None is empty, a bool is yes or no, floats keep all their digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value


def _fields(record: Block | EpochResult | Numeric | Sample) -> dict[str, Any]:
    """Return a record's fields; they are plain values, of which ``asdict`` would make deep copies."""
    return {name: getattr(record, name) for name in record.__slots__}


def _flat(result: TrialResult) -> dict[str, Any]:
    """Spread a result's parts into columns."""
    row: dict[str, Any] = {}
    for name, value in asdict(result).items():
        if name not in _PARTS:
            row[name] = value
        elif value is not None:
            row.update(value)
    return row


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``, making it and the heads of its CSVs where they are not there yet."""
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[str]] = {}
        for name, columns in FILES.items():
            path = folder / name
            _drop_torn_line(path)
            fresh = not path.exists() or path.stat().st_size == 0
            self._files[name] = path.open("a", newline="", encoding="utf-8")
            if fresh:
                self._append(name, [dict(zip(columns, columns, strict=True))])

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def _append(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        file = self._files[name]
        writer = csv.DictWriter(file, FILES[name], lineterminator="\n")
        for row in rows:
            writer.writerow({column: _cell(value) for column, value in row.items()})
        file.flush()
        os.fsync(file.fileno())

    def add_results(self, trial: Trial, device: Device, results: Iterable[TrialResult]) -> None:
        """Append a finished trial to trials.csv: one row per precision, all in one write."""
        cell = trial.cell
        asked: dict[str, Any] = {
            "schema": SCHEMA,
            "run": self.name,
            "trial": trial.id,
            "config": trial.config,
            "suite": cell.suite.name,
            "parameters": " ".join(f"{name}={value}" for name, value in cell.suite.parameters),
            "techniques": "+".join(cell.techniques),
            "placement": cell.placement.name,
            "device": device.name,
            "architecture": device.architecture,
            "batch_size": cell.batch_size,
            "data": str(cell.data),
            "phase": trial.phase,
            "replicate": trial.replicate if PHASES[trial.phase].key == "replicate" else None,
            "seed": trial.seed,
        }
        self._append("trials.csv", [{**asked, **_flat(result)} for result in results])

    def add_blocks(self, blocks: Iterable[Block]) -> None:
        """Append timed blocks to blocks.csv."""
        self._append("blocks.csv", [{"schema": SCHEMA, **_fields(block)} for block in blocks])

    def add_epochs(self, epochs: Iterable[EpochResult]) -> None:
        """Append epochs to epochs.csv."""
        self._append("epochs.csv", [{"schema": SCHEMA, **_fields(epoch)} for epoch in epochs])

    def add_numerics(self, numerics: Iterable[Numeric]) -> None:
        """Append figures of the numerics phase to numerics.csv."""
        self._append("numerics.csv", [{"schema": SCHEMA, **_fields(numeric)} for numeric in numerics])

    def add_samples(self, samples: Iterable[Sample]) -> None:
        """Append readings of the GPUs to telemetry.csv."""
        self._append("telemetry.csv", [{"schema": SCHEMA, **_fields(sample)} for sample in samples])

    def write_run(self, run: dict[str, Any]) -> None:
        """Replace run.json, atomically."""
        target = self.folder / "run.json"
        draft = target.with_suffix(".json.part")
        draft.write_text(json.dumps({"schema": SCHEMA, "run": self.name, **run}, indent=2, default=str) + "\n")
        draft.replace(target)


def finished(folder: Path) -> dict[str, dict[str, Status]]:
    """Return the trials that a run has rows of: their config hashes, with each precision's status.

    A trial's rows are appended together when it ends, so one row means that it ended. A trial that
    ended in timeout or failure counts as not done, and is tried again by ``--resume``.
    """
    path = folder / "trials.csv"
    if not path.exists():
        return {}
    trials: dict[str, dict[str, Status]] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != TRIAL_COLUMNS:
            raise UsageError(f"'{path}' has not the columns of a run. Restore it, or start a new run.")
        for row in reader:
            status = cast(Status, row["status"])
            if status in ("timeout", "failed"):
                trials.pop(row["config"], None)
            else:
                trials.setdefault(row["config"], {})[row["precision"]] = status
    return trials


def fitted(folder: Path) -> dict[str, int]:
    """Return the largest batch sizes that a run has found, by the config of the search."""
    path = folder / "trials.csv"
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "fit" and row["status"] == "ok"]
    return {row["config"]: int(row["batch_size"]) for row in rows}


def read_run(folder: Path) -> dict[str, Any]:
    """Read a run's run.json.

    Raises:
        UsageError: there is no run, or one of another schema version.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise UsageError(f"There is no run in '{folder}': it has no run.json.")
    try:
        run: dict[str, Any] = json.loads(path.read_text())
        found = run.get("schema")
    except (ValueError, AttributeError) as error:
        raise UsageError(f"'{path}' cannot be read ({error}). Restore it, or start a new run.") from error
    if type(found) is not int or found not in READABLE:
        known = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
        raise UsageError(f"The run in '{folder}' has schema {json.dumps(found)}; this version reads schema {known}.")
    return run


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end, which is what a crash in the middle of a write leaves."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
