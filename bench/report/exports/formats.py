"""Figures in the formats of other tools: github-action-benchmark and OpenMetrics.

Sources: "Examples of JSON for customSmallerIsBetter" in the README of benchmark-action/github-action-benchmark;
OpenMetrics 1.0.0, sections "Overall Structure" and "Unit".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from bench import stats
from bench.report.analysis.summary import summarise
from bench.report.exports import data
from bench.report.format import MIB, estimate, processes
from bench.report.reading.load import Runs
from bench.spec.errors import UsageError
from bench.spec.metrics import untabled
from bench.stats import Interval

Row = Mapping[str, Any]
"""A result, as in the JSON of a report."""


def _results(runs: Runs) -> list[dict[str, Any]]:
    return data.rows(summarise(runs.trials), data.every())


def github_action_benchmark(runs: Runs) -> str:
    """Return the step time, peak memory and energy of every row, for the tool ``customSmallerIsBetter``.

    The range is half the 95 % interval over processes, Student's.
    """
    entries = []
    for row in _results(runs):
        name = f"{row['workload']}, {row['where']}, batch {row['batch_size']}, {row['precision']}"
        steps = [1000 * row["batch_size"] / pace for pace in row["process_samples_per_s"]]
        half = stats.student_interval(steps).half_width if steps else None
        speedup = Interval(center=row["speedup"] or 0.0, low=row["speedup_low"], high=row["speedup_high"], n=len(steps))
        over = f"; {estimate(speedup)} times as fast as fp32" if row["speedup"] else ""
        if row["step_ms"] is not None:
            entry = {"name": f"{name}: step", "unit": "ms", "value": row["step_ms"]}
            entry |= {} if half is None else {"range": f"± {half:.3f}"}
            entries.append({**entry, "extra": processes(len(steps)) + over})
        figures = [("peak memory", "MiB", "peak_memory_bytes", MIB), ("energy", "J/step", "energy_j_per_step", 1)]
        figures += [(metric.label, metric.unit, metric.key, 1) for metric in untabled() if metric.better == "less"]
        entries += [
            {"name": f"{name}: {label}", "unit": unit, "value": row[key] / per}
            for label, unit, key, per in figures
            if row[key] is not None
        ]
    return json.dumps(entries, indent=1, allow_nan=False)


LABELS = ("run", "suite", "parameters", "techniques", "data", "device", "placement", "batch_size", "precision")
"""The labels that tell samples apart."""
FAMILIES: dict[str, tuple[str, str, float]] = {
    "step_seconds": ("step_ms", "Time of a training step, the median over processes.", 1000),
    "speedup_ratio": ("speedup", "Step time of fp32 over that of this precision.", 1),
    "speedup_low_ratio": ("speedup_low", "Lower end of the 95 % interval of the speedup.", 1),
    "speedup_high_ratio": ("speedup_high", "Upper end of the 95 % interval of the speedup.", 1),
    "peak_memory_bytes": ("peak_memory_bytes", "Steady peak of memory of a step.", 1),
    "step_energy_joules": ("energy_j_per_step", "Energy that the board draws for a step.", 1),
    "epoch_seconds": ("epoch_s", "Time of an epoch, the mean over seeds.", 1),
    "accuracy_ratio": ("accuracy_pct", "Test accuracy, the mean over seeds.", 100),
}
"""The metric families, each with the key of its figure, its help, and what the figure is divided by."""
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def openmetrics(runs: Runs) -> str:
    """Return the figures of every row as gauges in OpenMetrics' text format, version 1.0.0."""
    rows = _results(runs)
    lines = []
    general = {metric.key: (metric.key, metric.about, 1.0) for metric in untabled()}
    for name, (key, about, per) in (FAMILIES | general).items():
        samples = [(row, row[key]) for row in rows if row[key] is not None]
        if samples:
            family, unit = f"ampmeter_{name}", name.rpartition("_")[2]
            lines += [f"# TYPE {family} gauge", f"# UNIT {family} {unit}", f"# HELP {family} {about}"]
            lines += [f"{family}{{{_labels(row)}}} {value / per!r}" for row, value in samples]
    return "\n".join([*lines, "# EOF"])


def _labels(row: Row) -> str:
    return ",".join(f'{name}="{str(row[name] or "").translate(ESCAPES)}"' for name in LABELS)


FORMATS: dict[str, Callable[[Runs], str]] = {
    "github-action-benchmark": github_action_benchmark,
    "openmetrics": openmetrics,
}
"""By the names that ``--export`` takes."""


def export(runs: Runs, form: str) -> str:
    """Return the figures of runs in another tool's format.

    Args:
        runs: the runs.
        form: a key of ``FORMATS``.

    Raises:
        UsageError: the runs hold nothing but ablations, which have no place in these formats.
    """
    if runs.trials.empty and len(runs.ablations):
        raise UsageError(
            f"These runs hold ablations only, and --export {form} has no place for them; report --json has their steps."
        )
    return FORMATS[form](runs)
