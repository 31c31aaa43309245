"""The report: what goes where on its page, and the files of its folder."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from bench.report.analysis import ablation, bottleneck, comparability, matrix, scaling
from bench.report.analysis.speed import bootstraps
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import Sentence, sentences
from bench.report.figures import ablation as ablation_figures
from bench.report.figures import comparisons as comparison_figures
from bench.report.figures import devices
from bench.report.figures import numerics as numerics_figures
from bench.report.figures.axes import Plot
from bench.report.reading.folders import mark
from bench.report.reading.load import SUBJECT, WORKLOAD, Runs
from bench.report.tables import ablation as ablation_tables
from bench.report.tables import comparisons, diagnostics, measurements, numerics, training
from bench.report.tables import matrix as matrix_tables
from bench.report.tables.published import load_published, published_beside
from bench.report.tables.table import Table
from bench.stats import Interval

FILES = "files.json"
"""Names of the figures and CSVs that the report in a folder wrote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page under one heading."""

    title: str
    tables: list[Table]
    remarks: list[str] = field(default_factory=list)
    """Whole sentences."""
    plots: list[Plot] = field(default_factory=list)
    csvs: list[str] = field(default_factory=list)
    """Names of files in the report's folder that the tables refer to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything on the page, in its order."""

    runs: list[str]
    verdicts: list[Sentence]
    cautions: list[str]
    """What is missing from the runs, and what differs between them beside what is compared."""
    warnings: list[str]
    sections: list[Section]
    how_to_read: list[str]

    @property
    def files(self) -> list[str]:
        """The names of the report's files beside report.md and report.html."""
        drawn = [f"{plot.name}.{kind}" for one in self.sections for plot in one.plots for kind in ("png", "svg")]
        return sorted({*drawn, *(name for one in self.sections for name in one.csvs)})


def publish(
    runs: Runs, out: Path, *, published: bool = False, layers: bool = False, figures: devices.Choice = "overview"
) -> tuple[Path, list[Sentence]]:
    """Write report.md, report.html and the figures into ``out``; return the path of report.md and the verdicts.

    Files that an earlier report wrote there and this one does not are removed.

    Args:
        runs: what was measured.
        out: the report's folder.
        published: whether to compare with published figures of the same recipes.
        layers: whether to draw the magnitudes of gradients layer by layer, too.
        figures: which are drawn, as in ``devices.draw``; ``none`` leaves out those of every section.

    Raises:
        UsageError: published figures are asked for, and there are none or they cannot be read.
    """
    literature = load_published() if published else None
    out.mkdir(parents=True, exist_ok=True)
    page = out / "report.md"
    report = compose(runs, out, literature, layers=layers, figures=figures)
    content = {"report": report, "mark": mark({run.folder: run.info for run in runs.runs})}
    page.write_text(render("report.md.j2", html=False, **content), encoding="utf-8")
    (out / "report.html").write_text(render("report.html.j2", html=True, **content), encoding="utf-8")
    _replace(out / FILES, report.files)
    return page, report.verdicts


def _replace(manifest: Path, files: list[str]) -> None:
    """Write the names of a report's files, and remove those files of the report before that are not among them."""
    before = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else []
    manifest.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    for name in set(before) - set(files):
        if name == Path(name).name:  # none outside the folder
            (manifest.parent / name).unlink(missing_ok=True)


def compose(
    runs: Runs,
    out: Path,
    literature: pd.DataFrame | None = None,
    *,
    layers: bool = False,
    figures: devices.Choice = "overview",
) -> Report:
    """Gather the report and draw its figures into ``out``; ``literature`` are published figures to compare with."""
    summary, ablations = summarise(runs.trials), ablation.ablations(runs)
    drawn = figures != "none"
    sections = [
        Section(title="Machines", tables=shown(*diagnostics.machines(runs.runs))),
        *_matrices(summary, runs, out, drawn=drawn),
        *(_ablation(one, out, drawn=drawn) for one in ablations),
        *(_sweep(one, out, drawn=drawn) for one in comparisons.swept(summary, runs)),
        *_recipes(summary, runs, out, literature, layers=layers, figures=figures),
        Section(title="Formats of numbers", tables=shown(numerics.formats()) if len(runs.numerics) else []),
        Section(title="Precision switches", tables=shown(diagnostics.switches(runs.trials))),
        _notes(pd.concat([runs.trials, runs.ablations], ignore_index=True)),
    ]
    return Report(
        runs=[run.label for run in runs.runs],
        verdicts=[*sentences(summary), *map(ablation_tables.sentence, ablations)],
        cautions=comparability.cautions(runs),
        warnings=diagnostics.warnings(runs.runs),
        sections=[one for one in sections if one.tables or one.remarks or one.plots],
        how_to_read=how_to_read(runs),
    )


def _matrices(summary: pd.DataFrame, runs: Runs, out: Path, *, drawn: bool) -> list[Section]:
    """Return a section for each recipe that several devices or runs measured, its ratios written as CSV."""
    sections: dict[str, Section] = {}
    for one in matrix.matrices(summary, runs.trials):
        title = f"Setups of {one.title} against each other"
        section = sections.setdefault(title, Section(title=title, tables=[]))
        section.tables.extend(shown(*matrix_tables.tables(one)))
        section.plots.extend(filter(None, [comparison_figures.draw_matrix(one, out)] if drawn else []))
        section.csvs.append(matrix_tables.write_csv(one, out).name)
    return list(sections.values())


def _ablation(one: ablation.AblationSummary, out: Path, *, drawn: bool) -> Section:
    drawings = ablation_figures.draw(one, out) if drawn else []
    return Section(title=one.name, tables=[ablation_tables.table_of(one)], plots=drawings)


def _sweep(one: comparisons.Swept, out: Path, *, drawn: bool) -> Section:
    drawings = comparison_figures.draw_sweep(one, out) if drawn else []
    return Section(title=f"Sweep of {one.suite}'s {one.name}", tables=shown(comparisons.table_of(one)), plots=drawings)


def _notes(trials: pd.DataFrame) -> Section:
    notes = shown(diagnostics.notes(trials))
    none = "Every trial was measured, and no interval within a process is wider than was asked for."
    return Section(title="Notes", tables=notes, remarks=[] if notes else [none])


def _recipes(
    summary: pd.DataFrame,
    runs: Runs,
    out: Path,
    literature: pd.DataFrame | None,
    *,
    layers: bool,
    figures: devices.Choice,
) -> list[Section]:
    """Return a section for each recipe."""
    bootstrapped = bootstraps(runs.blocks)
    sections = {
        str(name): _recipe(str(name), rows, summary, runs, bootstrapped, literature=literature)
        for name, rows in summary.groupby("workload", sort=False)
    }
    drawings, left_out = devices.draw(summary, runs.epochs, out, figures)
    for name, own in drawings.items():
        sections[name].plots.extend(own)
    for by_layer in () if figures == "none" else (False, True) if layers else (False,):
        for name, plot in numerics_figures.draw(summary, runs.numerics, out, layers=by_layer):
            sections[name].plots.append(plot)
    for name, remark in left_out.items():
        sections[name].remarks.append(remark)
    return list(sections.values())


def _recipe(
    title: str,
    rows: pd.DataFrame,
    summary: pd.DataFrame,
    runs: Runs,
    bootstrapped: Mapping[Hashable, Interval],
    *,
    literature: pd.DataFrame | None,
) -> Section:
    """Return a recipe's section, its tables in the order of the page."""
    trials, hosts = runs.trials.merge(rows[WORKLOAD].drop_duplicates()), diagnostics.hosts(runs.runs)
    where = rows[[*SUBJECT, "where"]].drop_duplicates()
    scaled, unscaled = scaling.scaling(rows, summary, runs)
    beside, unpublished = (None, []) if literature is None else published_beside(rows, runs, literature)
    tables = shown(
        *measurements.by_device(rows, hosts),
        measurements.by_architecture(rows, hosts),
        measurements.same_and_best(rows),
        measurements.best_batch(rows),
        measurements.largest_batch(trials, rows),
        *training.training(rows),
        measurements.energy(trials),
        measurements.memory(trials),
        diagnostics.what_ran(rows),
        diagnostics.compiling(trials.merge(where)),
        diagnostics.how_timed(rows, bootstrapped),
        *numerics.numerics(runs.numerics.merge(where)),
        measurements.inference(trials.merge(where)),
        comparisons.scaling(scaled),
        training.against_plain(runs.trials, rows),
        beside,
    )
    return Section(
        title=title,
        tables=tables,
        remarks=bottleneck.epoch_remarks(rows) + bottleneck.loader_remarks(rows) + unscaled + unpublished,
    )


def shown(*tables: Table | None) -> list[Table]:
    """Return the tables that have rows."""
    return [table for table in tables if table is not None]


PLAIN = re.compile(r"(?! )(?:[^\s\\`*|~$\]&<>_]|\](?![(\[:])| (?=[^\s]))*")
"""Text that means nothing to markdown, as nearly all cells hold: words, figures, intervals."""


def render(template: str, *, html: bool, **what: object) -> str:
    """Fill in a template that lies beside this file."""
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
    return environment.get_template(template).render(**what)


def markdown(text: str) -> str:
    """Escape text for markdown, a table's cell included: what it says is shown, and does nothing."""
    if PLAIN.fullmatch(text := str(text)):
        return text
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = re.sub(r"([\\`*|~$]|\](?=[(\[:]))", r"\\\1", flat)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)


def inline(plot: Plot) -> Markup:
    """Return a plot's SVG for use within a page: no prologue, and ids that no other plot has."""
    svg = plot.svg[plot.svg.index("<svg") :]
    svg = re.sub(r'\b(id="|xlink:href="#|href="#|url\(#)', rf"\g<1>{plot.name}-", svg)
    label = Markup.escape(plot.caption)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


RESIDENT = (
    "Steps are timed on data already on the device. Time per epoch includes loading data; where it gains less "
    "than the step does, look at the time spent waiting for data."
)
LOADED = (
    "An ablation's steps are timed with the loader that feeds them: the step and the time per epoch include loading "
    "data."
)
LINES = (
    "A speedup is fp32's step time divided by the other precision's: 2 is twice as fast, below 1 is slower. For "
    "precisions timed side by side it is a trimmed mean over their ABBA rounds, and step (ms) is a median over blocks, "
    "so the ratio of two steps differs from the speedup by chance. Intervals are 95 % over fresh processes. With "
    '"one process", an interval holds within that process only; another process may land outside it.',
    "FASTER and SLOWER: the whole interval lies further from 1 than the A/A noise, which is how far fp32 measured "
    "against itself was from 1 on this machine (1 % where that was not measured). SAME: the interval lies within 1 %. "
    "INCONCLUSIVE: none of these.",
    RESIDENT,
    LOADED,
    "Peak memory is the steady peak of tensors on a GPU and of resident memory on a CPU, with one precision "
    "alone in its process.",
    "In a matrix of setups each figure says how many times as fast the row is as the column. Between devices the "
    "interval is that of these very boards; another board of the same name may differ by more.",
    '"–": not measured. A word such as oom, unsupported, nonfinite, invalid, timeout or failed replaces '
    "a figure that could not be measured; the notes say why.",
    "A verdict on parity of accuracy needs at least 5 seeds: two runs that differ only in their seed differ "
    "by some tenths of a point, too.",
)


def how_to_read(runs: Runs) -> list[str]:
    """Return how to read a report of these runs, without the lines on measurements that they do not have."""
    only_ablations = not runs.ablations.empty and runs.trials["phase"].eq("train").all()
    left_out = [RESIDENT] if only_ablations else [LOADED] if runs.ablations.empty else []
    return [line for line in LINES if line not in left_out]
