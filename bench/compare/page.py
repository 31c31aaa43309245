"""A comparison in tables: in markdown and in a terminal."""

from __future__ import annotations

from pathlib import Path

from bench.compare.comparison import NEEDS, Comparison
from bench.report import render
from bench.report.format import counted
from bench.report.tables.table import BATCH, PRECISION, Row, Table, figures, table, words
from bench.spec.metrics import compared
from bench.spec.text import print_plain

TEMPLATES = Path(__file__).with_name("templates")
MARGINS = "; ".join(f"{metric.name}: {metric.tolerance}" for metric in compared() if not metric.has_noise)
CHANGES = (
    "Changes are NEW ÷ OLD, of accuracy and loss NEW − OLD, with 95 % intervals. "
    "REGRESSED and IMPROVED: the interval clears the A/A noise "
    f"({MARGINS}), and so clearly that at most 5 % of such verdicts are expected to be chance. SAME: the interval lies "
    f"within 1 %, or those margins. INCONCLUSIVE: neither, or too few samples: {NEEDS} A GPU's peak of memory is read "
    "in two processes, and the interval spans them; on a CPU differences within 5 MiB cannot be resolved."
)

COLUMNS = [
    BATCH,
    PRECISION,
    words("metric", lambda line: line["change"].metric.title),
    words("verdict", lambda line: line["change"].verdict),
    figures("change [95 % interval]", lambda line: str(line["change"])),
]


def comparison_page(comparison: Comparison) -> str:
    """Return a comparison with earlier runs as markdown."""
    changed, unchanged = changes(comparison)
    template = render.environment(TEMPLATES).get_template("compare.md.j2")
    return template.render(
        comparison=comparison,
        changed=changed,
        unchanged=unchanged,
        about=CHANGES,
        regressions=_regressions(comparison),
        remarks=[*comparison.cautions, *comparison.apart],
    )


def show_comparison(comparison: Comparison) -> None:
    """Print a comparison with earlier runs: what changed, and how much did not."""
    print_plain(f"OLD: {', '.join(comparison.old)}")
    print_plain(f"NEW: {', '.join(comparison.new)}")
    print_plain(f"\n{comparison.summary}")
    changed, unchanged = changes(comparison)
    for of_subject in changed:
        print_plain(f"\n{of_subject.title}")
        print_plain(of_subject.text.rstrip())
    if unchanged:
        print_plain("\n--markdown lists the figures without a change.")
    for remark in [*comparison.cautions, *comparison.apart]:
        print_plain(f"- {remark}")
    print_plain(f"\n{CHANGES}")
    if comparison.fail_over is not None:
        print_plain(_regressions(comparison))
        for failure in comparison.failures:
            print_plain(f"- {failure}")


def _regressions(comparison: Comparison) -> str:
    """Say whether a regression is shown beyond what ``--fail-over`` allows; empty without that option."""
    if comparison.fail_over is None:
        return ""
    share = f"{100 * comparison.fail_over:g} %"
    outcome = f"Shown beyond {share}:" if comparison.failures else f"No regression is shown beyond {share}."
    untestable = sum(not change.is_judged for change in comparison.timed)
    if untestable:
        outcome = f"The speed of {counted(untestable, 'row')} could not be judged: {NEEDS} {outcome}"
    return outcome


def changes(comparison: Comparison) -> tuple[list[Table], list[Table]]:
    """Return the tables of what changed, regressions first, and of all else: one for each recipe on a device."""
    shown: dict[str, list[Row]] = {}
    others: dict[str, list[Row]] = {}
    for row in comparison.rows:
        for change in row.changes.values():
            by_subject = shown if change.is_shown else others
            by_subject.setdefault(row.subject, []).append({**row.question, "change": change})
    for lines in shown.values():
        lines.sort(key=lambda line: line["change"].verdict != "REGRESSED")
    subjects = sorted(shown, key=lambda subject: shown[subject][0]["change"].verdict != "REGRESSED")
    changed = [table(subject, shown[subject], COLUMNS) for subject in subjects]
    unchanged = [table(subject, lines, COLUMNS) for subject, lines in others.items()]
    return [*filter(None, changed)], [*filter(None, unchanged)]
