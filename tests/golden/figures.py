"""The figures of a case: of each arm, advice and ladder step its columns."""

import json
import re
from pathlib import Path
from typing import Any

from bench.report import published as literature
from bench.report.format import known, records
from tests.conftest import call

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER / "published.json"
DIGITS = 8
"""Significant digits in the files: the comparison is to 1e-6, so rounding must not reach it."""
Figures = dict[str, dict[str, Any]]
NAMED = {"run", "suite", "parameters", "parameters_json", "device", "batch_size", "precision"}
"""Columns that ``subject`` says."""


def figures(runs, cwd):
    """Return the figures of some runs: those of each arm, the advice, trials without figures, and
    ladders.
    """
    printed = call("report", "--json", *runs, cwd=cwd).stdout
    document = json.loads(printed)
    rows = {}
    for arm in document["results"]:
        rows[subject(arm)] = without_names(arm)
    for advice in document["answers"]:
        name = f"{advice['workload']} on {advice['where']}"
        rows[name] = advice
    for trial in document["trials"]:
        if trial["status"] not in ("ok", "unconverged"):
            number = trial.get("replicate", trial.get("seed", ""))
            name = f"{subject(trial)}, {trial['phase']} {number}"
            rows[name] = {"status": trial["status"], "detail": trial.get("detail")}
    for ladder in document["ablations"]:
        for step in ladder["steps"]:
            name = f"{ladder['name']}, {step['step']}"
            rows[name] = step
    return {name: rounded(row) for name, row in rows.items()}


def published():
    """Return how each published training differs from that in fp32 of the same source."""
    rows = {}
    for row in records(literature.load_published()):
        words = []
        for name in (*literature.CELL, "precision"):
            if known(row[name]):
                words.append(f"{name} {row[name]}")
        changes = {}
        for name in ("speedup", "accuracy_change", "map50_change"):
            if known(row[name]):
                changes[name] = row[name]
        rows[", ".join(words)] = rounded(changes)
    return rows


def subject(row):
    """Name an arm: a run, a suite with its parameters, a device, a batch size and a precision."""
    names = [
        row["run"],
        row["suite"],
        row.get("parameters"),
        row["device"],
        f"batch {row['batch_size']}",
        row["precision"],
    ]
    return ", ".join(filter(None, names))


def without_names(row):
    """Return the columns that the subject does not say."""
    return {name: value for name, value in row.items() if name not in NAMED}


def rounded(row):
    """Return what is known of a row, with numbers rounded."""
    kept = {}
    for name, value in row.items():
        if isinstance(value, list):
            kept[name] = ", ".join(value)
        elif isinstance(value, float):
            digits = f"{value:.{DIGITS}g}"
            kept[name] = float(digits)
        elif value not in (None, "", 0):
            kept[name] = value
    return kept


def table_rows(file):
    """Return the rows of every table of a report.md."""
    text = file.read_text(encoding="utf-8")
    return re.findall(r"^\|.*", text, re.MULTILINE)


def write_report(runs, folder):
    """Write the report of some runs into ``folder``/report and return its report.md."""
    done = call("report", *runs, "--out=report", "--figures=none", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "report" / "report.md"
