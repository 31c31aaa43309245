"""Runs as frames: the CSVs of each run, checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.reading.folders import name_runs, runs_in
from bench.report.reading.trials import read_details, read_trials
from bench.results.columns import LARGE, SHARED
from bench.results.csv_file import PAIR, read
from bench.results.records import Status
from bench.results.run_json import read_run
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE
from bench.spec.text import plain_within

# The columns that identify a cell: within one, precisions are compared.
CELL = [
    "run",
    "suite",
    "parameters",
    "techniques",
    "data",
    "architecture",
    "device",
    "placement",
    "batch_size",
]
# The columns that identify a row of the summary.
KEY = [*CELL, "precision"]
# The columns that identify the subject of a verdict: one recipe on one device in one run.
SUBJECT = CELL[:-1]
# The statuses of trials that did not come to their end: the rows of details that they sent before
# are a part that has no meaning.
STOPPED: tuple[Status, ...] = (
    "oom",
    "unsupported",
    "timeout",
    "failed",
)
# The columns in which devices and runs must agree to be compared: the same recipe on the same data.
WORKLOAD = [
    "suite",
    "parameters",
    "techniques",
    "data",
]
# An object of run.json.
Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run's run.json, under the name that the report gives it."""

    label: str
    info: Document
    folder: Path = Path()

    @property
    def is_finished(self) -> bool:
        """Whether it ended, as far as run.json tells."""
        return self.info.get("finished", "") is not None

    def part(self, name: str) -> Document:
        """Return an object of run.json, empty where it was not written."""
        part: Document = self.info.get(name) or {}
        return part

    def list(self, name: str) -> list[Any]:
        """Return a list of run.json, empty where it was not written."""
        part: list[Any] = self.info.get(name) or []
        return part

    @property
    def environment(self) -> Document:
        """The machine and its software."""
        return self.part("environment")

    @property
    def devices(self) -> Sequence[Document]:
        """The devices of the machine."""
        devices: Sequence[Document] = self.environment.get("devices", [])
        return devices


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runs:
    """All runs of a report: their rows in one frame, each with its ``run``."""

    runs: list[Run]
    trials: pd.DataFrame
    """One row per trial and precision, in the order measured."""
    ablations: pd.DataFrame
    """One row per trial and step of an ablation."""
    details: Mapping[str, pd.DataFrame]
    """The rows of the CSVs with details of trials, such as ``blocks`` and ``epochs``, by the name
    of the CSV without its end. They have the columns of their cell, and the phase and the seed if
    they lack these."""
    telemetry: pd.DataFrame
    """One row per reading of a GPU."""
    remarks: list[str] = field(default_factory=list)
    """Which reference of a script is called fp32, and which runs without a finished trial are left
    out."""

    def tried(self) -> pd.DataFrame:
        """Return the rows of all trials, those of ablations after the others."""
        return pd.concat([self.trials, self.ablations], ignore_index=True)


def load(folders: list[Path]) -> Runs:
    """Read runs.

    Args:
        folders: of runs, or folders in which runs lie.

    Raises:
        UsageError: there is none, none has a finished trial, or one is no run or of another format.
    """
    infos = {}
    for folder in runs_in(folders):
        # Its texts are shown to people, so without what a terminal would obey.
        infos[folder] = plain_within(read_run(folder))
    if not infos:
        raise UsageError(
            "There is no run to report. Give at least one folder that a run wrote, such as "
            "results/NAME."
        )
    _refuse_copies(infos)
    runs = []
    frames_of_runs: dict[str, list[pd.DataFrame]] = defaultdict(list)
    remarks = []
    names_of_data: dict[str, str] = {}
    labels = name_runs([*infos])
    for (folder, info), label in zip(infos.items(), labels, strict=True):
        run = Run(label=label, info=info, folder=folder)
        frames_of_run, reference = _frames_of(run, names_of_data)
        if not frames_of_run:
            remarks.append(f"Run {label} has no finished trial and is left out.")
            continue
        runs.append(run)
        if reference != BASELINE:
            remarks.append(
                f"Run {label}: {reference}, its reference, is called {BASELINE} in this report."
            )
        for name, frame in frames_of_run.items():
            frames_of_runs[name].append(frame)
    if not runs:
        first = next(iter(infos))
        raise UsageError(
            f"The run in '{first}' has no finished trial yet, so there is nothing to report. "
            f"Finish it with --resume {first}."
        )
    frames = {}
    for name, parts in frames_of_runs.items():
        frames[name] = pd.concat(parts, ignore_index=True)
    tried = frames.pop("trials")
    telemetry = frames.pop("telemetry")
    is_step = tried["ablation"] == "yes"
    trials = tried[~is_step]
    ablations = tried[is_step]
    return Runs(
        runs=runs,
        trials=trials.reset_index(drop=True),
        ablations=ablations.reset_index(drop=True),
        details=frames,
        telemetry=telemetry,
        remarks=remarks,
    )


def _frames_of(run: Run, names_of_data: dict[str, str]) -> tuple[dict[str, pd.DataFrame], str]:
    """Read the ``trials``, the ``telemetry`` and the details of a run; return its reference, too.

    There are none if it has no finished trial. ``names_of_data`` are those of ``_name_data``.
    """
    details = read_details(run.folder)
    rows = read_trials(run.folder, run.info, details)
    if rows.empty:
        return {}, BASELINE
    rows["run"] = run.label
    rows["unfinished"] = not run.is_finished
    names = _name_data(run, names_of_data)
    rows["data"] = rows["data"].replace(names)
    reference = str(rows["reference"].iloc[0])
    rows = _with_baseline(rows, reference)
    telemetry = read(run.folder / "telemetry.csv")
    telemetry = telemetry.drop(columns="uuid")
    telemetry["run"] = run.label
    frames = {"trials": rows, "telemetry": telemetry}
    for file, frame in details.items():
        name = file.removesuffix(".csv")
        renamed = _with_baseline(frame, reference)
        frames[name] = _with_cells(file, renamed, rows)
    return frames, reference


def _refuse_copies(infos: Mapping[Path, Mapping[str, Any]]) -> None:
    """Refuse a run and its copy.

    Counted twice, its processes would make every interval too narrow.
    """
    first: dict[tuple[Any, ...], Path] = {}
    for folder, info in infos.items():
        started = info.get("started")
        host = info.get("environment", {}).get("host")
        identity = (info.get("run"), host, started)
        other = first.setdefault(identity, folder)
        if other != folder and started:
            raise UsageError(
                f"'{other}' and '{folder}' are copies of one run: name, host and start are the "
                "same. Leave one out."
            )


def _name_data(run: Run, names: dict[str, str]) -> dict[str, str]:
    """Name a run's sources of data by what they hold.

    Sources of one fingerprint have the name that the first of them has; a name that stands for
    other images already gets the fingerprint's first six digits.

    Args:
        run: the run.
        names: the names that the runs before it have, by fingerprint; new ones are added.
    """
    names_of_run = {}
    for part in run.list("data"):
        source = part["source"]
        fingerprint = part.get("fingerprint")
        if fingerprint:
            name = source
            if source in names.values():
                name += f"#{fingerprint[:6]}"
            names_of_run[source] = names.setdefault(fingerprint, name)
    return names_of_run


def _with_baseline(rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Give a script's reference the name by which all comparisons know it."""
    if reference == BASELINE:
        return rows
    # Large CSVs have categories, which could not be replaced by a name that is none of them.
    names = rows["precision"].astype(object)
    return rows.assign(precision=names.replace(reference, BASELINE))


def _with_cells(file: str, rows: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a CSV with the phase, the seed and the cell of their trials.

    In large CSVs words are categories. Rows of a trial that did not come to its end are left out
    (``STOPPED``), but for blocks and epochs, each of which has a meaning of its own.
    """
    wanted = trials
    if file not in SHARED:
        is_stopped = trials["status"].isin(STOPPED)
        wanted = trials[~is_stopped]
    added = [name for name in ("phase", "seed", *CELL) if name not in rows]
    cells = wanted[[*PAIR, *added]].drop_duplicates(PAIR, keep="last")
    types: Document = {}
    for name in PAIR:
        # Categories have to be alike to be merged.
        types[name] = rows[name].dtype
        is_present = cells[name].isin(rows[name].unique())
        cells = cells[is_present]
    if file in LARGE:
        for name in added:
            if name not in ("batch_size", "seed"):
                types[name] = "category"
    return rows.merge(cells.astype(types), on=PAIR)
