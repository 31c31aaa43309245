"""Runs as frames: the CSVs of each run, checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.reading.completeness import missing_trials
from bench.report.reading.folders import Info, identity, labels, read_info, runs_in
from bench.report.reading.trials import read_details, read_trials
from bench.results.columns import COLUMNS, whole_lines
from bench.results.csv_file import PAIR, read
from bench.results.records import Status
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.precisions import BASELINE, find_precision

CELL = ["run", "suite", "parameters", "techniques", "data", "architecture", "device", "placement", "batch_size"]
"""The columns that identify a cell: within one, precisions are compared."""
KEY = [*CELL, "precision"]
"""The columns that identify a row of the summary."""
SUBJECT = CELL[:-1]
"""The columns that identify the subject of a verdict: one recipe on one device in one run."""
TRAIN_COST = ["time_per_epoch_s", "total_s", "train_samples_per_s", "data_wait_pct", "time_to_accuracy_s"]
TRAIN_COST += ["train_energy_j", "fastest_epoch_s", "slowest_epoch_s"]
EPOCH_COST = ["train_s", "test_s", "elapsed_s", "data_wait_s", "samples_per_s", "energy_j"]
"""The costs of training, of which an emulated precision has no figure."""
OF_TRIALS = {
    "epochs": ("epochs.csv",),
    "numerics": ("numerics_figures.csv", "layers_figures.csv"),
    "explained": ("explain_figures.csv",),
}
"""The frames whose rows get the columns of their trials' cells, and their files."""
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
    """All runs of a report: their rows in one frame, told apart by the column ``run``."""

    runs: list[Run]
    trials: pd.DataFrame
    """One row per trial and precision, in the order measured."""
    epochs: pd.DataFrame
    """One row per epoch, with the columns of its cell."""
    blocks: pd.DataFrame
    """One row per timed block of the other phases, with the columns of its cell."""
    ablations: pd.DataFrame
    """One row per trial and step of an ablation."""
    ablation_blocks: pd.DataFrame
    """One row per timed block of an ablation, with the columns of its cell."""
    numerics: pd.DataFrame
    """One row per figure of a numerics or layers phase that came to its end, with the seed and the cell's columns."""
    explained: pd.DataFrame
    """One row per figure of an explain phase that came to its end, with the columns of its cell."""
    telemetry: pd.DataFrame
    """One row per reading of a GPU."""
    remarks: list[str] = field(default_factory=list)
    """Which paths hold the same images, and which one path holds others."""

    def tried(self) -> pd.DataFrame:
        """Return the rows of all trials, those of ablations after the others."""
        return pd.concat([self.trials, self.ablations], ignore_index=True)


def _refuse_copies(infos: Mapping[Path, Info]) -> None:
    """Refuse a run and its copy: counted twice, its processes would make every interval too narrow."""
    first: dict[str, Path] = {}
    for folder, info in infos.items():
        other = first.setdefault(identity(folder, info), folder)
        if other != folder:
            raise UsageError(f"'{other}' and '{folder}' are copies of one run: name, host and start are the same.")


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
    parts: dict[str, list[pd.DataFrame]] = defaultdict(list)
    readings: list[pd.DataFrame] = []
    for (folder, info), label in zip(infos.items(), labels([*infos]), strict=True):
        details = read_details(folder)
        rows = _with_target(read_trials(folder, info, details).assign(run=label), info)
        rows = rows.assign(missing_trials=missing_trials(info, rows))
        if rows.empty:
            why = (
                "had no time for a trial: give --within more" if info.get("undecided") else "has no finished trial yet"
            )
            raise UsageError(
                f"The run in '{folder}' {why}, so there is nothing to report. Finish it with --resume {folder}."
            )
        runs.append(Run(label=label, info=info, folder=folder, remarks=_cut_off(folder)))
        readings.append(read(folder / "telemetry.csv").drop(columns="uuid").assign(run=label))
        parts["blocks"].append(_blocks(details["blocks.csv"], rows))
        of_trials = {name: _details(details, files) for name, files in OF_TRIALS.items()}
        ended = rows[~rows["status"].isin(STOPPED)]
        for name, files in OF_TRIALS.items():
            trials = rows if name == "epochs" else ended  # an epoch is whole by itself
            parts[name].append(_without_emulated_cost(_with_cells(files, of_trials[name], trials), EPOCH_COST))
        parts["trials"].append(_without_emulated_cost(_with_losses(rows, of_trials), TRAIN_COST))
    names, remarks = _data_names(runs)
    frames = {name: _rename_data(pd.concat(rows, ignore_index=True), names) for name, rows in parts.items()}
    steps = set(frames["trials"].loc[frames["trials"]["ablation"] == "yes", "trial"])
    for name, of_ablations in (("trials", "ablations"), ("blocks", "ablation_blocks")):
        is_step = frames[name]["trial"].isin(steps)
        frames[of_ablations] = frames[name][is_step].reset_index(drop=True)
        frames[name] = frames[name][~is_step].reset_index(drop=True)
    references = _references(frames["trials"])
    frames = {name: _with_baseline(frame, references) for name, frame in frames.items()}
    for label, reference in references.items():
        remarks.append(f"Run {label}: {reference}, its reference, is called {BASELINE} in this report.")
    telemetry = pd.concat(readings, ignore_index=True)
    return Runs(runs=runs, remarks=remarks, telemetry=telemetry, **frames)


def _details(details: Mapping[str, pd.DataFrame], files: Sequence[str]) -> pd.DataFrame:
    """Return the rows of CSVs with details; without columns of its own where the phases of all are not here."""
    frames = [details[file] for file in files if file in details]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=PAIR)


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


def is_emulated(precisions: pd.Series) -> pd.Series:
    """Say of each name of a precision whether its narrow products were emulated."""
    entries = {name: find_precision(str(name)) for name in set(precisions)}
    emulated = {name: precision is not None and precision.emulated for name, precision in entries.items()}
    return precisions.map(emulated).astype(bool)


def _without_emulated_cost(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Leave out what emulated precisions took: it is the emulation's, and says nothing of the precision."""
    emulated = is_emulated(rows["precision"])
    if not emulated.any():
        return rows
    return rows.assign(**{name: rows[name].mask(emulated) for name in columns if name in rows})


def _with_target(rows: pd.DataFrame, info: dict[str, Any]) -> pd.DataFrame:
    """Add ``target_ci``, the half-width that the run asked of its speedups."""
    asked = info.get("request", {}).get("protocol", {}).get("target_ci")
    return rows.assign(target_ci=float("nan") if asked is None else float(asked))


def _with_losses(rows: pd.DataFrame, of_trials: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Add each training's loss in its first and last epoch, or step of the numerics phase, and what it lost.

    ``zero_gradients_pct`` is the share of the parameters' gradients that were zero where the numerics phase counted.
    """
    numerics, epochs = of_trials["numerics"], of_trials["epochs"]
    steps = numerics[(numerics["kind"] == "step") & (numerics["name"] == "loss")].rename(
        columns={"value": "train_loss"}
    )
    courses = [epochs.sort_values("epoch", kind="stable"), steps.sort_values("step", kind="stable")]
    losses = pd.concat(
        [course.groupby(PAIR)["train_loss"].agg(first_loss="first", last_loss="last") for course in courses]
    )
    whole = numerics[(numerics["kind"] == "gradient") & (numerics["layer"] == "")]
    zeros, every = (part.groupby(PAIR)["value"].sum() for part in (whole[whole["name"] == "zero"], whole))
    shares = (100 * zeros.reindex(every.index, fill_value=0.0) / every).rename("zero_gradients_pct")
    return rows.join(losses, on=PAIR).join(shares, on=PAIR)


def _filling(trials: pd.DataFrame, files: Sequence[str]) -> pd.DataFrame:
    """Return the trials of phases that write their details to one of some CSVs."""
    wanted = [name for name, phase in PHASES.items() if {*phase.details.values()} & {*files}]
    return trials[trials["phase"].isin(wanted)]


def _cut_off(folder: Path) -> tuple[str, ...]:
    """Warn, in one sentence, of a run's files whose last write was cut off."""
    names = [name for name in COLUMNS if whole_lines(folder / name)[1]]
    return (f"The last write to {' and '.join(names)} was cut off, and does not count.",) if names else ()


def _with_cells(files: Sequence[str], rows: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a run's CSV with the columns of their trials' cells, and the seed if they lack it."""
    seed = [] if "seed" in rows else ["seed"]
    cells = _filling(trials[[*PAIR, "phase", *seed, *CELL]], files).drop(columns="phase")
    return rows.merge(cells.drop_duplicates(PAIR, keep="last"), on=PAIR)


def _blocks(blocks: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the blocks of what is compared, each with the phase and the columns of its cell, as categories."""
    cells = _filling(trials[[*PAIR, "phase", *CELL]], ("blocks.csv",)).drop_duplicates(PAIR, keep="last")
    for name in PAIR:
        cells = cells[cells[name].isin(blocks[name].cat.categories)]
    repeated = [name for name in ("phase", *CELL) if name != "batch_size"]
    types: dict[str, Any] = {name: blocks[name].dtype for name in PAIR} | dict.fromkeys(repeated, "category")
    return blocks.merge(cells.astype(types), on=PAIR)


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
    return frame.assign(data=data.astype(frame["data"].dtype))
