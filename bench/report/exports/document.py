"""JSON documents for other programs, and their schema: structs define both, and msgspec checks what it decodes.

``schema.json`` next to this module holds the schema, for validators of other programs; ``python docs/update.py``
writes it. ``msgspec.json.decode(text, type=documents())`` reads a document, and refuses what is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
import pandas as pd
from msgspec import UNSET, Meta, UnsetType

import bench
from bench.report.analysis import ablation, comparability, factors
from bench.report.analysis.compare import SIDES, Change, Comparison, Row
from bench.report.analysis.compare import WORDS as VERDICTS
from bench.report.analysis.summary import summarise
from bench.report.analysis.telemetry import telemetry
from bench.report.analysis.verdict import answers
from bench.report.exports import data
from bench.report.format import known, records
from bench.report.reading.load import Run, Runs
from bench.results.columns import COLUMNS, Field, FieldKind, descriptions, listed
from bench.results.records import Device
from bench.spec.metrics import SPEED, Metric, compared
from bench.stats import Interval

VERSION = 1
"""Version of the documents. It is raised when a key is removed, renamed or changes its meaning; keys may be added."""
PATH = Path(__file__).with_name("schema.json")
ABOUT = (
    "Units are in the names: _ms, _s, _bytes, _j, _w, _pct (0 to 100), _ratio (shares of 1), _points (of accuracy, in "
    "per cent) and _nats (of a loss of tokens). What is unknown is null or left out, and so is a figure that is not "
    "finite. Keys may be added without another version."
)
OF_BLOCKS = ("round", "position", "steps", "time_ms", "skipped_steps", "discarded")
"""Columns of a trial's blocks, each an array with a value for each block."""
OF_TRIAL = ("trial", "precision", "seed")
LEFT_OUT = {"trials": ("parameters_json", "epochs"), "epochs": OF_TRIAL, "numerics": OF_TRIAL}
"""Columns of a CSV that documents leave out, among others those that the trial itself has, or has its rows in."""
ALWAYS = ("run", "trial", "suite", "device", "placement", "batch_size", "phase", "precision", "status")
"""Keys that every trial has."""
ASKED = ("suite", "parameters", "techniques", "data", "placement", "precision")
"""The words of a compared row's question."""
STEP_WORDS = ("step", "precision", "added", "builds_on", "status", "detail", "limit")
STEP_FIGURES = ("step_ms", "epoch_s", "wait_pct", "loader_ms")
DIFFERENCE = ("name", *SIDES)
INTERNAL = ("unsupported", "lacking", "names", "uuids")
"""Fields of a device that no document has."""
WORD: Any = str
WHOLE: Any = int
OBJECT: Any = dict[str, Any]
LIST: Any = list
LITERAL: Any = Literal
"""Types as values, for the types of documents are made from the registries."""
MaybeWord: Any = str | None
MaybeWhole: Any = int | None
Figure: Any = float | None
OF_TYPE: dict[data.Type, Any] = {"string": MaybeWord, "Int64": MaybeWhole, "float64": Figure, "boolean": bool | None}
OF_TYPE |= {"numbers": list[float]}
OF_KIND: dict[FieldKind, Any] = {"word": str, "yes or no": bool, "list": list[str], "JSON": Any}


def head(kind: str) -> dict[str, Any]:
    """Return the keys with which every document begins."""
    return {"kind": kind, "schema_version": VERSION, "ampmeter_version": bench.__version__}


def dumps(document: Mapping[str, Any]) -> str:
    """Write a document: in ASCII, so that no character of a name has an effect on a terminal."""
    return json.dumps(document, indent=1, allow_nan=False)


def schema() -> dict[str, Any]:
    """Return the schema of all documents, told apart by their ``kind``."""
    (union,), parts = msgspec.json.schema_components([documents()], ref_template="#/$defs/{name}")
    about = {"title": f"Documents of ampmeter, version {VERSION}", "description": ABOUT}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **about, **union, "$defs": parts}


def documents() -> Any:
    """Return the type of all documents: a union of structs, with the columns and metrics that are registered."""
    return _report() | _list() | _devices() | _compare()


def _struct(name: str, about: str, keys: Mapping[str, Any], required: Iterable[str] | None = None, **more: Any) -> Any:
    """Return the struct of an object; keys that are not ``required`` may be left out."""
    always = set(keys if required is None else required)
    fields = [(key, kind) if key in always else (key, kind | UnsetType, UNSET) for key, kind in keys.items()]
    return msgspec.defstruct(
        name, fields, forbid_unknown_fields=True, kw_only=True, namespace={"__doc__": about}, **more
    )


def _document(kind: str, about: str, keys: Mapping[str, Any]) -> Any:
    first = {"schema_version": LITERAL[VERSION], "ampmeter_version": WORD}
    return _struct(kind.capitalize(), about, {**first, **keys}, tag_field="kind", tag=kind)


def _described(kind: Any, about: str) -> Any:
    annotated: Any = Annotated
    return annotated[kind, Meta(description=about)]


def _interval_keys(name: str) -> dict[str, Any]:
    return dict.fromkeys(interval(name, None), Figure)


def _report() -> Any:
    run = {"run": WORD} | dict.fromkeys(("ampmeter_version", "started", "finished"), MaybeWord)
    run |= {"environment": OBJECT, "request": OBJECT, "warnings": LIST[WORD], "remarks": LIST[WORD]}
    step = dict.fromkeys(STEP_WORDS, WORD) | dict.fromkeys(STEP_FIGURES, Figure)
    step |= _interval_keys("speedup") | _interval_keys("speedup_over_previous")
    step |= dict.fromkeys(("peak_memory_bytes", "memory_change_ratio", "accuracy_pct"), Figure)
    ladder = {"name": WORD, "noise_ratio": Figure, "steps": LIST[_struct("Step", "A step of an ablation.", step)]}
    contrast = dict.fromkeys(("factor", "metric", "suite", "where", "precision", "value", "against", "pairing"), WORD)
    contrast |= {"batch_size": WHOLE, "n": WHOLE} | _interval_keys("change")
    of_contrast = "A value of a factor against its first: a ratio, or a difference, with its 95 % interval."
    result, read = (
        {name: _described(OF_TYPE[field.type], field.about) for name, field in fields.items()}
        for fields in (data.every(), data.TELEMETRY)
    )
    keys = {
        "runs": LIST[_struct("Run", "What run.json says of a run.", run)],
        "answers": LIST[data.Advice],
        "cautions": _described(
            LIST[WORD], "What is missing, and what else differs between runs than what is compared."
        ),
        "results": LIST[_struct("Result", "One precision of one cell: suite, device, batch size.", result)],
        "contrasts": LIST[_struct("Contrast", of_contrast, contrast)],
        "ablations": LIST[_struct("Ablation", "What each step of an ablation adds.", ladder)],
        "telemetry": LIST[_struct("Telemetry", "What was read of a GPU while the steps of an arm ran.", read)],
        "trials": _described(LIST[_trial()], "The raw samples."),
    }
    return _document("report", "The figures of a report.", keys)


def _list() -> Any:
    suite = dict.fromkeys(("name", "title", "source"), WORD) | dict.fromkeys(("epochs", "full_epochs"), MaybeWhole)
    suite |= {"batch_sizes": LIST[WHOLE], "parameters": OBJECT}
    named = {"name": WORD, "summary": WORD}
    keys = {
        "suites": LIST[_struct("Suite", "A recipe.", suite)],
        "precisions": LIST[_struct("Precision", "A precision.", named | {"alias": MaybeWord, "options": LIST[WORD]})],
        "techniques": LIST[_struct("Technique", "A technique.", named)],
    }
    return _document("list", "The registries.", keys)


def _devices() -> Any:
    device = {name: kind | None for name, kind in get_type_hints(Device).items() if name not in INTERNAL}
    device |= {"memory_free_bytes": MaybeWhole, "problem": MaybeWord}
    device["precisions"] = _described(dict[str, str], "What each precision would do; those that work begin with ok.")
    process = {"pid": WHOLE, "user": MaybeWord, "command": MaybeWord, "memory_bytes": MaybeWhole}
    device["processes"] = LIST[_struct("Process", "A process on a GPU.", process)] | None
    keys = {"no_gpu": MaybeWord, "devices": LIST[_struct("Device", "A device, before anything runs.", device)]}
    return _document("devices", "The devices of this machine.", keys)


def _compare() -> Any:
    judged = {"verdict": LITERAL[VERDICTS], "beyond_fail_over": bool}
    row = dict.fromkeys(ASKED, WORD) | {"batch_size": WHOLE} | dict.fromkeys(_sides("device"), WORD)
    for metric in compared():
        change = judged | dict.fromkeys(_sides("status"), MaybeWord)
        change |= dict.fromkeys(_sides(metric.key), Figure) | _interval_keys(metric.ratio_key)
        change |= dict.fromkeys(_sides(f"samples_{metric.key}"), LIST[float])
        row[metric.name] = _struct(f"Change_{metric.name}", f"The change of {metric.label}.", change) | None
    about = "One precision of one cell. Changes are NEW ÷ OLD, of accuracy and loss NEW − OLD, with 95 % intervals."
    overall = {"name": WORD, "rows": WHOLE, **judged, **_interval_keys(SPEED.ratio_key)}
    keys = {
        "old": _described(LIST[WORD], "The earlier runs, by their folders' names."),
        "new": LIST[WORD],
        "summary": WORD,
        "fail_over_ratio": Figure,
        "failures": _described(LIST[WORD], "Regressions beyond it and what NEW did not reach; any gives exit code 1."),
        "cautions": LIST[WORD],
        "only_in_one": LIST[WORD],
        "environment": LIST[_struct("Difference", "One of machines or software.", dict.fromkeys(DIFFERENCE, WORD))],
        "rows": LIST[_struct("Row", about, row | _interval_keys("speedup_ratio"))],
        "overall": LIST[_struct("Overall", "The speed over all rows of a recipe on a device.", overall)],
    }
    return _document("compare", "Runs next to earlier ones.", keys)


def _trial() -> Any:
    blocks = {name: LIST[kind] for name, kind in _columns("blocks").items()}
    arrays = "The timed blocks: arrays of one length. Those with a text in discarded do not count."
    trial = _columns("trials") | {"run": _described(WORD, "The run, by its folder's name.")}
    trial["blocks"] = _struct("Blocks", arrays, blocks)
    for name in ("epochs", "numerics"):
        trial[name] = LIST[_struct(name.capitalize(), f"A row of {name}.csv.", _columns(name), ())]
    return _struct("Trial", "A row of trials.csv; what is unknown is left out.", trial, ALWAYS)


def _columns(name: str) -> dict[str, Any]:
    about = descriptions()[f"{name}.csv"]
    return {field.name: _described(_column(field), about[field.name]) for field in _fields(name).values()}


def _column(field: Field) -> Any:
    if field.kind == "number":
        return MaybeWhole if field.whole else Figure
    return LITERAL[field.words] if field.words else OF_KIND[field.kind]


def _fields(name: str) -> dict[str, Field]:
    """Return the columns of a CSV that documents have."""
    columns = COLUMNS[f"{name}.csv"]
    wanted = OF_BLOCKS if name == "blocks" else [column for column in columns if column not in LEFT_OUT[name]]
    return {column: columns[column] for column in wanted}


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
        "ablations": [_ablation(ladder) for ladder in ablation.ablations(runs)],
        "telemetry": data.rows(telemetry(runs), data.TELEMETRY),
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


def _ablation(ladder: ablation.AblationSummary) -> dict[str, Any]:
    steps = [
        {
            **{name: row[name] for name in STEP_WORDS},
            **{name: _figure(row[name]) for name in STEP_FIGURES},
            **interval("speedup", row["over_first"]),
            **interval("speedup_over_previous", row["over_last"]),
            "peak_memory_bytes": _figure(row["memory_bytes"]),
            "memory_change_ratio": _figure(row["memory_change"]),
            "accuracy_pct": None if row["accuracy"] is None else _figure(row["accuracy"].center),
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


def _trials(runs: Runs) -> list[dict[str, Any]]:
    """Return every row of trials.csv that counts, what is unknown left out, with its blocks, epochs and numerics."""
    blocks = _by_trial(pd.concat([runs.blocks, runs.ablation_blocks], ignore_index=True))
    others = {"epochs": _by_trial(runs.epochs), "numerics": _by_trial(runs.numerics)}
    fields = {name: _fields(name) for name in ("trials", "blocks", *others)}
    trials = []
    for row in [*records(runs.trials), *records(runs.ablations)]:
        trial = _known(row, fields["trials"])
        key = (row["run"], row["trial"], row["precision"])
        if key in blocks:
            arrays = ((column, blocks[key][column], field) for column, field in fields["blocks"].items())
            trial["blocks"] = {column: [_cell(value, field) for value in values] for column, values, field in arrays}
        for name, rows in others.items():
            if key in rows:
                trial[name] = [_known(each, fields[name]) for each in records(rows[key])]
        trials.append(trial)
    return trials


def _by_trial(rows: pd.DataFrame) -> dict[Hashable, pd.DataFrame]:
    return dict(list(rows.groupby(["run", "trial", "precision"], sort=False, observed=True)))


def _known(row: Mapping[Hashable, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the cells of a row that hold something."""
    cells = ((name, row[name], field) for name, field in fields.items())
    return {name: _cell(value, field) for name, value, field in cells if known(value) and value != ""}


def _cell(value: Any, field: Field) -> Any:
    """Return a cell of a CSV as JSON has it; a figure that is not finite is None."""
    if field.kind == "number":
        figure = _figure(value)
        return int(figure) if figure is not None and field.whole else figure
    if field.kind == "yes or no":
        return value == "yes"
    return list(listed(value)) if field.kind == "list" else json.loads(value) if field.kind == "JSON" else value


def compare(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison with earlier runs."""
    return {
        **head("compare"),
        "old": [run.label for run in comparison.old],
        "new": [run.label for run in comparison.new],
        "summary": comparison.summary,
        "fail_over_ratio": comparison.fail_over,
        "failures": comparison.failures,
        "cautions": [*comparison.limits, *comparison.cautions],
        "only_in_one": comparison.apart,
        "environment": [dict(zip(DIFFERENCE, difference, strict=True)) for difference in comparison.environment],
        "rows": [_row(row) for row in comparison.rows],
        "overall": [
            {"name": overall.name, "rows": overall.rows, **_judged(overall.change)}
            | interval(SPEED.ratio_key, overall.change.interval)
            for overall in comparison.overall
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **{name: row.question[name] for name in ASKED},
        "batch_size": int(row.question["batch_size"]),
        **_sides("device", row.devices),
        **{metric.name: _change(row.changes.get(metric.name), metric) for metric in compared()},
        **interval("speedup_ratio", row.speedup),
    }


def _judged(change: Change) -> dict[str, Any]:
    return {"verdict": change.verdict, "beyond_fail_over": change.is_beyond}


def _change(change: Change | None, metric: Metric) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        **_judged(change),
        **_sides("status", [status or None for status in change.statuses]),
        **_sides(metric.key, change.values),
        **_sides(f"samples_{metric.key}", [list(samples) for samples in change.samples]),
        **interval(metric.ratio_key, change.interval),
    }


def _sides(name: str, values: Iterable[Any] = (None, None)) -> dict[str, Any]:
    """Return the keys of a quantity of OLD and of NEW."""
    return dict(zip((f"{name}_{side}" for side in SIDES), values, strict=True))
