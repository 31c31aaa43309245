"""The templates of a report and of a comparison, what they call, and the page's Content-Security-Policy."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bench.report.analysis.compare import Comparison
from bench.report.analysis.explanation import Explanation
from bench.report.analysis.verdict import Answer, Grid, strayed
from bench.report.figures.chart import class_of, colour
from bench.report.format import UNKNOWN
from bench.report.tables import comparisons, explanation
from bench.report.tables.table import Column, Table, figures, optional, table, words
from bench.spec.metrics import ACCURACY, LOSS, METRICS
from bench.spec.precisions import BASELINE
from bench.spec.text import print_plain

TEMPLATES = Path(__file__).with_name("templates")
LONGEST = 20
"""Rows of the longest table on the page; details.md has the longer ones."""
MOST = 6
"""Most lines of a list in report.md, and explanations in a terminal; details.md has them all."""
MOST_FAILURES = 8
"""Most lines on what failed in a terminal."""


def render(report: Any, mark: str) -> dict[str, str]:
    """Return the text of report.md, details.md and report.html of a ``page.Report``, by name; ``mark`` is its runs'."""
    environment = _environment()
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8") + colours(
        report.drawn
    )  # last, for they are more specific
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src '{digest(css)}'; script-src '{digest(script)}'"
    values = {
        "report": report,
        "answers": in_one(report.grid),
        "mark": mark,
        "css": Markup(css),
        "script": Markup(script),
        "policy": Markup(policy),
        "margin": ACCURACY.margin,
        "margin_nats": LOSS.margin,
        "longest": LONGEST,
        "most": MOST,
    }
    names = ("report.md", "details.md", "report.html")
    return {name: environment.get_template(f"{name}.j2").render(values) for name in names}


def terminal(report: Any, details: Path) -> str:
    """Return what a terminal shows of a ``page.Report``."""
    explained = [explanation for section in report.why for explanation in section.why]
    values = {"report": report, "answers": answers(report.grid), "details": details}
    values |= {"explained": explained, "most": MOST, "most_failures": MOST_FAILURES}
    return _environment().get_template("terminal.txt.j2").render(values).rstrip("\n")


def answers(grid: Grid) -> list[Table]:
    """Return the answers as a table for each suite, with what a terminal has room for."""
    columns = _columns(lambda answer: answer.memory)
    return [*filter(None, (table(workload, lines, columns) for workload, lines in grid.groups.items()))]


def in_one(grid: Grid) -> Table | None:
    """Return the answers in one table, with their peak memory; None where there is one alone."""
    given = list(itertools.chain(*grid.groups.values()))
    columns = _columns(lambda answer: f"{answer.memory} ({answer.peak})" if answer.peak else answer.memory)
    together = table("", given, [words("model", lambda answer: answer.workload), *columns])
    return replace(together, footnotes=[]) if together and len(given) > 1 else None  # the next table has the legend


def _columns(memory: Callable[[Answer], str]) -> list[Column]:
    return [
        words("device", lambda answer: answer.label),
        words("use", lambda answer: f"{answer.use} {answer.doubt_marks}".rstrip()),
        *optional(
            figures("faster", lambda answer: f"{answer.faster} {answer.spread}".rstrip()),
            figures("memory", memory),
            words("accuracy", _accuracy),
        ),
        *optional(
            figures("batch", lambda answer: answer.batch_text),
            figures("pays from", lambda answer: str(answer.pays_from or UNKNOWN)),
            figures("energy", lambda answer: answer.energy),
        ),
    ]


def _accuracy(answer: Answer) -> str:
    without_fp32 = answer.arm and not answer.stays and not answer.is_timed
    return f"{BASELINE} oom" if without_fp32 else answer.accuracy_in_short


def why_in_words(explained: Sequence[Explanation]) -> str:
    """Return what a terminal shows of explanations."""
    why = _environment().get_template("why.txt.j2")
    return why.render(explained=explained, most=len(explained)).rstrip("\n")


def comparison_page(comparison: Comparison, kind: str) -> str:
    """Return a comparison with earlier runs as markdown (``md``), or as a page that needs nothing else (``html``)."""
    changed, unchanged = comparisons.changes(comparison)
    values = {"changed": changed, "unchanged": unchanged, "about": comparisons.CHANGES}
    values |= {"regressions": _regressions(comparison), "remarks": _remarks(comparison)}
    values |= {"css": Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))}
    return _environment().get_template(f"compare.{kind}.j2").render(comparison=comparison, **values)


def show_comparison(comparison: Comparison) -> None:
    """Print a comparison with earlier runs: what changed, and how much did not."""
    for name, runs in (("OLD", comparison.old), ("NEW", comparison.new)):
        print_plain(f"{name}: {', '.join(run.label for run in runs)}")
    print_plain(f"\n{comparison.summary}")
    changed, unchanged = comparisons.changes(comparison)
    for of_subject in changed:
        print_plain(f"\n{of_subject.title}")
        of_subject.show()
    if unchanged:
        print_plain(f"\n{comparison.unchanged} --markdown and --html list them.")
    for remark in _remarks(comparison):
        print_plain(f"- {remark}")
    print_plain(f"\n{comparisons.CHANGES}")
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
    changed = [METRICS[name] for row in comparison.rows for name in row.changes]
    margins = dict.fromkeys(f"{metric.name}: {metric.tolerance}" for metric in changed if metric.scale == "difference")
    share += f" ({', '.join(margins)})" if margins else ""
    outcome = f"Shown beyond {share}:" if comparison.failures else f"No regression is shown beyond {share}."
    if not comparison.untestable:
        return outcome
    rows = f"{comparison.untestable} of {len(comparison.rows)} rows"
    cause = "a side has one process. Measure without --quick."
    if comparison.by_turns and len(comparison.old) == 1:
        cause = "there is one pair of runs. Measure at least two with --pairs; without it there are three."
    return f"The speed of {rows} could not be judged: {cause} {outcome}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": markdown, "anchor": anchor, "precision": class_of}
    environment.globals |= {
        "strayed": strayed,
        "gain": explanation.gain,
        "reasons": explanation.sentences,
        "short": explanation.short,
    }
    return environment


def digest(text: str) -> str:
    """Return the source expression that allows an inline script or style with this text (CSP 3, section 2.3.1)."""
    return f"sha384-{base64.b64encode(hashlib.sha384(text.encode()).digest()).decode()}"


def colours(precisions: list[str]) -> str:
    """Return the rules that tint what belongs to a precision; in the dark theme the tints are lighter."""
    rule = ".{0} {{ --tint: light-dark({1}, color-mix(in srgb, {1}, #fff 40%)) }}\n"
    return "".join(rule.format(class_of(name), colour(name)) for name in precisions)


def markdown(text: str) -> str:
    """Escape text for markdown, a table's cell included."""
    flat = re.sub(r"([\\`*|~$]|\](?=[(\[:]))", r"\\\1", html.escape(re.sub(r"\s+", " ", str(text)), quote=False))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
