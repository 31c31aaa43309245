"""A comparison with earlier runs: on the terminal, as JSON, markdown and HTML."""

from __future__ import annotations

from typing import Any

import jinja2

from bench.report.analysis.compare import Change, Comparison, Overall, Row
from bench.report.exports.document import head, interval
from bench.report.tables.comparisons import comparison, overall
from bench.report.tables.table import Table
from bench.spec.metrics import METRICS, SPEED, Metric, compared
from bench.spec.text import print_plain

ASKED = ("suite", "parameters", "techniques", "data", "placement", "precision")
"""The words of a row's question."""


def document(found: Comparison) -> dict[str, Any]:
    """Return the comparison as a JSON document."""
    return {
        **head("compare"),
        "old": [run.label for run in found.old],
        "new": [run.label for run in found.new],
        "summary": found.summary,
        "fail_over_ratio": found.fail_over,
        "failures": found.failures,
        "cautions": found.cautions,
        "only_in_one": found.apart,
        "environment": [{"name": name, "old": old, "new": new} for name, old, new in found.environment],
        "rows": [_row(row) for row in found.rows],
        "overall": [_overall(one) for one in found.overall],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **{name: row.question[name] for name in ASKED},
        "batch_size": int(row.question["batch_size"]),
        "device_old": row.devices[0],
        "device_new": row.devices[1],
        **{metric.name: _change(row.changes.get(metric.name), metric) for metric in compared()},
        **interval("speedup_ratio", row.speedup),
    }


def _overall(one: Overall) -> dict[str, Any]:
    return {
        "name": one.name,
        "rows": one.rows,
        "verdict": one.change.verdict,
        "beyond_fail_over": one.change.is_beyond,
        **interval(SPEED.ratio_key, one.change.interval),
    }


def _change(change: Change | None, metric: Metric) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "verdict": change.verdict,
        "beyond_fail_over": change.is_beyond,
        **{f"status_{side}": status or None for side, status in zip(("old", "new"), change.statuses, strict=True)},
        **{f"{metric.key}_{side}": value for side, value in zip(("old", "new"), change.values, strict=True)},
        **{f"samples_{metric.key}_{side}": list(own) for side, own in zip(("old", "new"), change.samples, strict=True)},
        **interval(metric.ratio_key, change.interval),
    }


def render(found: Comparison, kind: str) -> str:
    """Return the comparison as a page.

    Args:
        found: the comparison.
        kind: ``md`` for markdown, ``html`` for a page that needs nothing else.
    """
    from bench.report.render import markdown  # the terminal and JSON do without what it imports

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench.report", "templates"),
        autoescape=kind == "html",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = markdown
    template = environment.get_template(f"compare.{kind}.j2")
    return template.render(found=found, tables=tables(found), allowed=allowed(found), remarks=remarks(found))


def show(found: Comparison) -> None:
    """Print the comparison."""
    for name, runs in (("OLD", found.old), ("NEW", found.new)):
        print_plain(f"{name}: {', '.join(run.label for run in runs)}")
    for text in remarks(found):
        print_plain(f"- {text}")
    for one in tables(found):
        one.show()
        print_plain(one.about)
    print_plain(found.summary)
    if found.fail_over is not None:
        print_plain("\n".join([allowed(found), *(f"- {failure}" for failure in found.failures)]))


def tables(found: Comparison) -> list[Table]:
    """Return the tables: of the rows, and of all rows of a recipe on a device."""
    together = overall(found.overall)
    return [comparison(found.rows), *([together] if together else [])]


def remarks(found: Comparison) -> list[str]:
    """Return what to know before comparing, in sentences."""
    differences = [f"{name} {old} → {new}" for name, old, new in found.environment]
    return [
        *found.cautions,
        *found.apart,
        *([f"The environments differ: {'; '.join(differences)}."] if differences else []),
    ]


def allowed(found: Comparison) -> str:
    """Say whether a regression is shown beyond what is allowed; empty where nothing was asked."""
    if found.fail_over is None:
        return ""
    share = f"{100 * found.fail_over:g} %"
    margins = dict.fromkeys(
        f"{name}: {metric.tolerance}"
        for row in found.rows
        for name in row.changes
        if (metric := METRICS[name]).scale == "difference"
    )
    share += f" ({', '.join(margins)})" if margins else ""
    said = f"Shown beyond {share}:" if found.failures else f"No regression is shown beyond {share}."
    if found.untestable:
        rows = f"{found.untestable} of {len(found.rows)} rows"
        said = f"The speed of {rows} could not be judged: a side has one process. Measure without --quick. {said}"
    return said
