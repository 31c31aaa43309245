"""The JSON schema of the documents, made from what describes their parts: the columns and the summary's fields.

``schema.json`` beside this module holds it, for validators of other programs; ``python docs/update.py`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from bench.report.analysis.compare import WORDS as VERDICTS
from bench.report.exports import data
from bench.report.exports.comparison import ASKED
from bench.report.exports.document import OF_BLOCKS, OF_TRIALS, OWN, VERSION
from bench.results.columns import COLUMNS, Field, descriptions
from bench.results.records import Device
from bench.spec.metrics import SPEED, compared

PATH = Path(__file__).with_name("schema.json")
Schema = dict[str, Any]
WORD: Schema = {"type": "string"}
WORDS: Schema = {"type": "array", "items": WORD}
COUNT: Schema = {"type": ["integer", "null"]}
NUMBER: Schema = {"type": ["number", "null"]}
MAYBE_WORD: Schema = {"type": ["string", "null"]}
ANYTHING: Schema = {}
OBJECT: Schema = {"type": "object"}


def schema() -> Schema:
    """Return the schema of all documents, told apart by their ``kind``."""
    kinds = {"report": _report(), "list": _list(), "devices": _devices(), "compare": _compare()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Documents of ampmeter, version {VERSION}",
        "description": "Units are in the names: _ms, _s, _bytes, _j, _w, _pct (0 to 100), _ratio (shares of 1), "
        "_points (of accuracy, in per cent) and _nats (of a loss of tokens). What is unknown is null or left out, and "
        "so is a figure that is not finite. Keys may be added without another version.",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": {**kinds, "result": _result(), "trial": _trial()},
    }


def whole(properties: Mapping[str, Schema], required: Iterable[str] | None = None) -> Schema:
    """Return the schema of an object with these keys alone, all of them required unless told otherwise."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def document(kind: str, properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of one kind of document."""
    first: dict[str, Schema] = {"kind": {"const": kind}, "schema_version": {"const": VERSION}, "ampmeter_version": WORD}
    return whole({**first, **properties})


def many(items: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


def _report() -> Schema:
    run = {"run": WORD, "ampmeter_version": MAYBE_WORD, "started": MAYBE_WORD, "finished": MAYBE_WORD}
    run |= {"environment": OBJECT, "request": OBJECT, "warnings": WORDS, "remarks": WORDS}
    answer = {"workload": WORD, "where": WORD, "batch_size": {"type": "integer"}, "use": MAYBE_WORD, "advice": WORD}
    answer |= {"ties": WORDS, "accuracy": MAYBE_WORD}
    words = dict.fromkeys(("step", "precision", "added", "builds_on", "status", "detail", "limit"), WORD)
    figures = [
        "step_ms",
        "epoch_s",
        "wait_pct",
        "loader_ms",
        "peak_memory_bytes",
        "memory_change_ratio",
        "accuracy_pct",
    ]
    figures += [f"{of}{end}" for of in ("speedup", "speedup_over_previous") for end in ("", "_low", "_high")]
    ablation = {"name": WORD, "noise_ratio": NUMBER, "steps": many(whole(words | dict.fromkeys(figures, NUMBER)))}
    contrast = dict.fromkeys(("factor", "metric", "suite", "where", "precision", "value", "against", "pairing"), WORD)
    contrast |= {key: {"type": "integer"} for key in ("batch_size", "n")}
    contrast |= dict.fromkeys(("change", "change_low", "change_high"), NUMBER)
    properties = {
        "runs": many(whole(run)) | {"description": "What run.json says of each run."},
        "answers": many(whole(answer)) | {"description": "What to use: one for each recipe and device."},
        "cautions": WORDS | {"description": "What is missing, and what differs between runs beside what is compared."},
        "results": many({"$ref": "#/$defs/result"}),
        "contrasts": many(whole(contrast))
        | {
            "description": "Each value of a factor against its first: a ratio, or a difference, with its 95 % interval."
        },
        "ablations": many(whole(ablation)),
        "trials": many({"$ref": "#/$defs/trial"}) | {"description": "The raw samples."},
    }
    return document("report", properties)


def _list() -> Schema:
    suite = {"name": WORD, "title": WORD, "source": WORD, "epochs": COUNT, "full_epochs": COUNT}
    suite |= {"batch_sizes": many({"type": "integer"}), "parameters": OBJECT}
    precision = {"name": WORD, "summary": WORD, "alias": MAYBE_WORD, "options": WORDS}
    named = whole({"name": WORD, "summary": WORD})
    return document(
        "list", {"suites": many(whole(suite)), "precisions": many(whole(precision)), "techniques": many(named)}
    )


def _devices() -> Schema:
    of_type = {str: MAYBE_WORD, int: COUNT, float: NUMBER, bool: {"type": ["boolean", "null"]}}
    device: Schema = {}
    for name, hint in get_type_hints(Device).items():
        kinds = {part for part in get_args(hint) if isinstance(part, type)} or {hint}
        device[name] = next((of_type[kind] for kind in kinds if kind in of_type), MAYBE_WORD)
    for name in ("unsupported", "lacking", "names", "uuids"):
        del device[name]
    process = {"pid": {"type": "integer"}, "user": MAYBE_WORD, "command": MAYBE_WORD, "memory_bytes": COUNT}
    device |= {
        "memory_free_bytes": COUNT,
        "problem": MAYBE_WORD,
        "precisions": OBJECT
        | {"description": "What each precision would do, in words; those that work begin with ok."},
        "processes": {"oneOf": [many(whole(process)), {"type": "null"}]},
    }
    return document("devices", {"no_gpu": MAYBE_WORD, "devices": many(whole(device))})


def _compare() -> Schema:
    row: dict[str, Schema] = dict.fromkeys(ASKED, WORD)
    row |= {"batch_size": {"type": "integer"}, "device_old": WORD, "device_new": WORD}
    ends = ("", "_low", "_high")
    for metric in compared():
        change: dict[str, Schema] = {"verdict": {"enum": list(VERDICTS)}, "beyond_fail_over": {"type": "boolean"}}
        change |= {f"status_{side}": MAYBE_WORD for side in ("old", "new")}
        change |= {f"{metric.key}_{side}": NUMBER for side in ("old", "new")}
        change |= {f"samples_{metric.key}_{side}": many({"type": "number"}) for side in ("old", "new")}
        change |= {f"{metric.ratio_key}{end}": NUMBER for end in ends}
        row[metric.name] = {"oneOf": [whole(change), {"type": "null"}]}
    overall: dict[str, Schema] = {"name": WORD, "rows": {"type": "integer"}, "verdict": {"enum": list(VERDICTS)}}
    overall |= {"beyond_fail_over": {"type": "boolean"}}
    overall |= {f"{SPEED.ratio_key}{end}": NUMBER for end in ends}
    row |= {f"speedup_ratio{end}": NUMBER for end in ends}
    properties = {
        "old": WORDS | {"description": "The earlier runs, by their folders' names."},
        "new": WORDS,
        "summary": WORD,
        "fail_over_ratio": NUMBER,
        "failures": WORDS | {"description": "Regressions shown beyond it; the exit code is 1 if there is one."},
        "cautions": WORDS,
        "only_in_one": WORDS,
        "environment": many(whole({"name": WORD, "old": WORD, "new": WORD}))
        | {"description": "What differs between the machines and their software."},
        "rows": many(whole(row))
        | {
            "description": "One precision of one cell. All changes are NEW ÷ OLD, of accuracy "
            "and loss NEW − OLD, with 95 % intervals."
        },
        "overall": many(whole(overall)) | {"description": "The speed over all rows of a recipe on a device."},
    }
    return document("compare", properties)


TYPES: dict[data.Type, Schema] = {
    "string": MAYBE_WORD,
    "integer": COUNT,
    "number": NUMBER,
    "boolean": {"type": ["boolean", "null"]},
    "numbers": many({"type": "number"}),
}


def _result() -> Schema:
    fields = {name: TYPES[field.type] | {"description": field.about} for name, field in data.every().items()}
    return whole(fields) | {"description": "One precision of one cell: suite, device, batch size."}


def _trial() -> Schema:
    about = descriptions()
    trial = _columns(OF_TRIALS.values(), about["trials.csv"])
    trial |= {"run": WORD | {"description": "The run, by its folder's name."}}
    blocks = _columns([COLUMNS["blocks.csv"][name] for name in OF_BLOCKS], about["blocks.csv"])
    trial["blocks"] = whole({name: many(one) for name, one in blocks.items()}) | {
        "description": "The timed blocks: arrays of one length. Those with a text in discarded do not count."
    }
    for name in ("epochs", "numerics"):
        file = f"{name}.csv"
        fields = [field for field in COLUMNS[file].values() if field.name not in OWN]
        trial[name] = many(whole(_columns(fields, about[file]), required=[]))
    required = ("run", "trial", "suite", "device", "placement", "batch_size", "phase", "precision", "status")
    return whole(trial, required) | {"description": "A row of trials.csv; what is unknown is left out."}


def _columns(fields: Iterable[Field], about: Mapping[str, str]) -> dict[str, Schema]:
    return {field.name: _column(field) | {"description": about[field.name]} for field in fields}


def _column(field: Field) -> Schema:
    if field.kind == "number":
        return {"type": ["integer" if field.whole else "number", "null"]}
    if field.words:
        return {"enum": list(field.words)}
    return {"word": WORD, "yes or no": {"type": "boolean"}, "list": WORDS, "JSON": ANYTHING}[field.kind]
