"""The report itself: what goes where, rendered as markdown and as one self-contained page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import pandas as pd
from markupsafe import Markup

from bench.report import facts, tables
from bench.report.load import SUBJECT, Runs
from bench.report.plots import Plot, draw
from bench.report.summary import summarise
from bench.report.verdict import Sentence, sentences

if TYPE_CHECKING:
    from bench.report.tables import Table


READING = (
    "A speedup is fp32's step time over the arm's: 2 is twice as fast, below 1 is slower. The interval is a "
    '95 % interval over fresh processes; with "one process" it holds within that process only, and another '
    "process may land outside it.",
    "FASTER and SLOWER mean that the whole interval lies more than 1 % from 1; SAME that it lies within 1 %; "
    "INCONCLUSIVE that the measurement does not say.",
    "Steps are timed on data already on the device. Time per epoch includes loading data; where it gains less "
    "than the step does, look at the time spent waiting for data.",
    "Peak memory is the steady peak of tensors on a GPU, and of resident memory on a CPU, with one precision "
    "alone in its process.",
    '"–" is not measured. A word such as oom, unsupported, nonfinite, invalid, timeout or failed stands where '
    "a figure would, and the notes say why.",
    "Accuracy needs at least 5 seeds for a verdict on parity: two runs that differ only in their seed differ "
    "by some tenths of a point too.",
)
"""How to read a report, in short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One recipe: its tables, device by device, and its plots."""

    title: str
    tables: list[Table]
    plots: list[Plot]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything on the page, in its order."""

    runs: list[str]
    verdicts: list[Sentence]
    machines: list[Table]
    sections: list[Section]
    switches: Table | None
    warnings: list[str]
    notes: Table | None


def write(runs: Runs, out: Path) -> Path:
    """Write report.md, report.html and the plots into ``out``; return the path of report.md."""
    out.mkdir(parents=True, exist_ok=True)
    report = compose(runs, out)
    page = out / "report.md"
    page.write_text(_render("report.md.j2", report, html=False), encoding="utf-8")
    (out / "report.html").write_text(_render("report.html.j2", report, html=True), encoding="utf-8")
    return page


def compose(runs: Runs, out: Path) -> Report:
    """Gather the report, drawing its plots into ``out``."""
    summary = summarise(runs.trials)
    plots = draw(summary, runs.epochs, out)
    hosts = facts.hosts(runs.runs)
    return Report(
        runs=[run.label for run in runs.runs],
        verdicts=sentences(summary),
        machines=facts.machines(runs.runs),
        sections=[
            Section(title=str(name), tables=_tables(rows, hosts), plots=plots.get(str(name), []))
            for name, rows in summary.groupby("workload", sort=False)
        ],
        switches=facts.switches(runs.trials),
        warnings=facts.warnings(runs.runs),
        notes=facts.notes(runs.trials),
    )


def _tables(rows: pd.DataFrame, hosts: dict[str, str]) -> list[Table]:
    found = [tables.cells(device, hosts) for _, device in rows.groupby(["architecture", "device"], sort=False)]
    if len(rows[SUBJECT].drop_duplicates()) > 1:
        found.append(tables.architectures(rows, hosts))
    return [*found, *(table for table in (tables.best_batch(rows), tables.training(rows)) if table)]


def _render(template: str, report: Report, *, html: bool) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench.report", "."),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = markdown
    environment.filters["inline"] = inline
    return environment.get_template(template).render(report=report, reading=READING)


def markdown(text: str) -> str:
    """Escape text for markdown, a table's cell included: what it says is shown, and does nothing."""
    flat = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = re.sub(r"([\\`*|~$]|\](?=[(\[:]))", r"\\\1", flat)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)


def inline(plot: Plot) -> Markup:
    """Return a plot's SVG for use within a page: no prologue, and ids that no other plot has."""
    svg = plot.svg[plot.svg.index("<svg") :]
    svg = re.sub(r'\b(id="|xlink:href="#|href="#|url\(#)', rf"\g<1>{plot.name}-", svg)
    label = Markup.escape(plot.caption)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
