"""The report itself: what goes where, rendered as markdown and as one self-contained page."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.report import leftovers
from bench.report.analysis import bottleneck, comparability, matrix, scaling
from bench.report.analysis import training as epochs
from bench.report.analysis.ablation import Climbed, climbed
from bench.report.analysis.rounds import bootstraps
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import Sentence, sentences
from bench.report.figures import heatmap, steps
from bench.report.figures import numerics as numerics_figures
from bench.report.figures import sweeps as sweep_figures
from bench.report.figures.axes import Plot
from bench.report.figures.plots import Choice, begin
from bench.report.how_to_read import reading
from bench.report.reading import completeness, sources
from bench.report.reading.folders import mark
from bench.report.reading.load import SUBJECT, WORKLOAD, Runs
from bench.report.render import render
from bench.report.tables import ablation, diagnostics, facts, measurements, memory, numerics, sweeps, training
from bench.report.tables import matrix as matrix_tables
from bench.report.tables import scaling as scaling_tables
from bench.report.tables.published import beside as published_beside
from bench.report.tables.published import load_published
from bench.report.tables.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One recipe: its tables, device by device, what is to be said of them, and its plots."""

    title: str
    tables: list[Table]
    remarks: list[str]
    """Whole sentences."""
    plots: list[Plot]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything on the page, in its order."""

    runs: list[str]
    verdicts: list[Sentence]
    cautions: list[str]
    """What is missing from the runs, and what differs between them beside what is compared."""
    machines: list[Table]
    sections: list[Section]
    formats: Table | None
    """Of numbers, where the numerics were looked at."""
    switches: Table | None
    warnings: list[str]
    notes: Table | None


def publish(
    runs: Runs,
    out: Path,
    *,
    published: bool = False,
    layers: bool = False,
    figures: Choice = "overview",
    drawers: Executor | None = None,
) -> tuple[Path, list[Sentence]]:
    """Write report.md, report.html and the plots into ``out``; return the path of report.md and its verdicts.

    Figures and matrices of a report that was there before are removed where this one has them not.

    Args:
        runs: what was measured.
        out: the report's folder.
        published: whether the literature's figures for the same recipes stand beside the measured ones.
        layers: whether the magnitudes of gradients are drawn layer by layer, too.
        figures: which are drawn, as in ``plots.begin``; without figures there are none of anything.
        drawers: processes that are ready to draw.

    Raises:
        UsageError: published figures are asked for, and there are none or they cannot be read.
    """
    literature = load_published() if published else None
    out.mkdir(parents=True, exist_ok=True)
    page = out / "report.md"
    before = leftovers.referenced(page)
    report = compose(runs, out, literature, layers=layers, figures=figures, drawers=drawers)
    told = {"report": report, "reading": reading(runs), "mark": mark({run.folder: run.info for run in runs.runs})}
    page.write_text(render("report.md.j2", html=False, **told), encoding="utf-8")
    (out / "report.html").write_text(render("report.html.j2", html=True, **told), encoding="utf-8")
    leftovers.remove(out, before - leftovers.referenced(page))
    return page, report.verdicts


def compose(
    runs: Runs,
    out: Path,
    literature: pd.DataFrame | None = None,
    *,
    layers: bool = False,
    figures: Choice = "overview",
    drawers: Executor | None = None,
) -> Report:
    """Gather the report, drawing its plots into ``out``; ``literature`` are published figures to set beside."""
    summary, ladders = summarise(runs.trials), climbed(runs)
    drawn = figures != "none"
    with begin(summary, runs.epochs, out, figures, drawers) as drawing:  # goes on beside what follows
        seconds = bootstraps(runs.blocks)
        sections = [
            *_matrices(summary, runs, out, drawn=drawn),
            *(_ladder(one, out, drawn=drawn) for one in ladders),
            *(_sweep(one, out, drawn=drawn) for one in sweeps.swept(summary, runs)),
        ]
        recipes = {
            str(name): _section(str(name), rows, summary, runs, seconds, literature=literature)
            for name, rows in summary.groupby("workload", sort=False)
        }
        for name, plots in drawing.finish().items():
            recipes[name].plots.extend(plots)
    painters = [numerics_figures.draw, *([numerics_figures.draw_layers] if layers else [])] if drawn else []
    for name, plots in (item for paint in painters for item in paint(summary, runs.numerics, out).items()):
        recipes[name].plots.extend(plots)
    for name, said in drawing.left_out().items():
        recipes[name].remarks.append(said)
    return Report(
        runs=[run.label for run in runs.runs],
        verdicts=[*sentences(summary), *map(ablation.sentence, ladders)],
        cautions=cautions(runs),
        machines=shown(*facts.machines(runs.runs)),
        sections=[*sections, *recipes.values()],
        formats=numerics.formats() if len(runs.numerics) else None,
        switches=facts.switches(runs.trials),
        warnings=facts.warnings(runs.runs),
        notes=facts.notes(pd.concat([runs.trials, runs.climbs], ignore_index=True)),
    )


def cautions(runs: Runs) -> list[str]:
    """Return what a reader should know before comparing: what is missing or odd in a run, and what differs."""
    trials = pd.concat([runs.trials, runs.climbs], ignore_index=True)
    told = [completeness.remark(run, trials[trials["run"] == run.label]) for run in runs.runs]
    odd = [f"Run {run.label}: {said}" for run in runs.runs for said in run.remarks]
    return [*filter(None, told), *odd, *sources.remarks(runs.runs), *comparability.warnings(runs.runs, trials)]


def _matrices(summary: pd.DataFrame, runs: Runs, out: Path, *, drawn: bool) -> list[Section]:
    """Return a section for each recipe that several devices or runs measured, its ratios written beside as CSV."""
    sections: dict[str, Section] = {}
    for one in matrix.matrices(summary, runs.trials):
        matrix_tables.write_csv(one, out)
        title = f"Setups of {one.title} against each other"
        section = sections.setdefault(title, Section(title=title, tables=[], remarks=[], plots=[]))
        section.tables.extend(shown(*matrix_tables.tables(one)))
        section.plots.extend(filter(None, [heatmap.draw(one, out)] if drawn else []))
    return list(sections.values())


def _ladder(one: Climbed, out: Path, *, drawn: bool) -> Section:
    """Return an ablation's section."""
    plots = steps.plots_of(one, out) if drawn else []
    return Section(title=one.name, tables=[ablation.table_of(one)], remarks=[], plots=plots)


def _sweep(one: sweeps.Swept, out: Path, *, drawn: bool) -> Section:
    """Return the section of a swept parameter."""
    plots = sweep_figures.draw(one, out) if drawn else []
    title = f"Sweep of {one.suite}'s {one.name}"
    return Section(title=title, tables=shown(sweeps.table_of(one)), remarks=[], plots=plots)


def _section(
    title: str,
    rows: pd.DataFrame,
    summary: pd.DataFrame,
    runs: Runs,
    seconds: pd.Series,
    *,
    literature: pd.DataFrame | None,
) -> Section:
    """Return a recipe's section, its tables in the order of the page."""
    trials, hosts = runs.trials.merge(rows[WORKLOAD].drop_duplicates()), facts.hosts(runs.runs)
    where = rows[[*SUBJECT, "where"]].drop_duplicates()
    scaled, unscaled = scaling.scaling(rows, summary, runs)
    beside, unpublished = (None, []) if literature is None else published_beside(rows, runs, literature)
    found = shown(
        *measurements.by_device(rows, hosts),
        measurements.by_architecture(rows, hosts),
        measurements.same_and_best(rows),
        measurements.best_batch(rows),
        measurements.largest_batch(trials, rows),
        *training.training(rows),
        memory.energy(trials),
        memory.memory(trials),
        diagnostics.what_ran(rows),
        diagnostics.compiling(trials.merge(where)),
        diagnostics.how_timed(rows, seconds),
        *numerics.numerics(runs.numerics.merge(where)),
        measurements.inference(trials.merge(where)),
        scaling_tables.scaling(scaled),
        training.against_plain(runs.trials, rows),
        beside,
    )
    remarks = epochs.remarks(rows) + bottleneck.remarks(rows) + unscaled + unpublished
    return Section(title=title, tables=found, remarks=remarks, plots=[])


def shown(*tables: Table | None) -> list[Table]:
    """Return the tables that there are."""
    return [table for table in tables if table is not None]
