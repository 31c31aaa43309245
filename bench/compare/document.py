"""A comparison as a JSON document for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.compare.comparison import Change, Comparison, Row
from bench.report.document import head, interval
from bench.spec.metric import Metric
from bench.spec.metrics import compared

# The words of a compared row's question.
ASKED = ("suite", "parameters", "techniques", "data", "placement", "precision")


def document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison with earlier runs."""
    return {
        **head("compare"),
        "old": comparison.old,
        "new": comparison.new,
        "summary": comparison.summary,
        "fail_over_ratio": comparison.fail_over,
        "failures": comparison.failures,
        "cautions": comparison.cautions,
        "only_in_one": comparison.apart,
        "rows": [_row(row) for row in comparison.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    document = {name: row.question[name] for name in ASKED}
    document["batch_size"] = int(row.question["batch_size"])
    document |= _sides("device", row.devices)
    # Every metric has its key, so that programs need not ask which there are.
    for metric in compared():
        document[metric.name] = _change(row.changes.get(metric.name), metric)
    return document


def _change(change: Change | None, metric: Metric) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "verdict": change.verdict,
        "beyond_fail_over": change.is_beyond,
        **_sides("status", change.statuses),
        **_sides(metric.figure, change.values),
        **interval("change", change.interval),
    }


def _sides(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return the keys of a quantity of OLD and of NEW."""
    old, new = values
    return {f"{name}_old": old, f"{name}_new": new}
