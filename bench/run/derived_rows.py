"""The rows of a run that goes on, with the columns that follow from what was stored.

``Phase.derive`` computes these columns. A trial that has just ended is shown with them; those
before decide whether further processes are needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.phases.speed import Speed
from bench.report.reading.trials import read_details, read_trials
from bench.results.columns import COLUMNS, derived, row_of
from bench.results.csv_file import typed
from bench.results.records import MEASURED, Detail, TrialResult
from bench.results.run_json import read_run
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

# How CSVs write booleans.
YES_OR_NO = {"yes": True, "no": False}


def with_derived(
    trial: Trial, results: Sequence[TrialResult], records: Sequence[Detail]
) -> list[TrialResult]:
    """Return the results of a trial with what follows from its records, as reports derive it."""
    phase = PHASES[trial.phase]
    measured = [result for result in results if result.row is not None]
    if phase.derive is None or not measured:
        return [*results]
    details = {}
    for kind, name in phase.details.items():
        sent: list[Detail] = [record for record in records if isinstance(record, kind)]
        details[name] = _frame(trial, [(each.precision, each) for each in sent], name)
    # As a frame of reports, which has the reference of each cell.
    rows = _frame(trial, [(result.arm, result) for result in measured], phase.file)
    rows = rows.assign(reference=trial.cell.reference)
    rows = phase.derive(rows, details).set_index("precision")
    by_arm = rows[[*derived(phase)]].to_dict("index")
    completed = []
    for result in results:
        row = result.row
        if row is not None:
            row = replace(row, **_as_fields(by_arm[result.arm]))
        completed.append(replace(result, row=row))
    return completed


def _frame(trial: Trial, records: Sequence[tuple[str, Any]], file: str) -> pd.DataFrame:
    """Return records of a trial as the frame of a CSV, with names as they are, not quoted.

    Each record comes with the name of its arm.
    """
    rows = []
    for arm, record in records:
        names = {"trial": trial.id, "precision": arm, "replicate": trial.replicate}
        rows.append(row_of(record) | names)
    return typed(pd.DataFrame(rows), COLUMNS[file])


def stored_speeds(folder: Path) -> dict[str, dict[str, Speed]]:
    """Return the speeds that a run has stored, by trial and arm (``speeds_of``)."""
    rows = read_trials(folder, read_run(folder), read_details(folder))
    phases = [name for name, phase in PHASES.items() if phase.row is Speed]
    speed_rows = rows[rows["phase"].isin(phases)]
    is_measured = speed_rows["status"].isin(MEASURED)
    # Where no block was sent, the time is unknown: NaN, which is not above 0.
    timed = speed_rows[is_measured & (speed_rows["step_ms"] > 0)]
    columns = [field.name for field in fields(Speed)]
    speeds: dict[str, dict[str, Speed]] = defaultdict(dict)
    for row in timed[["trial", "precision", *columns]].to_dict("records"):
        trial, arm = row.pop("trial"), row.pop("precision")
        speeds[trial][arm] = Speed(**_as_fields(row))
    return speeds


def speeds_of(results: Sequence[TrialResult]) -> dict[str, Speed]:
    """Return the speeds among results of a trial, by the arms that were measured."""
    speeds = {}
    for result in results:
        row = result.row
        if isinstance(row, Speed) and row.step_ms is not None and result.status in MEASURED:
            speeds[result.arm] = row
    return speeds


def _as_fields(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row of a frame as fields of a dataclass, with yes and no as bools.

    What is empty is the field's default.
    """
    known = {}
    for name, value in row.items():
        if value != "" and not pd.isna(value):
            known[name] = YES_OR_NO.get(value, value)
    return known
