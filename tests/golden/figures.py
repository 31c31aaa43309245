"""The figures of a case under names of their own, so that columns of the program may be renamed.

``figures`` alone knows the program's names: where those change, it changes, and the golden files stay.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.phases.explain.report import explained
from bench.report import format
from bench.report import published as literature
from bench.report.format import records
from bench.report.reading.load import load
from tests.conftest import call

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER / "published.json"
DIGITS = 8
"""Significant digits in the files: the comparison is to 1e-6, so rounding must not reach it."""
TOLERANCE = 1e-6
SAME = (
    *("suite", "parameters", "techniques", "data", "run", "device", "architecture", "placement", "batch_size"),
    *("step_ms", "samples_per_s", "speedup", "speedup_low", "speedup_high", "measured_in", "noise_ratio"),
    *("tflops", "peak_memory_bytes", "memory_change_ratio", "energy_j_per_step", "energy_change_ratio"),
    *("epochs", "seeds", "epoch_s", "epoch_speedup", "epoch_speedup_low", "epoch_speedup_high", "data_wait_pct"),
    *("accuracy_pct", "accuracy_sd_points", "accuracy_change_points", "accuracy_change_low_points"),
    *("accuracy_change_high_points", "train_loss", "test_loss", "loss_change_nats", "loss_change_low_nats"),
    *("loss_change_high_nats", "loss_above_entropy_nats", "train_samples_per_s", "diverged_seeds"),
    *("script_wait_pct", "script_loss", "script_loss_change"),
)
"""The figures of an arm that the program calls by the same name."""
RENAMED = {
    "epoch_s": "time_per_epoch_s",
    "accuracy_change_low_points": "accuracy_change_points_low",
    "accuracy_change_high_points": "accuracy_change_points_high",
    "loss_change_low_nats": "loss_change_nats_low",
    "loss_change_high_nats": "loss_change_nats_high",
    "loss_above_entropy_nats": "above_entropy",
    "diverged_seeds": "diverged",
    "arm": "precision",
    "verdict": "speed_verdict",
    "parity": "accuracy_verdict",
    "computed_in": "compute_dtypes",
}
PHASES = ("speed", "memory", "energy", "train", "numerics", "inference")
"""The phases of which an arm has a status."""
OF_CLOCKS = "shared clock"
MEASURED = ("ok", "unconverged")
Figures = dict[str, Any]


def figures(runs: list[Path], cwd: Path) -> Figures:
    """Return the figures of some runs."""
    document = json.loads(call("report", "--json", *runs, cwd=cwd).stdout)
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in document["results"]:
        arm = {name: row[RENAMED.get(name, name)] for name in (*SAME, *RENAMED)}
        arm["status"] = {phase: row[f"{phase}_status"] for phase in PHASES if row[f"{phase}_status"]}
        arm["marks"] = marks((row["doubts"] or "").split(", "))
        found["arms"][subject(row)] = known(arm)
    for advice in document["answers"]:
        given = {name: advice[name] for name in ("batch_size", "use", "advice", "ties", "accuracy")}
        given["marks"] = marks(advice["doubts"])
        found["advice"][f"{advice['workload']} on {advice['where']}"] = known(given)
    modules = defaultdict(list)
    for row in [*document["numerics_figures"], *document["layers_figures"]]:
        if row["kind"] == "module":
            modules[row["trial"], row["precision"]].append(row)
    for trial in document["trials"]:
        name = f"{trial['phase']} {trial.get('replicate', trial.get('seed', ''))}"
        if trial["status"] not in MEASURED:
            lost = {"status": trial["status"], "detail": trial.get("detail", "")}
            found["lost trials"][f"{subject(trial)}, {name}"] = lost
        for row in modules[trial["trial"], trial["precision"]]:
            of_arm = found["modules"].setdefault(subject(trial), {})
            of_arm.setdefault(row.get("layer", "whole model"), {})[row["name"]] = row["value"]
    for ladder in document["ablations"]:
        found["ladders"][ladder["name"]] = {step["step"]: known(step) for step in ladder["steps"]}
    if any(trial["phase"] == "explain" and trial["status"] in MEASURED for trial in document["trials"]):
        found["explanations"] = explanations(runs)
    return dict(found)


def explanations(runs: list[Path]) -> Figures:
    return {
        f"{one.workload}: {one.subject}": {
            "speedup": one.speedup,
            "step_ms": {step.precision: step.timed_ms for step in (one.baseline, one.arm)},
            "peak_bytes": {step.precision: step.peak_bytes for step in (one.baseline, one.arm)},
            "class_ms": {step.precision: dict(step.ms) for step in (one.baseline, one.arm)},
            "reasons": {reason.rule: list(reason.techniques) for reason in one.reasons},
        }
        for one in explained(load(runs))
    }


def published() -> Figures:
    """Return how each published training differs from that in fp32 of the same source."""
    found: Figures = {}
    for row in records(literature.load_published()):
        words = [f"{name} {row[name]}" for name in (*literature.CELL, "precision") if format.known(row[name])]
        changes = {
            "speedup": row["speedup"],
            "accuracy_points": row["accuracy_change"],
            "map_points": row["map50_change"],
        }
        if changes := {name: value for name, value in changes.items() if format.known(value)}:
            found[", ".join(words)] = changes
    return found


def subject(row: Mapping[str, Any]) -> str:
    """Name an arm: a suite with its parameters, a run and its device, a batch size and a precision."""
    names = (row["run"], row["suite"], row.get("parameters"), row["device"], f"batch {row['batch_size']}")
    return ", ".join(name for name in (*names, row["precision"]) if name)


def marks(doubts: list[str]) -> list[str]:
    return [name for name in doubts if name not in ("", OF_CLOCKS)]


def known(values: Figures) -> Figures:
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def rounded(value: Any) -> Any:
    """Round every number in nested figures."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Name each figure that is not the same, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before | now:
            yield from differences(before.get(name), now.get(name), f"{where} · {name}" if where else name)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{where}[{place}]")
    elif not alike(before, now):
        yield f"{where}: before {before!r}, now {now!r}"


def alike(before: Any, now: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, now))
    return math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=1e-9) if numbers else before == now


def table_rows(text: str) -> list[str]:
    """Return the rows of every table of a report.md."""
    return [line for line in text.splitlines() if line.startswith("|")]


def write_report(runs: list[Path], folder: Path, *options: str) -> Path:
    """Write the report of some runs into ``folder``/report and return that folder."""
    done = call("report", *runs, "--out", folder / "report", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "report"
