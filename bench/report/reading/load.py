"""Runs as frames: the CSVs of each run, checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.format import counted
from bench.report.reading.completeness import missing_trials
from bench.report.reading.folders import Info, identity, labels, read_info, runs_in
from bench.report.reading.trials import read_details, read_trials
from bench.results.columns import COLUMNS, LARGE, SHARED, whole_lines
from bench.results.csv_file import PAIR, read
from bench.results.records import MEASURED, Status
from bench.spec.errors import UsageError
from bench.spec.phases import MEASURING, PHASES
from bench.spec.precisions import BASELINE

CELL = ["run", "suite", "parameters", "techniques", "data", "architecture", "device", "placement", "batch_size"]
"""The columns that identify a cell: within one, precisions are compared."""
KEY = [*CELL, "precision"]
"""The columns that identify a row of the summary."""
SUBJECT = CELL[:-1]
"""The columns that identify the subject of a verdict: one recipe on one device in one run."""
STOPPED: tuple[Status, ...] = ("oom", "unsupported", "timeout", "failed")
"""The statuses of trials that did not come to their end: their figures in long form are a part that has no meaning."""
WORKLOAD = ["suite", "parameters", "techniques", "data"]
"""The columns in which devices and runs must agree to be compared: the same recipe on the same data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run's run.json, under the name that the report gives it."""

    label: str
    info: dict[str, Any]
    folder: Path = Path()
    remarks: tuple[str, ...] = ()
    """Oddities of its files, one sentence each."""

    def part(self, name: str) -> dict[str, Any]:
        """Return an object of run.json, empty where it was not written."""
        part: dict[str, Any] = self.info.get(name) or {}
        return part

    def list(self, name: str) -> list[Any]:
        """Return a list of run.json, empty where it was not written."""
        part: list[Any] = self.info.get(name) or []
        return part

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and its software."""
        return self.part("environment")

    @property
    def devices(self) -> Sequence[dict[str, Any]]:
        """The devices of the machine."""
        devices: Sequence[dict[str, Any]] = self.environment.get("devices", [])
        return devices

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of its sources of data, by the sources' names."""
        return {part["source"]: part["fingerprint"] for part in self.list("data") if part.get("fingerprint")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """All runs of a report: their rows in one frame, each with its ``run``."""

    runs: list[Run]
    trials: pd.DataFrame
    """One row per trial and precision, in the order measured."""
    ablations: pd.DataFrame
    """One row per trial and step of an ablation."""
    details: Mapping[str, pd.DataFrame]
    """The rows of the CSVs with details of trials, such as ``blocks`` and ``epochs``, by the name of the CSV without
    its end. They have the columns of their cell, and the phase and the seed if they lack these."""
    telemetry: pd.DataFrame
    """One row per reading of a GPU."""
    remarks: list[str] = field(default_factory=list)
    """Which paths hold the same images, and which one path holds others."""

    def tried(self) -> pd.DataFrame:
        """Return the rows of all trials, those of ablations after the others."""
        filled = [frame for frame in (self.trials, self.ablations) if len(frame)]
        return pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]


def _refuse_copies(infos: Mapping[Path, Info]) -> None:
    """Refuse a run and its copy: counted twice, its processes would make every interval too narrow."""
    first: dict[str, Path] = {}
    for folder, info in infos.items():
        other = first.setdefault(identity(folder, info), folder)
        if other != folder:
            raise UsageError(
                f"'{other}' and '{folder}' are copies of one run: name, host and start are the same. Leave one out."
            )


def load(folders: list[Path]) -> Runs:
    """Read runs.

    Args:
        folders: of runs, or folders in which runs lie.

    Raises:
        UsageError: there is none, or one is no run, of another format, or without a finished trial.
    """
    infos = {folder: read_info(folder) for folder in runs_in(folders)}
    if not infos:
        raise UsageError("There is no run to report. Give at least one folder that a run wrote, such as results/NAME.")
    _refuse_copies(infos)
    runs: list[Run] = []
    trials: list[pd.DataFrame] = []
    readings: list[pd.DataFrame] = []
    parts: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for (folder, info), label in zip(infos.items(), labels([*infos]), strict=True):
        details = read_details(folder)
        rows = _with_target(read_trials(folder, info, details).assign(run=label), info)
        if rows.empty:
            why = (
                "had no time for a trial: give --within more" if info.get("undecided") else "has no finished trial yet"
            )
            raise UsageError(
                f"The run in '{folder}' {why}, so there is nothing to report. Finish it with --resume {folder}."
            )
        remarks_on_files = (*_cut_off(folder), *_lost_details(rows, details))
        runs.append(Run(label=label, info=info, folder=folder, remarks=remarks_on_files))
        trials.append(rows.assign(missing_trials=missing_trials(info, rows)))
        readings.append(read(folder / "telemetry.csv").drop(columns="uuid").assign(run=label))
        for file, of_file in details.items():
            parts[file].append(_with_cells(file, of_file, rows))
    names, remarks = _data_names(runs)
    every = pd.concat(trials, ignore_index=True)
    references = _references(every)
    for label, reference in references.items():
        remarks.append(f"Run {label}: {reference}, its reference, is called {BASELINE} in this report.")

    def named(frame: pd.DataFrame) -> pd.DataFrame:
        return _with_baseline(_rename_data(frame, names), references)

    every = named(every)
    is_step = every["ablation"] == "yes"
    return Runs(
        runs=runs,
        trials=every[~is_step].reset_index(drop=True),
        ablations=every[is_step].reset_index(drop=True),
        details={file.removesuffix(".csv"): named(pd.concat(rows, ignore_index=True)) for file, rows in parts.items()},
        telemetry=pd.concat(readings, ignore_index=True),
        remarks=remarks,
    )


def _references(trials: pd.DataFrame) -> dict[str, str]:
    """Return the references of runs of scripts that have another name than the baseline, by the runs' labels."""
    named = trials[~trials["reference"].isin(("", BASELINE))]
    return {str(label): str(name) for label, name in zip(named["run"], named["reference"], strict=True)}


def _with_baseline(rows: pd.DataFrame, references: Mapping[str, str]) -> pd.DataFrame:
    """Give a script's reference the name by which all comparisons know it."""
    if not references or "precision" not in rows:
        return rows
    is_reference = rows["run"].astype(str).map(references) == rows["precision"].astype(str)
    return rows.assign(precision=rows["precision"].astype(str).mask(is_reference, BASELINE))


def _with_target(rows: pd.DataFrame, info: dict[str, Any]) -> pd.DataFrame:
    """Add ``target_ci``, the half-width that the run asked of its speedups."""
    asked = info.get("request", {}).get("protocol", {}).get("target_ci")
    return rows.assign(target_ci=float("nan") if asked is None else float(asked))


def _cut_off(folder: Path) -> tuple[str, ...]:
    """Warn, in one sentence, of a run's files whose last write was cut off."""
    names = [name for name in COLUMNS if whole_lines(folder / name)[1]]
    return (f"The last write to {' and '.join(names)} was cut off, and does not count.",) if names else ()


def _lost_details(rows: pd.DataFrame, details: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Warn of measured rows without the blocks or epochs that their figures follow from."""
    for name, phase in MEASURING.items():
        for file in {*phase.details.values()} & {*SHARED}:
            measured = rows[(rows["phase"] == name) & rows["status"].isin(MEASURED)]
            has_details = pd.MultiIndex.from_frame(measured[PAIR]).isin(details[file].set_index(PAIR).index)
            if not has_details.all():
                count = counted(int((~has_details).sum()), "row")
                yield (
                    f"{file} has nothing of {count} of {phase.file}, which so have no figures: restore it, or delete "
                    f"them and go on with --resume."
                )


def _with_cells(file: str, rows: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a CSV with the phase, the seed and the cell of their trials, in which words are categories.

    Figures in long form of a trial that did not come to its end are left out: a part of them has no meaning.
    """
    phases = [name for name, phase in PHASES.items() if file in phase.details.values()]
    wanted = trials[trials["phase"].isin(phases)]
    if file not in SHARED:
        wanted = wanted[~wanted["status"].isin(STOPPED)]
    added = [name for name in ("phase", "seed", *CELL) if name not in rows]
    cells = wanted[[*PAIR, *added]].drop_duplicates(PAIR, keep="last")
    if file not in LARGE:
        return rows.merge(cells, on=PAIR)
    for name in PAIR:
        cells = cells[cells[name].isin(rows[name].cat.categories)]
    types: dict[str, Any] = {name: rows[name].dtype for name in PAIR}
    types |= {name: "category" for name in added if name not in ("batch_size", "seed")}
    return rows.merge(cells.astype(types), on=PAIR)


def _data_names(runs: Sequence[Run]) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Name each source of data by what it holds, and say which are not called by their own name.

    Sources of one fingerprint have the name that the first of them has; a name that stands for other images already
    gets the fingerprint's first six digits.

    Returns:
        The names, by the run's label and the source's own name, and sentences.
    """
    by_content: dict[str, str] = {}
    names: dict[tuple[str, str], str] = {}
    remarks = []
    for run in runs:
        for source, fingerprint in run.fingerprints.items():
            name = f"{source}#{fingerprint[:6]}" if source in by_content.values() else source
            name = by_content.setdefault(fingerprint, name)
            names[run.label, source] = name
            if name != source:
                other = "other images than in the runs before it" if "#" in name else f"the same images as {name}"
                remarks.append(f"{source} of run {run.label} holds {other}, and is called {name} here.")
    return names, remarks


def _rename_data(frame: pd.DataFrame, names: Mapping[tuple[str, str], str]) -> pd.DataFrame:
    """Return rows with the column ``data`` as ``_data_names`` says."""
    if frame.empty or all(source == name for (_, source), name in names.items()):
        return frame
    pairs = zip(frame["run"].astype(str), frame["data"].astype(str), strict=True)
    data = pd.Series([names.get(pair, pair[1]) for pair in pairs], index=frame.index, dtype=str)
    is_category = isinstance(frame["data"].dtype, pd.CategoricalDtype)
    return frame.assign(data=data.astype("category") if is_category else data)
