"""The CSV store of a run: rows are appended as trials end, and read again for ``--resume``.

A run is a folder under results/: run.json, one CSV for each phase, and CSVs with the details of
trials. When a trial ends, the rows of its details are appended to their files, and then its own, in
one write, to its phase's CSV; each file is flushed to disk before the next. So a trial has ended if
its phase's CSV has its rows. Details of other trials do not count: readers leave them out, and when
such a trial is stored its own take their place.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.results import csv_file, run_json
from bench.results.columns import COLUMNS, LIST, OF_PHASES, row_of, whole_lines
from bench.results.files import replacing, sync, write_atomically
from bench.results.records import TRIED_AGAIN, Device, Identity, Sample, Status, TrialResult
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

# The columns that name an arm.
ARM_KEY = ["precision", "techniques", "ablation"]
# In a row's detail, between why a process failed and the file with all that it printed.
LOG = "; log in the run's folder: "

# A row of a CSV by its columns, as it is written.
Row = dict[str, Any]


class CsvFile:
    """One CSV of a run, which rows are appended to."""

    def __init__(self, path: Path) -> None:
        """Open a file, which is made with its first row; a torn row at its end is cut off."""
        self.path = path
        data, is_torn = whole_lines(path)
        if is_torn:
            os.truncate(path, len(data))
        self.header = [*self._texts(nrows=0)]
        """Its columns."""
        self.trials = set[str]()
        """The trials that it has rows of."""
        if "trial" in self.header:
            self.trials.update(self._texts(usecols=["trial"])["trial"])

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one write, or leave the file as it was and raise the OSError."""
        if not self.header:
            self._replace(pd.DataFrame(columns=[*COLUMNS[self.path.name]]))
        text = io.StringIO()
        writer = csv.DictWriter(text, self.header, extrasaction="ignore", lineterminator="\n")
        writer.writerows(rows)
        left = text.getvalue().encode()
        with self.path.open("r+b", buffering=0) as file:  # fails where somebody deleted it
            size = file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
        self.trials.update(row["trial"] for row in rows if "trial" in row)

    def remove(self, trials: Set[str]) -> None:
        """Remove the rows of some trials."""
        if self.trials & trials:
            rows = self._texts()
            self._replace(rows[~rows["trial"].isin(trials)])
            self.trials -= trials

    def _replace(self, rows: pd.DataFrame) -> None:
        with replacing(self.path) as draft:
            rows.to_csv(draft, index=False, lineterminator="\n")
        self.header = [*rows]

    def _texts(self, **selected: Any) -> pd.DataFrame:
        """Return the cells as they are written, of all rows and columns or of the selected."""
        data, _ = whole_lines(self.path)
        if not data.strip():
            return pd.DataFrame()
        texts: pd.DataFrame = pd.read_csv(
            io.BytesIO(data), dtype=object, keep_default_na=False, **selected
        )
        return texts


class Store:
    """The folder of one run, open for appending."""

    def __init__(self, folder: Path) -> None:
        """Open a folder whose CSVs are a run's, making it if it is missing.

        Raises:
            OSError: the folder cannot be written.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)
        for draft in folder.glob(".*.part.csv"):  # left by a run that was killed
            draft.unlink()
        self._files = {name: CsvFile(folder / name) for name in COLUMNS}

    def add_results(
        self,
        trial: Trial,
        device: Device,
        results: Sequence[TrialResult],
        records: Collection[object] = (),
    ) -> None:
        """Store a trial that has ended: its records, readings of GPUs, and a row for each arm.

        They take the place of an earlier attempt at the trial; where its arms fit together, also of
        those that were measured apart before.

        Raises:
            UsageError: the folder cannot be written; what was stored before is still there.
        """
        phase = PHASES[trial.phase]
        # What a result has beside its columns is left out, such as the arm's name.
        rows = [row_of(_identity(trial, device, each)) | row_of(each) for each in results]
        replaced = {trial.id}
        if not any(result.status == "oom" for result in results):
            replaced.update(alone.id for alone in trial.apart())
        with self._writing():
            # Details are never those of two attempts: what is replaced goes first.
            for name in (phase.file, *phase.details.values()):
                self._files[name].remove(replaced)
            for kind, name in {**phase.details, Sample: "telemetry.csv"}.items():
                details = [row_of(record) for record in records if isinstance(record, kind)]
                if details:
                    self._files[name].append(details)
            self._files[phase.file].append(rows)

    def add(self, samples: Iterable[Sample]) -> None:
        """Append readings of GPUs, which are of no trial.

        Raises:
            UsageError: the folder cannot be written; what was stored before is still there.
        """
        rows = [row_of(sample) for sample in samples]
        if rows:
            with self._writing():
                self._files["telemetry.csv"].append(rows)

    def write_run(self, run: dict[str, Any]) -> None:
        """Replace run.json, atomically.

        Raises:
            UsageError: the folder cannot be written.
        """
        content = {"format": run_json.FORMAT, "run": self.folder.name, **run}
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
                f"The run's folder '{self.folder}' was deleted or moved. Move it back, and go on "
                f"with --resume {self.folder}, or start the run again."
            )
        return UsageError(
            f"The run's folder '{self.folder}' cannot be written: {error.strerror or error}. What "
            f"was stored before is still there. Make room, and go on with --resume {self.folder}."
        )


def _identity(trial: Trial, device: Device, result: TrialResult) -> Identity:
    cell = trial.cell
    key = PHASES[trial.phase].key
    (arm,) = (each for each in trial.arms if each.name == result.arm)
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


@dataclass(kw_only=True, slots=True)
class StoredResults:
    """What a run has measured so far."""

    statuses: dict[str, dict[str, Status]] = field(default_factory=dict)
    """By the id of each trial, the status of each arm by its name. Arms that an earlier process
    left to be tried again have none."""
    batch_sizes: dict[str, int] = field(default_factory=dict)
    """The batch size of each trial that earlier processes have stored, by its id."""

    @property
    def is_empty(self) -> bool:
        """Whether earlier processes have stored nothing."""
        return not self.batch_sizes

    def final(self, trial: Trial) -> set[str]:
        """Return the names of the arms whose outcome is final, measured in a trial or apart."""
        arms = set()
        for each in (trial, *trial.apart()):
            for name, status in self.statuses.get(each.id, {}).items():
                if status not in TRIED_AGAIN:
                    arms.add(name)
        return arms

    def is_done(self, trial: Trial) -> bool:
        """Return whether each arm of a trial has a final row, measured in it or apart."""
        return self.final(trial).issuperset(trial.arm_names)


def stored_results(folder: Path) -> StoredResults:
    """Read what a run has measured.

    Raises:
        UsageError: a CSV is not a run's, or damaged.
    """
    known = StoredResults()
    for name in OF_PHASES:
        rows = csv_file.read(folder / name)
        for row in rows[["trial", *ARM_KEY, "batch_size", "status"]].to_dict("records"):
            known.batch_sizes[row["trial"]] = int(row["batch_size"])
            if row["status"] not in TRIED_AGAIN:
                known.statuses.setdefault(row["trial"], {})[arm_name(row)] = row["status"]
    return known


def arm_name(row: Mapping[Any, Any]) -> str:
    """Return the name of a row's arm: its precision, with the techniques of an ablation step."""
    name = str(row["precision"])
    if row.get("ablation") == "yes" and row["techniques"]:
        name += LIST + row["techniques"]
    return name
