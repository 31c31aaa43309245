"""What follows from the rows of a run while it goes on: of a trial that has just ended, and of those before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.phases.speed import Speed
from bench.report.reading.trials import read_details, read_trials
from bench.results.columns import COLUMNS, cells, derived
from bench.results.csv_file import typed
from bench.results.records import MEASURED, TrialResult
from bench.results.run_json import read_run
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

YES_OR_NO = {"yes": True, "no": False}


def with_figures(trial: Trial, results: Sequence[TrialResult], records: Sequence[object]) -> list[TrialResult]:
    """Return the results of a trial with the figures that follow from its records, as reports derive them."""
    phase, measured = PHASES[trial.phase], [result for result in results if result.row is not None]
    if phase.derive is None or not measured:
        return [*results]
    details = {}
    for kind, name in phase.details.items():
        sent = [_named(trial, record) for record in records if isinstance(record, kind)]
        details[name] = typed(pd.DataFrame(sent), COLUMNS[name])
    rows = [_named(trial, result) | {"replicate": trial.replicate} for result in measured]
    frame = typed(pd.DataFrame(rows), COLUMNS[phase.file]).assign(reference=trial.cell.reference)
    figures = phase.derive(frame, details).set_index("precision")[[*derived(phase)]].to_dict("index")
    return [
        replace(result, row=result.row and replace(result.row, **_known(figures[result.precision])))
        for result in results
    ]


def _named(trial: Trial, record: Any) -> dict[str, object]:
    """Return the cells of a record, with its names as they are."""
    return cells(record) | {"trial": trial.id, "precision": record.precision}


def stored_speeds(folder: Path) -> dict[str, dict[str, Speed]]:
    """Return the speeds that earlier processes of a run have stored, by trial and arm."""
    rows = read_trials(folder, read_run(folder), read_details(folder))
    timed = rows[rows["status"].isin(MEASURED) & (rows["step_ms"] > 0)]
    own = [field.name for field in fields(Speed)]
    speeds: dict[str, dict[str, Speed]] = {}
    for trial, arm, row in zip(timed["trial"], timed["precision"], timed[own].to_dict("records"), strict=True):
        speeds.setdefault(trial, {})[arm] = Speed(**_known(row))
    return speeds


def _known(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a row that are known."""
    return {str(name): YES_OR_NO.get(value, value) for name, value in row.items() if not pd.isna(value)}
