"""A comparison as a terminal shows it: tables of what changed, and sentences."""

from __future__ import annotations

from bench.compare.comparison import NEEDS, Comparison
from bench.report.tables.table import (
    BATCH,
    PRECISION,
    Row,
    Table,
    make_table,
    number_column,
    text_column,
)
from bench.spec.metrics import compared
from bench.spec.text import print_plain

MARGINS = "; ".join(
    f"{metric.name}: {metric.tolerance}" for metric in compared() if not metric.has_noise
)
CHANGES = (
    "Changes are NEW ÷ OLD, of accuracy and loss NEW − OLD, with 95 % intervals. REGRESSED and "
    f"IMPROVED: the interval clears the A/A noise ({MARGINS}), also among as many figures as are "
    "compared (false discovery rate 5 %). SAME: the interval lies within 1 %, or those "
    f"margins. INCONCLUSIVE: neither, or too few samples: {NEEDS} A GPU's peak of memory is read "
    "in two processes, and the interval spans them; on a CPU differences within 5 MiB cannot be "
    "resolved."
)
# So many figures are read at a glance; of more, those are shown that changed.
FEW = 20

COLUMNS = [
    BATCH,
    PRECISION,
    text_column("metric", lambda line: line["change"].metric.title),
    text_column("verdict", lambda line: line["change"].verdict),
    number_column("change [95 % interval]", lambda line: str(line["change"])),
]


def show_comparison(comparison: Comparison) -> None:
    """Print a comparison with earlier runs: what changed, and how much did not."""
    print_plain(f"OLD: {', '.join(comparison.old)}")
    print_plain(f"NEW: {', '.join(comparison.new)}")
    print_plain(f"\n{comparison.summary} --json has all.")
    for of_subject in tables(comparison):
        print_plain(f"\n{of_subject.title}")
        print_plain(of_subject.text.rstrip())
    print_plain("")
    for remark in [*comparison.cautions, *comparison.apart]:
        print_plain(f"- {remark}")
    print_plain(f"\n{CHANGES}")
    if comparison.fail_over is not None:
        share = f"{100 * comparison.fail_over:g} %"
        if comparison.failures:
            print_plain(f"Shown beyond {share}:")
        elif comparison.is_judged:
            print_plain(f"No regression is shown beyond {share}.")
        for failure in comparison.failures:
            print_plain(f"- {failure}")


def tables(comparison: Comparison) -> list[Table]:
    """Return the tables, one for each recipe on a device, regressions first.

    They are of what changed, and of few figures of all.
    """
    shown = ["REGRESSED", "IMPROVED"]
    if len(comparison.changes) <= FEW:
        shown += ["SAME", "INCONCLUSIVE"]
    by_subject: dict[str, list[Row]] = {}
    # Subjects with a regression come first, too.
    for verdict in shown:
        for row in comparison.rows:
            for change in row.changes.values():
                if change.verdict == verdict:
                    line = {**row.question, "change": change}
                    by_subject.setdefault(row.subject, []).append(line)
    tables = [make_table(subject, lines, COLUMNS) for subject, lines in by_subject.items()]
    return [each for each in tables if each]
