"""What was asked for and not measured, said once: what devices lack, what else was refused, and what did not fit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

import pandas as pd

from bench.report.analysis.verdict import MEASURES
from bench.report.format import records
from bench.report.reading.labels import short, subjects
from bench.report.reading.load import CELL, SUBJECT, Run, Runs, is_emulated
from bench.results.records import MEASURED
from bench.spec.generations import generation_rank
from bench.spec.phases import PHASES
from bench.spec.precisions import find_precision, precision_rank

UNSUPPORTED, OOM = "unsupported", "oom"
LONGEST = 160
"""Characters of a reason; the table "Not supported" has it whole."""


def without_unsupported(summary: pd.DataFrame) -> pd.DataFrame:
    """Leave out the rows that are ``unsupported`` in all that was tried, where the batch size has another precision.

    ``sentences`` says what they were.
    """
    lost = summary[MEASURES] == UNSUPPORTED
    whole = lost.any(axis=1) & (lost | summary[MEASURES].isna()).all(axis=1)
    others = (~whole).groupby([summary[name] for name in CELL], sort=False).transform("any")
    return summary[~(whole & others)]


def sentences(summary: pd.DataFrame, runs: Runs) -> list[str]:
    """Return a sentence for each precision that devices lack, each other reason, and what did not fit of each suite."""
    trials = runs.trials
    costs = ~trials["phase"].isin([name for name, phase in PHASES.items() if phase.arithmetic])
    rows = trials[(trials["status"] == UNSUPPORTED) & ~(costs & is_emulated(trials["precision"]))]
    lacked = _lacked(rows, runs.runs)
    return [*_lacking(rows[lacked]), *_refused(rows[~lacked], trials), *_too_large(summary)]


def _lacked(rows: pd.DataFrame, runs: Iterable[Run]) -> pd.Series:
    """Say of each row whether its device has not the arithmetic of its precision; False where that is not known."""
    lacking = {
        (run.label, device["placement"]): set(device.get("lacking") or ()) for run in runs for device in run.devices
    }
    found = [
        (precision := find_precision(row["precision"])) is not None
        and precision.ability in lacking.get((row["run"], row["placement"]), ())
        for row in records(rows[["run", "placement", "precision"]])
    ]
    return pd.Series(found, index=rows.index, dtype=bool)


def _lacking(rows: pd.DataFrame) -> list[str]:
    """Say by generation, or by device where that is not known, which precision its hardware has not."""
    found: dict[str, list[str]] = {}
    for (name, architecture, device), _ in rows.groupby(["precision", "architecture", "device"], sort=False):
        on_gpu = generation_rank(str(architecture)) < generation_rank("")
        found.setdefault(str(name), []).append(str(architecture) if on_gpu else short(str(device)))
    return [f"{name}: not on {', '.join(dict.fromkeys(found[name]))}." for name in sorted(found, key=precision_rank)]


def _refused(rows: pd.DataFrame, trials: pd.DataFrame) -> list[str]:
    """Give each other reason with its precisions, and with the suites and devices unless it holds everywhere."""
    if rows.empty:
        return []
    every = subjects(trials)
    rows = rows.merge(every[[*SUBJECT, "workload", "label"]], on=SUBJECT)
    rows["reason"] = [_reason(row["precision"], row["detail"]) for row in records(rows)]
    measured = trials[trials["status"].isin(MEASURED)]
    found: list[str] = []
    for reason, alike in rows.groupby("reason", sort=False):
        names = ", ".join(sorted(alike["precision"].unique(), key=precision_rank))
        others = measured.merge(alike[[*SUBJECT, "precision"]].drop_duplicates())["phase"]
        if len(others) and not set(others) & set(alike["phase"]):  # only some phases were refused
            names = f"{', '.join(alike['phase'].unique())} of {names}"
        places = [
            ", ".join(map(str, alike[column].unique()))
            for column in ("workload", "label")
            if alike[column].nunique() < every[column].nunique()
        ]
        found.append(f"{' on '.join(places)}{', ' if places else ''}{names}: {reason}.")
    return found


def _reason(name: str, detail: str) -> str:
    """Return a row's reason without the precision's name at its head, and not longer than ``LONGEST``."""
    precision = find_precision(name)
    heads = "|".join(map(re.escape, (name, precision.base if precision else name)))
    text = re.sub(rf"^(?:{heads}):? ", "", detail)
    return textwrap.shorten(text, LONGEST, placeholder=" …").rstrip(".") or UNSUPPORTED


def _too_large(summary: pd.DataFrame) -> list[str]:
    """Say from which batch size on each precision ran out of memory."""
    found: dict[str, list[str]] = {}
    lost = summary[(summary[MEASURES] == OOM).any(axis=1)]
    for _, subject in lost.groupby(SUBJECT, sort=False):
        first = subject.groupby("precision", sort=False)["batch_size"].min()
        sizes = [f"{size:.0f} ({', '.join(map(str, group.index))})" for size, group in first.groupby(first)]
        devices = found.setdefault(str(subject["workload"].iloc[0]), [])
        devices.append(f"{subject['label'].iloc[0]} from batch {' and '.join(sizes)}")
    return [f"{workload}, out of memory: {'; '.join(devices)}." for workload, devices in found.items()]
