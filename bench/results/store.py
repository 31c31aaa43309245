"""The CSV store of a run: appends rows as trials end, and reads what --resume needs.

A run is a folder under results/: run.json, and one CSV for each kind of record. Appended rows are flushed and fsynced,
so a crash leaves whole rows behind.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from bench.results.columns import COLUMNS, RECORDS, SCHEMA, cells, check_header
from bench.results.records import MEASURED, Device, Identity, Message, Sample, Speed, Status, TrialResult
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.text import unquoted
from bench.spec.trial import Trial

FILES = {parts[0]: name for name, parts in RECORDS.items() if len(parts) == 1}
"""The CSV of each type of record that is a whole row."""
SPEEDUP = ("speedup", "speedup_low", "speedup_high")


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``; it and the headers of its CSVs are written where they are missing.

        Raises:
            UsageError: a CSV's header is not that of a run.
        """
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[str]] = {}
        self._headers: dict[str, list[str]] = {}
        """The columns of each file in its own order, which may be an earlier version's."""
        for name, columns in COLUMNS.items():
            path = folder / name
            _drop_torn_line(path)
            header = _header(path)
            self._headers[name] = header or list(columns)
            self._files[name] = path.open("a", newline="", encoding="utf-8")
            if not header:
                self._append(name, [dict(zip(columns, columns, strict=True))])

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def _append(self, name: str, rows: Iterable[dict[str, object]]) -> None:
        file = self._files[name]
        csv.DictWriter(file, self._headers[name], extrasaction="ignore", lineterminator="\n").writerows(rows)
        file.flush()
        os.fsync(file.fileno())

    def add_results(self, trial: Trial, device: Device, results: Iterable[TrialResult]) -> None:
        """Append a finished trial to trials.csv: one row per precision, all in one write."""
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
            )
            rows.append(cells(identity, result))
        self._append("trials.csv", rows)

    def add(self, records: Iterable[Message | Sample]) -> None:
        """Append records, each to the CSV of its type; messages that belong to none are left out."""
        rows: dict[str, list[dict[str, object]]] = {}
        for record in records:
            if type(record) in FILES:
                rows.setdefault(FILES[type(record)], []).append(cells(record))
        for name, added in rows.items():
            self._append(name, added)

    def write_run(self, run: dict[str, Any]) -> None:
        """Replace run.json, atomically."""
        target = self.folder / "run.json"
        draft = target.with_suffix(".json.part")
        draft.write_text(json.dumps({"schema": SCHEMA, "run": self.name, **run}, indent=2, default=str) + "\n")
        draft.replace(target)


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


def finished(folder: Path) -> dict[str, dict[str, Status]]:
    """Return the trials that a run has rows of: their config hashes, with each precision's status.

    A trial's rows are appended together when it ends, so one row means that it ended. A trial that ended in timeout or
    failure counts as not done, and is tried again by ``--resume``.
    """
    trials: dict[str, dict[str, Status]] = {}
    for row in _trials(folder):
        status = cast(Status, row["status"])
        if status in ("timeout", "failed"):
            trials.pop(row["config"], None)
        else:
            trials.setdefault(row["config"], {})[row["precision"]] = status
    return trials


def timed(folder: Path) -> dict[str, dict[str, Speed]]:
    """Return the speeds that a run has measured, by the trial's config hash and the precision.

    Only what decides on further processes is read: the speedup with its interval, the rounds, and how blocks are cut.
    """
    speeds: dict[str, dict[str, Speed]] = {}
    for row in _trials(folder):
        if row["status"] not in MEASURED or not row["step_ms"] or not row["block_steps"]:
            continue
        speedup, low, high = (float(row[name]) if row[name] else None for name in SPEEDUP)
        speeds.setdefault(row["config"], {})[row["precision"]] = Speed(
            steady=row["steady"] == "yes",
            warmup_steps=int(row["warmup_steps"]),
            switch_warmup_steps=int(row["switch_warmup_steps"]),
            block_steps=int(row["block_steps"]),
            rounds=int(row["rounds"]),
            step_ms=float(row["step_ms"]),
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
        )
    return speeds


def fitted(folder: Path) -> dict[str, int]:
    """Return the largest batch sizes that a run has found, by the config of the search."""
    rows = (row for row in _trials(folder) if row["phase"] == "fit" and row["status"] == "ok")
    return {row["config"]: int(row["batch_size"]) for row in rows}


def _trials(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a run's trials.csv; none where there is no such file."""
    path = folder / "trials.csv"
    if _header(path):
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            for row in csv.DictReader(file):
                yield {name: unquoted(cell) if isinstance(cell, str) else cell for name, cell in row.items()}


def _header(path: Path) -> list[str]:
    """Return the header of a run's CSV; empty where there is no such file, or nothing in it.

    Raises:
        UsageError: it is not one that a version of this schema wrote.
    """
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        header = next(csv.reader(file), [])
    if header:
        check_header(path, header)
    return header


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
        schema = run.get("schema")
    except (ValueError, AttributeError) as error:
        raise UsageError(f"'{path}' cannot be read ({error}). Restore it, or start a new run.") from error
    if type(schema) is not int or schema != SCHEMA:
        raise UsageError(f"The run in '{folder}' has schema {json.dumps(schema)}; this version reads schema {SCHEMA}.")
    return run


def _drop_torn_line(path: Path) -> None:
    """Cut off an incomplete last line, which a crash in the middle of a write leaves."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
