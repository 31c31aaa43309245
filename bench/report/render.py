"""The templates of a report, what they call, and the page's Content-Security-Policy."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from bench.report.analysis.lead import Grid, Line
from bench.report.figures.chart import class_of, look
from bench.report.parts import Findings
from bench.report.tables.table import (
    Column,
    Table,
    make_table,
    number_column,
    optional_columns,
    text_column,
)
from bench.spec.metrics import ACCURACY, LOSS, MEMORY, METRICS
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:  # page imports this module
    from bench.report.page import Report

TEMPLATES = Path(__file__).with_name("templates")
# Rows of the longest table that the page does not fold on its own: about a screen.
LONGEST = 20
# Most lines of a list in report.md, and findings of a recipe in a terminal; the page has them all.
MOST = 6
# Most lines on what failed in a terminal.
MOST_FAILURES = 8


def render(report: Report, drawings: Mapping[str, Markup]) -> dict[str, str]:
    """Return the text of report.md and report.html, by name.

    ``drawings`` are the elements of each figure, by its name.
    """
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8") + colours(report.precisions)
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'"
    values = {
        "report": report,
        "drawings": drawings,
        "overview": in_one(report.grid),
        "css": Markup(css),
        "script": Markup(script),
        "policy": Markup(policy),
        "margin": ACCURACY.margin,
        "margin_nats": LOSS.margin,
        "longest": LONGEST,
        "most": MOST,
    }
    texts = {}
    for name in ("report.md", "report.html"):
        texts[name] = environment().get_template(f"{name}.j2").render(values)
    return texts


def terminal(report: Report, page: Path) -> str:
    """Return what a terminal shows of a report that was written to ``page``."""
    values = {
        "report": report,
        "by_suite": by_suite(report.grid),
        "page": page,
        "findings": report.findings,
        "most": MOST,
        "most_failures": MOST_FAILURES,
    }
    text = environment().get_template("terminal.txt.j2").render(values).rstrip("\n")
    return text or "Nothing was measured that can be compared."


def by_suite(grid: Grid) -> list[Table]:
    """Return the answers as a table for each suite, with what a terminal has room for."""
    tables = []
    for workload, lines in grid.groups.items():
        answers = make_table(workload, lines, _columns())
        if answers is not None:
            tables.append(answers)
    return tables


def in_one(grid: Grid) -> Table | None:
    """Return the answers in one table, with their peak memory; None where there is one alone."""
    if len(grid.lines) < 2:
        return None
    model = text_column("model", lambda line: line.answer.names["workload"])
    together = make_table("", grid.lines, [model, *_columns(with_peak=True)])
    # The next table has the legend.
    return replace(together, footnotes=[]) if together else None


def _columns(*, with_peak: bool = False) -> list[Column]:
    def changed(name: str, line: Line) -> str:
        return line.changes[name].text

    def memory(line: Line) -> str:
        peak = f" ({line.peak})" if with_peak and line.peak else ""
        return changed(MEMORY.name, line) + peak

    def accuracy(line: Line) -> str:
        answer = line.answer
        return f"{BASELINE} oom" if answer.is_gain and not answer.is_timed else line.accuracy

    def use(line: Line) -> str:
        words = [line.answer.use]
        if line.answer.is_undecided:
            words.append("(undecided)")
        if line.marks:
            words.append(line.marks)
        return " ".join(words)

    columns = [
        number_column("speedup", lambda line: f"{line.faster} {line.spread}".rstrip()),
        number_column("memory", memory),
        text_column("accuracy", accuracy),
        number_column("batch", lambda line: line.answer.batch_text),
    ]
    for name, metric in METRICS.items():
        if metric.shown_as == "share" and metric != MEMORY:
            columns.append(number_column(name, partial(changed, name)))
    return [
        text_column("device", lambda line: line.answer.names["label"]),
        text_column("use", use, has_marks=True),
        *optional_columns(*columns),
    ]


def in_words(findings: Sequence[Findings]) -> str:
    """Return what a terminal shows of findings."""
    template = environment().get_template("findings.txt.j2")
    return template.render(findings=findings, most=None).rstrip("\n")


@cache
def environment(folder: Path = TEMPLATES) -> jinja2.Environment:
    """Return the environment of the templates in a folder, which may include the report's."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        # A misspelt name is an error, and not an empty text.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": markdown, "precision": class_of}
    return environment


def _digest(text: str) -> str:
    """Return the source expression that allows an inline script or style with this text.

    Source: Content Security Policy Level 3, section 2.3.1.
    """
    digest = hashlib.sha384(text.encode()).digest()
    return f"sha384-{base64.b64encode(digest).decode()}"


def colours(precisions: list[str]) -> str:
    """Return the rules that tint the page's boxes of precisions, lighter in the dark theme."""
    rule = ".{0} {{ --tint: light-dark({1}, color-mix(in srgb, {1}, #fff 40%)) }}\n"
    return "".join(rule.format(class_of(name), look(name)[0]) for name in precisions)


def markdown(text: str) -> str:
    """Escape text for markdown, a table's cell included."""
    flat = html.escape(re.sub(r"\s+", " ", str(text)), quote=False)
    # A bracket that closes matters only before what makes a link of it.
    escaped = re.sub(r"([\\`*|~$]|\](?=[(\[:]))", r"\\\1", flat)
    # An underscore within a word is no emphasis.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)
