"""JSON documents for other programs: the frames of runs as records, and what a report says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import bench
from bench.report import frames
from bench.report.analysis import comparability
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import Answer, answers
from bench.report.parts import parts
from bench.report.reading.load import Run, Runs
from bench.stats import Interval

# Version of the documents. It is raised when a key is removed, renamed or changes its meaning; keys
# may be added.
VERSION = 5

# The frames in whose records what is unknown is left out, because most columns of a trial are of
# other phases; frames with details are written like them.
LARGE = ("trials", "epochs", "blocks")


def head(kind: str) -> dict[str, Any]:
    """Return the keys with which every document begins."""
    return {"kind": kind, "schema_version": VERSION, "ampmeter_version": bench.__version__}


def dumps(document: Mapping[str, Any]) -> str:
    """Write a document: in ASCII, so that no character of a name has an effect on a terminal."""
    return json.dumps(document, indent=1, allow_nan=False)


def report(runs: Runs) -> dict[str, Any]:
    """Return a report's answers, what phases add, and the frames of its runs as records."""
    summary = summarise(runs.trials)
    of_runs = frames.results(runs, summary)
    document = {
        **head("report"),
        "runs": [_run(run) for run in runs.runs],
        "answers": [_answer(answer) for answer in answers(summary)],
        "cautions": comparability.cautions(runs),
        "results": frames.rows(of_runs.summary),
    }
    for part in parts().values():
        document |= part.document(runs)
    large = {name: getattr(of_runs, name) for name in LARGE} | dict(of_runs.details)
    for name, frame in large.items():
        document[name] = [_known(row) for row in frames.rows(frame)]
    return document


def _known(row: Mapping[str, frames.Json]) -> dict[str, frames.Json]:
    return {name: value for name, value in row.items() if value is not None}


def _answer(answer: Answer) -> dict[str, Any]:
    """Return the advice for a recipe on a device.

    Its figures are those of the result of the same batch size.
    """
    return {
        "workload": answer.names["workload"],
        "where": answer.names["where"],
        "batch_size": answer.batch,
        "use": answer.precision,
        "advice": answer.advice,
        "ties": answer.ties,
        "accuracy": answer.accuracy or None,
        "doubts": [doubt.name for doubt in answer.doubts],
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
    }


def interval(name: str, estimate: Interval | None) -> dict[str, float | None]:
    """Return the keys of an estimate and of the ends of its interval."""
    ends = estimate.ends if estimate else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
