"""Figures in the format of another tool: github-action-benchmark.

Source: "Examples of JSON for customSmallerIsBetter" in the README of benchmark-action/github-action-benchmark.
"""

from __future__ import annotations

import json
from typing import Any

from bench import stats
from bench.report.analysis.summary import summarise
from bench.report.exports import data
from bench.report.format import MIB, estimate, processes
from bench.report.reading.load import Runs
from bench.spec.errors import UsageError
from bench.spec.metrics import untabled
from bench.stats import Interval


def github_action_benchmark(runs: Runs) -> str:
    """Return the step time, peak memory and energy of every row, for the tool ``customSmallerIsBetter``.

    The range is half the 95 % interval over processes, Student's.

    Raises:
        UsageError: the runs hold nothing but ablations, which have no place in this format.
    """
    if runs.trials.empty and len(runs.ablations):
        raise UsageError(
            "These runs hold ablations only, and github-action-benchmark has no place for them; report --json has "
            "their steps."
        )
    entries = []
    rows: list[dict[str, Any]] = data.rows(summarise(runs.trials), data.every())
    for row in rows:
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
