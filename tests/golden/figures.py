"""The figures of a case: of each arm, advice and ladder step its columns."""

import json
from collections.abc import Iterable, Mapping
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


def figures(runs: list[Path], cwd: Path) -> Figures:
    """Return the figures of some runs: those of each arm, the advice, trials without figures, and
    ladders.
    """
    document = json.loads(call("report", "--json", *runs, cwd=cwd).stdout)
    rows = []
    for row in document["results"]:
        of_arm = {name: value for name, value in row.items() if name not in NAMED}
        rows.append((subject(row), of_arm))
    for advice in document["answers"]:
        rows.append((f"{advice['workload']} on {advice['where']}", advice))
    for trial in document["trials"]:
        if trial["status"] not in ("ok", "unconverged"):
            number = trial.get("replicate", trial.get("seed", ""))
            name = f"{subject(trial)}, {trial['phase']} {number}"
            rows.append((name, {"status": trial["status"], "detail": trial.get("detail")}))
    for ladder in document["ablations"]:
        for step in ladder["steps"]:
            rows.append((f"{ladder['name']}, {step['step']}", step))
    return named(rows)


def published() -> Figures:
    """Return how each published training differs from that in fp32 of the same source."""
    rows = []
    for row in records(literature.load_published()):
        known_of = {name: value for name, value in row.items() if known(value)}
        words = []
        for name in (*literature.CELL, "precision"):
            if name in known_of:
                words.append(f"{name} {row[name]}")
        changes = {}
        for name in ("speedup", "accuracy_change", "map50_change"):
            changes[name] = known_of.get(name)
        rows.append((", ".join(words), changes))
    return named(rows)


def subject(row: Mapping[str, Any]) -> str:
    """Name an arm: a run, a suite with its parameters, a device, a batch size and a precision."""
    batch = f"batch {row['batch_size']}"
    names = (row["run"], row["suite"], row.get("parameters"), row["device"], batch)
    return ", ".join(filter(None, (*names, row["precision"])))


def named(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Figures:
    """Return what is known of each row, with numbers rounded."""
    figures: Figures = {}
    for name, row in rows:
        figures[name] = {}
        for column, value in row.items():
            if isinstance(value, list):
                figures[name][column] = ", ".join(value)
            elif isinstance(value, float):
                figures[name][column] = float(f"{value:.{DIGITS}g}")
            elif value not in (None, "", 0):
                figures[name][column] = value
    return figures


def table_rows(file: Path) -> list[str]:
    """Return the rows of every table of a report.md."""
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]


def write_report(runs: list[Path], folder: Path) -> Path:
    """Write the report of some runs into ``folder``/report and return its report.md."""
    done = call("report", *runs, "--out", folder / "report", "--figures", "none", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "report" / "report.md"
