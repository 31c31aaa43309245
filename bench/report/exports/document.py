"""JSON documents for other programs: the frames of runs as records, and what a report says of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import bench
from bench.report.analysis import ablation, comparability
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import Answer, answers
from bench.report.exports import data
from bench.report.format import known, records
from bench.report.reading.load import Run, Runs
from bench.stats import Interval

VERSION = 2
"""Version of the documents. It is raised when a key is removed, renamed or changes its meaning; keys may be added."""
LARGE = ("trials", "epochs", "blocks", "numerics")
"""Frames of many columns or rows, of which only what is known is written."""
STEP_WORDS = ("step", "precision", "added", "builds_on", "status", "detail", "limit")


def head(kind: str) -> dict[str, Any]:
    """Return the keys with which every document begins."""
    return {"kind": kind, "schema_version": VERSION, "ampmeter_version": bench.__version__}


def dumps(document: Mapping[str, Any]) -> str:
    """Write a document: in ASCII, so that no character of a name has an effect on a terminal."""
    return json.dumps(document, indent=1, allow_nan=False)


def report(runs: Runs) -> dict[str, Any]:
    """Return the figures of a report: its answers, its ablations, and the frames of ``data.typed`` as records."""
    frames = data.typed(runs)
    large = {name: data.rows(getattr(frames, name)) for name in LARGE}
    return {
        **head("report"),
        "runs": [_run(run) for run in runs.runs],
        "answers": [_answer(answer) for answer in answers(summarise(runs.trials))],
        "cautions": comparability.cautions(runs),
        "results": data.rows(frames.summary),
        "ablations": [_ablation(ladder) for ladder in ablation.ablations(runs)],
        "telemetry": data.rows(frames.telemetry),
        **{name: [_known(row) for row in rows] for name, rows in large.items()},
    }


def _known(row: Mapping[str, data.Json]) -> dict[str, data.Json]:
    return {name: value for name, value in row.items() if value is not None}


def _answer(answer: Answer) -> dict[str, Any]:
    """Return the advice for a recipe on a device; its figures are those of the result of the same batch size."""
    return {
        "workload": answer.workload,
        "where": answer.where,
        "batch_size": int(answer.batch),
        "use": answer.precision,
        "advice": answer.advice,
        "ties": list(answer.ties),
        "accuracy": answer.accuracy or None,
        "pays_from_batch_size": answer.pays_from,
        "doubts": list(answer.doubts),
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


def _ablation(ladder: ablation.AblationSummary) -> dict[str, Any]:
    steps = [
        {
            **{name: row[name] for name in STEP_WORDS},
            "step_ms": _figure(row["step_ms"]),
            **interval("speedup", row["over_first"]),
            **interval("speedup_over_previous", row["over_last"]),
            "peak_memory_bytes": _figure(row["memory_bytes"]),
            "memory_change_ratio": _figure(row["memory_change"]),
        }
        for row in records(ladder.rows)
    ]
    return {"name": ladder.title, "noise_ratio": ladder.measured_noise, "steps": steps}


def interval(name: str, estimate: Interval | None) -> dict[str, float | None]:
    """Return the keys of an estimate and of the ends of its interval."""
    ends = (None, None, None) if estimate is None else estimate.ends
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def _figure(value: Any) -> float | None:
    return float(value) if known(value) and math.isfinite(value) else None
