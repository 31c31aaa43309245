"""A comparison in tables: on a page, in markdown and in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from bench.compare.comparison import Comparison
from bench.report import render
from bench.report.format import estimate
from bench.report.tables.table import BATCH, PRECISION, Row, Table, figures, optional, table, words
from bench.spec.metrics import METRICS, SPEED, compared
from bench.spec.text import print_plain

TEMPLATES = Path(__file__).with_name("templates")
MARGINS = "; ".join(f"{metric.name}: {metric.tolerance}" for metric in compared() if not metric.has_noise)
CHANGES = (
    "Changes are NEW ÷ OLD, of accuracy and loss NEW − OLD, with 95 % intervals; the speedup is over fp32, its "
    "interval over processes, not days. REGRESSED and IMPROVED: the interval clears the A/A noise "
    f"({MARGINS}), and so clearly that at most 5 % of such verdicts are expected to be chance. SAME: the interval lies "
    "within 1 %, or those margins. INCONCLUSIVE: neither, or too few samples: both sides need two processes, for "
    "energy two trials, for accuracy and loss five seeds. A GPU's peak of memory is read in two processes, and the "
    "interval spans them; a CPU's is told apart beyond 5 MiB."
)


def comparison_page(comparison: Comparison, kind: str) -> str:
    """Return a comparison with earlier runs as markdown (``md``), or as a page that needs nothing else (``html``)."""
    changed, unchanged = changes(comparison)
    values = {"changed": changed, "unchanged": unchanged, "about": CHANGES}
    values |= {"regressions": _regressions(comparison), "remarks": _remarks(comparison)}
    values |= {"css": Markup((render.TEMPLATES / "page.css").read_text(encoding="utf-8"))}
    return render.environment(TEMPLATES).get_template(f"compare.{kind}.j2").render(comparison=comparison, **values)


def show_comparison(comparison: Comparison) -> None:
    """Print a comparison with earlier runs: what changed, and how much did not."""
    for name, runs in (("OLD", comparison.old), ("NEW", comparison.new)):
        print_plain(f"{name}: {', '.join(run.label for run in runs)}")
    print_plain(f"\n{comparison.summary}")
    changed, unchanged = changes(comparison)
    for of_subject in changed:
        print_plain(f"\n{of_subject.title}")
        of_subject.show()
    if unchanged:
        print_plain(f"\n{comparison.unchanged} --markdown and --html list them.")
    for remark in _remarks(comparison):
        print_plain(f"- {remark}")
    print_plain(f"\n{CHANGES}")
    if comparison.fail_over is not None:
        print_plain("\n".join([_regressions(comparison), *(f"- {failure}" for failure in comparison.failures)]))


def _remarks(comparison: Comparison) -> list[str]:
    """Return what to know before comparing, in sentences."""
    differences = [
        f"{name} {old} → {new}"
        for name, old, new in comparison.environment
        if not any(f"Different {name.partition(' (')[0]}" in caution for caution in comparison.cautions)
    ]
    environments = [f"The environments differ: {'; '.join(differences)}."] if differences else []
    return [*comparison.limits, *comparison.cautions, *comparison.apart, *environments]


def _regressions(comparison: Comparison) -> str:
    """Say whether a regression is shown beyond what ``--fail-over`` allows; empty without that option."""
    if comparison.fail_over is None:
        return ""
    share = f"{100 * comparison.fail_over:g} %" + (" plus 6 % for days that differ" if comparison.limits else "")
    outcome = f"Shown beyond {share}:" if comparison.failures else f"No regression is shown beyond {share}."
    if not comparison.untestable:
        return outcome
    return (
        f"The speed of {comparison.untestable} of {len(comparison.rows)} rows could not be judged: each side needs two "
        f"processes (leave out --quick), or two pairs of runs that took turns (--pairs). {outcome}"
    )


def changes(comparison: Comparison) -> tuple[list[Table], list[Table]]:
    """Return the tables of what changed, regressions first, and of all else: one for each recipe on a device."""
    lines: list[Row] = [
        {
            **row.question,
            "subject": row.subject,
            "change": change,
            "speedup": row.speedup if change.metric == SPEED else None,
        }
        for row in comparison.rows
        for change in row.changes.values()
    ]
    shown = sorted((line for line in lines if line["change"].is_shown), key=_worst)
    return _by_subject(shown), _by_subject(line for line in lines if not line["change"].is_shown)


def _worst(line: Row) -> tuple[bool, int, float]:
    """Order changes: regressions first, metric by metric, the largest change first."""
    change = line["change"]
    return change.verdict == "IMPROVED", [*METRICS].index(change.metric.name), -abs(change.gain)


def _by_subject(lines: Iterable[Row]) -> list[Table]:
    """Return a table for each recipe on a device, in the order in which they come."""
    subjects: dict[str, list[Row]] = {}
    for line in lines:
        subjects.setdefault(line["subject"], []).append(line)
    (speedup,) = optional(figures("change of speedup", lambda line: line.get("speedup") and estimate(line["speedup"])))
    columns = [
        BATCH,
        PRECISION,
        words("metric", lambda line: line["change"].metric.title),
        words("verdict", lambda line: line["change"].verdict),
        figures("change [95 % interval]", lambda line: str(line["change"])),
        replace(speedup, is_spare=True),
    ]
    return [*filter(None, (table(subject, of_subject, columns) for subject, of_subject in subjects.items()))]
