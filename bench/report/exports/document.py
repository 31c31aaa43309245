"""JSON documents for other programs: a report's figures with the raw samples; ``schema.json`` describes them."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import pandas as pd

import bench
from bench.report.analysis import ablation, comparability, factors
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.exports import data
from bench.report.format import known, records
from bench.report.reading.load import Run, Runs
from bench.results.columns import COLUMNS, Field, listed
from bench.stats import Interval

VERSION = 1
"""Version of the documents. It is raised when a key is removed, renamed or changes its meaning; keys may be added."""
OF_TRIALS = {name: field for name, field in COLUMNS["trials.csv"].items() if name not in ("schema", "parameters_json")}
OF_BLOCKS = ("round", "position", "steps", "time_ms", "skipped_steps", "discarded")
"""Columns of a trial's blocks, each an array with a value for each block."""
OWN = ("schema", "trial", "precision", "seed")
"""Columns of the other CSVs that the trial itself has."""


def head(kind: str) -> dict[str, Any]:
    """Return the keys with which every document begins."""
    return {"kind": kind, "schema_version": VERSION, "ampmeter_version": bench.__version__}


def dumps(document: Mapping[str, Any]) -> str:
    """Write a document: in ASCII, so that no character of a name has an effect on a terminal."""
    return json.dumps(document, indent=1, allow_nan=False)


def report(runs: Runs) -> dict[str, Any]:
    """Return the figures of a report: its answers, its summary, its ablations, and every trial with its raw samples."""
    summary = summarise(runs.trials)
    return {
        **head("report"),
        "runs": [_run(run) for run in runs.runs],
        "answers": data.answers(answers(summary)),
        "cautions": comparability.cautions(runs),
        "results": data.rows(summary, data.every()),
        "contrasts": list(factors.rows(factors.varied(summary, runs))),
        "ablations": [_ablation(one) for one in ablation.ablations(runs)],
        "trials": _trials(runs),
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "run": run.label,
        "ampmeter_version": run.info.get("version"),
        "started": run.info.get("started"),
        "finished": run.info.get("finished"),
        "environment": run.environment,
        "request": run.part("request"),
        "warnings": run.list("warnings"),
        "remarks": list(run.remarks),
    }


def _ablation(one: ablation.AblationSummary) -> dict[str, Any]:
    steps = []
    for row in records(one.rows):
        accuracy = row["accuracy"]
        steps.append(
            {
                **{
                    name: row[name] for name in ("step", "precision", "added", "builds_on", "status", "detail", "limit")
                },
                **{name: _figure(row[name]) for name in ("step_ms", "epoch_s", "wait_pct", "loader_ms")},
                **interval("speedup", row["over_first"]),
                **interval("speedup_over_previous", row["over_last"]),
                "peak_memory_bytes": _figure(row["memory_bytes"]),
                "memory_change_ratio": _figure(row["memory_change"]),
                "accuracy_pct": None if accuracy is None else _figure(accuracy.center),
            }
        )
    return {"name": one.title, "noise_ratio": one.measured_noise, "steps": steps}


def interval(name: str, found: Interval | None) -> dict[str, float | None]:
    """Return the keys of an estimate and of the ends of its interval."""
    ends = (None, None, None) if found is None else found.ends
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def _figure(value: Any) -> float | None:
    return float(value) if known(value) and math.isfinite(value) else None


def _trials(runs: Runs) -> list[dict[str, Any]]:
    """Return every row of trials.csv that counts, what is unknown left out, with its blocks, epochs and numerics."""
    blocks = _by_trial(pd.concat([runs.blocks, runs.ablation_blocks], ignore_index=True))
    epochs, numerics = _by_trial(runs.epochs), _by_trial(runs.numerics)
    found = []
    for frame in (runs.trials, runs.ablations):
        for row in records(frame):
            trial = dict(_known(row, OF_TRIALS.values()))
            key = (row["run"], row["trial"], row["precision"])
            if (own := blocks.get(key)) is not None:
                fields = [COLUMNS["blocks.csv"][name] for name in OF_BLOCKS]
                trial["blocks"] = {field.name: [_cell(value, field) for value in own[field.name]] for field in fields}
            for name, others in (("epochs", epochs), ("numerics", numerics)):
                if (own := others.get(key)) is not None:
                    fields = [field for field in COLUMNS[f"{name}.csv"].values() if field.name not in OWN]
                    trial[name] = [dict(_known(one, fields)) for one in records(own)]
            found.append(trial)
    return found


def _by_trial(rows: pd.DataFrame) -> dict[Hashable, pd.DataFrame]:
    return dict(list(rows.groupby(["run", "trial", "precision"], sort=False, observed=True)))


def _known(row: Mapping[Hashable, Any], fields: Iterable[Field]) -> Iterable[tuple[str, Any]]:
    """Yield the cells of a row that hold something."""
    for field in fields:
        value = row[field.name]
        if known(value) and value != "":
            yield field.name, _cell(value, field)


def _cell(value: Any, field: Field) -> Any:
    """Return a cell of a CSV as JSON has it; a figure that is not finite is None."""
    if field.kind == "number":
        figure = _figure(value)
        return int(figure) if figure is not None and field.whole else figure
    if field.kind == "yes or no":
        return value == "yes"
    return list(listed(value)) if field.kind == "list" else json.loads(value) if field.kind == "JSON" else value
