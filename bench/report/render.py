"""The templates of a report, what they call, and the page's Content-Security-Policy."""

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

from bench.report.analysis.explanation import Explanation
from bench.report.analysis.verdict import Answer, Grid, strayed
from bench.report.figures.chart import class_of, colour
from bench.report.format import UNKNOWN
from bench.report.tables import explanation
from bench.report.tables.table import Column, Table, figures, optional, table, words
from bench.spec.metrics import ACCURACY, LOSS
from bench.spec.precisions import BASELINE

TEMPLATES = Path(__file__).with_name("templates")
LONGEST = 20
"""Rows of the longest table on the page; details.md has the longer ones."""
MOST = 6
"""Most lines of a list in report.md, and explanations in a terminal; details.md has them all."""
MOST_FAILURES = 8
"""Most lines on what failed in a terminal."""


def render(report: Any, mark: str) -> dict[str, str]:
    """Return the text of report.md, details.md and report.html of a ``page.Report``, by name; ``mark`` is its runs'."""
    templates = environment()
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
    return {name: templates.get_template(f"{name}.j2").render(values) for name in names}


def terminal(report: Any, details: Path) -> str:
    """Return what a terminal shows of a ``page.Report``."""
    explained = [explanation for section in report.why for explanation in section.why]
    values = {"report": report, "answers": answers(report.grid), "details": details}
    values |= {"explained": explained, "most": MOST, "most_failures": MOST_FAILURES}
    return environment().get_template("terminal.txt.j2").render(values).rstrip("\n")


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
    why = environment().get_template("why.txt.j2")
    return why.render(explained=explained, most=len(explained)).rstrip("\n")


@cache
def environment(folder: Path = TEMPLATES) -> jinja2.Environment:
    """Return the environment of the templates in a folder, which may include those of the report."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
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
        "time_by_class": explanation.time_by_class,
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
