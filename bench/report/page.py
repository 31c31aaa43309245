"""The report: its contents, and the files in its folder."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.analysis import comparability, published
from bench.report.analysis.lead import Grid, Sentence, grid, lead, strayed
from bench.report.analysis.summary import summarise, without_unsupported
from bench.report.analysis.verdict import Answer, stalled
from bench.report.figures import devices
from bench.report.figures import telemetry as telemetry_figures
from bench.report.figures.chart import Chart
from bench.report.format import counted
from bench.report.frames import arms, as_csv
from bench.report.parts import OVERVIEW, Findings, parts
from bench.report.reading.folders import mark
from bench.report.reading.load import Run, Runs
from bench.report.render import render
from bench.report.tables import diagnostics, measurements, telemetry
from bench.report.tables.table import RECIPE, Entry, Material, Table
from bench.results.columns import listed
from bench.results.files import write_atomically
from bench.spec import lifetime
from bench.spec.precisions import precision_rank

CONTROLS = {"model": ("workload", "workload"), "device": ("where", "label")}
"""The controls of the page's bar: the columns of the summary with their values and labels."""
SOFTWARE = {
    "ampmeter": "ampmeter",
    "torch": "torch",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "driver": "driver",
    "python": "Python",
    "os": "",
}
"""What a run's environment is described by: the keys of its versions, and their names."""
DRAWERS = 2
"""Processes that draw figures."""
FILES = "files.json"
"""The list of the figures and CSVs of the report in a folder."""
SUMMARY = "summary.csv"
HOW_TO_READ = (
    "A speedup is fp32's step time divided by the other precision's: 2 is twice as fast, below 1 is slower. For "
    "precisions timed side by side it is a trimmed mean over their ABBA rounds, and step (ms) is a median over blocks, "
    "so the ratio of two steps differs from the speedup by chance. Intervals are 95 % over fresh processes. With "
    '"one process", an interval holds within that process only; another process may land outside it.',
    "FASTER and SLOWER: the whole interval lies further from 1 than the A/A noise, which is how far fp32 measured "
    "against itself was from 1 on this machine (1 % where that was not measured). SAME: the interval lies within 1 %. "
    "INCONCLUSIVE: none of these.",
    "Steps are timed on data already on the device; those of an ablation on data in host memory, those of a script "
    "with its own loading. Time per epoch includes loading data: where it gains less than the step does, look at the "
    "time spent waiting for data.",
    "Peak memory is the steady peak of tensors on a GPU and of resident memory on a CPU, with one precision "
    "alone in its process.",
    '"–": not measured, or a difference too small to be resolved. A word such as oom, unsupported, nonfinite, invalid, '
    "timeout or failed replaces a figure that could not be measured; the notes say why.",
    "A verdict on parity of accuracy, or of the loss of tokens, needs at least 5 seeds: two runs that differ only in "
    "their seed differ, too, in accuracy by some tenths of a point.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page under one heading."""

    title: str
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Whole sentences."""
    plots: list[Chart] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The contents of the page, in order."""

    title: str
    facts: list[str]
    """Devices, models, dates and versions of torch."""
    lead: list[Sentence]
    strayed: Sentence
    """A sentence that names the precisions whose products ran in other types."""
    grid: Grid
    architectures: list[Table]
    """A table for each workload, of every precision on each device."""
    verdicts: Sequence[Answer]
    """With the evidence for each."""
    stalled: list[str]
    """Why there is no advice although something is faster."""
    lists: dict[str, list[str]]
    """Sentences under headings: on data missing and on other differences between the runs, on what no device supports
    or holds, the warnings while measuring, and sources of published rows."""
    speedups: list[Chart]
    """The figures that are shown first: speedup against batch size, of each workload."""
    headline: list[Chart]
    """The other figures of all workloads."""
    sections: list[Section]
    reproduce: list[dict[str, str]]
    """The ``label``, ``command`` and ``environment`` of each run."""
    precisions: list[str]
    """Those of the page's bar."""
    choices: dict[str, list[tuple[str, str]]]
    """The values of each control of the page's bar, and their labels."""
    unfolded: dict[str, Table | None]
    """What the page shows of an answer when its line is unfolded, by its subject."""
    tints: dict[str, str]
    """The tint of each device, by its label."""
    findings: list[Findings]
    """The phases' results; those without a heading stand next to the answers."""
    faults: list[str]
    """Faults of the runs' files, for the terminal."""
    how_to_read: Sequence[str] = HOW_TO_READ
    """Sentences on how to read the figures."""

    @property
    def sentences(self) -> list[str]:
        """The sentences next to the answers."""
        beside = list(self.stalled)
        for group in self.findings:
            if not group.heading:
                beside += [finding.sentence for finding in group.findings]
        return beside

    @property
    def plots(self) -> list[Chart]:
        """Every figure, in order."""
        of_parts = [*(group.charts for group in self.findings), *(section.plots for section in self.sections)]
        return [*self.speedups, *self.headline, *itertools.chain(*of_parts)]

    @property
    def files(self) -> list[str]:
        """The names of its files but for the pages."""
        plots = [f"{plot.name}.{kind}" for plot in self.plots if plot.in_files for kind in ("png", "svg")]
        return sorted([SUMMARY, *plots])


def publish(runs: Runs, out: Path, *, with_published: bool = False, figures: devices.Choice = "overview") -> Report:
    """Write the report of ``runs`` and delete files that only the previous report had.

    The arguments are those of ``bench.report.report``.
    """
    literature = published.load_published() if with_published else None
    out.mkdir(parents=True, exist_ok=True)
    report = compose(runs, out, literature, figures=figures)
    for name, text in render(report, mark({run.folder: run.info for run in runs.runs})).items():
        write_atomically(out / name, text)
    _replace(out / FILES, report.files)
    return report


def _replace(manifest: Path, files: list[str]) -> None:
    """Write the list of a report's files, and delete files of the previous report that are not on it."""
    previous = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else []
    write_atomically(manifest, json.dumps(files, indent=1) + "\n")
    for name in previous:
        if name not in files:
            (manifest.parent / Path(name).name).unlink(missing_ok=True)  # nothing outside the folder


def compose(
    runs: Runs, out: Path, literature: pd.DataFrame | None = None, *, figures: devices.Choice = "overview"
) -> Report:
    """Build the report, and write its figures into ``out``; ``literature`` holds published figures to show, too."""
    summary = summarise(runs.trials)
    write_atomically(out / SUMMARY, as_csv(arms(summary)))
    rows, drawn, on_published = without_unsupported(summary), summary, []
    if literature is not None:
        others = published.beside(summary, literature)
        rows = pd.concat([rows, others], ignore_index=True).copy()
        drawn = pd.concat([summary, others[others["batch_size"].notna()]], ignore_index=True).copy()
        on_published = published.remarks(others)
    material = Material(runs=runs, summary=summary, rows=rows, figures=figures)
    given, phases = material.answers, parts().values()
    findings = [group for phase in phases for group in phase.findings(material)]
    described: list[Described] = []
    if figures == "none":
        findings = [replace(group, charts=[]) for group in findings]
    else:
        described += devices.charts(drawn, figures)
        described += telemetry_figures.courses(runs)
        for phase in phases:
            described += phase.charts(material)
    of_findings: list[Described] = [("", chart) for group in findings for chart in group.charts]
    with _drawing([*described, *of_findings], out) as drawing:
        sections = _sections(material)
        charts = iter([each.result() for each in drawing])
    plots: list[Chart] = []
    for (title, _), chart in zip(described, charts, strict=False):
        sections.setdefault(title, Section(title=title))
        if isinstance(chart, str):
            sections[title].remarks.append(chart)
        elif chart is not None:
            (plots if title == OVERVIEW else sections[title].plots).append(chart)
    findings = [replace(group, charts=[next(charts) for _ in group.charts]) for group in findings]
    return Report(
        title=f"FP32 against mixed precision: {', '.join(run.label for run in runs.runs)}",
        facts=facts(runs, summary),
        lead=lead(given),
        strayed=strayed(given),
        grid=grid(given),
        architectures=measurements.architectures(rows, given),
        verdicts=given,
        stalled=stalled(given),
        lists={
            "Before comparing": comparability.cautions(runs),
            "Failed": diagnostics.failures(runs),
            "Warnings while measuring": diagnostics.warnings(runs.runs),
            "Not measured": diagnostics.not_measured(summary, runs),
            "Published": on_published,
        },
        speedups=[plot for plot in plots if plot.name.startswith(devices.SPEEDUP)],
        headline=[plot for plot in plots if not plot.name.startswith(devices.SPEEDUP)],
        sections=[part for part in sections.values() if part.tables or part.remarks or part.plots],
        reproduce=[_origin(run) for run in runs.runs],
        precisions=sorted(map(str, drawn["precision"].unique()), key=precision_rank),
        choices={
            name: [("", "all"), *dict.fromkeys(zip(rows[column], rows[label], strict=True))]
            for name, (column, label) in CONTROLS.items()
            if rows[column].nunique() > 1
        },
        unfolded=measurements.unfolded(rows, given),
        tints=devices.tints_of(drawn),
        findings=findings,
        faults=comparability.of_files(runs),
    )


def facts(runs: Runs, summary: pd.DataFrame) -> list[str]:
    """Return what the header says of the whole: how many devices and models, when, and with which torch."""
    hosts = {run.label: run.environment.get("host") for run in runs.runs}
    boards = set()
    for run, architecture, members, names in summary[["run", "architecture", "members", "device_names"]].to_numpy():
        for board in itertools.zip_longest(listed(members), json.loads(names)):
            boards.add((hosts[run], architecture, *board))
    counts = {"device": len(boards), "model": summary["suite"].nunique()}
    dates = sorted(str(run.info["started"])[:10] for run in runs.runs if run.info.get("started"))
    when = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
    versions = ", ".join(filter(None, dict.fromkeys(run.environment.get("torch") for run in runs.runs)))
    texts = [*(counted(count, what) for what, count in counts.items() if count), when]
    return [*filter(None, [*texts, versions and f"torch {versions}"])]


def _origin(run: Run) -> dict[str, str]:
    """Return the command and the environment to make a run's figures again."""
    words = run.part("request").get("argv") or []
    command = shlex.join(["python", "run_bench.py", *map(str, words)]) if words else ""
    versions = {"ampmeter": run.info.get("version"), **run.environment}
    environment = ", ".join(f"{name} {versions[key]}".strip() for key, name in SOFTWARE.items() if versions.get(key))
    return {"label": run.label, "command": command, "environment": environment}


Described = tuple[str, Chart | str | Callable[[], Chart | None] | None]
"""A chart, a function that describes one, or a remark on one that is left out, and the place of its section; of no
section it is ``OVERVIEW``."""


@contextmanager
def _drawing(described: Sequence[Described], out: Path) -> Iterator[list[Future[Any]]]:
    """Draw charts in two processes, for that takes longer than all else of a report; remarks stay as they are.

    Ctrl-C goes to all processes of a terminal; those that draw start with it blocked, and are killed by this one.
    """
    # Forks are safe here: a process that reports has no other thread, as BLAS ends its own before a fork. They have
    # what is to be drawn without its being sent.
    with ProcessPoolExecutor(DRAWERS, get_context("fork"), _begin, (os.getpid(), described, out)) as drawers:
        try:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                drawing = [drawers.submit(_draw, place) for place in range(len(described))]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield drawing
        except BaseException:
            for process in active_children():
                process.kill()
            raise


_work: tuple[Sequence[Described], Path] = ((), Path())
"""In a process that draws: all charts, and the folder of the report."""


def _begin(parent: int, described: Sequence[Described], out: Path) -> None:
    """Begin a process that draws, which ends when the parent does."""
    global _work  # noqa: PLW0603 - an initializer has no other way to hand something on
    lifetime.end_with(parent)
    _work = described, out


def _draw(place: int) -> Chart | str | None:
    """Draw a chart, in a process that draws."""
    from bench.report.figures.draw import draw  # only here, for matplotlib takes half a second to import

    described, out = _work
    chart = described[place][1]
    chart = chart() if callable(chart) else chart
    return draw(chart, out) if isinstance(chart, Chart) else chart


def entries() -> list[Entry]:
    """Return the tables of ``bench.report.tables``, and those of the phases."""
    of_phases = [entry for phase in parts().values() for entry in phase.tables]
    return [*diagnostics.TABLES, *telemetry.TABLES, *of_phases]


def _sections(material: Material) -> dict[str, Section]:
    """Return the sections in their order, by their titles."""
    by_recipe = material.rows.groupby("workload", sort=False)
    recipes = {str(name): replace(material, rows=rows) for name, rows in by_recipe}
    sections: dict[str, Section] = {}
    for entry in sorted(entries(), key=attrgetter("place")):
        parts_of = recipes if entry.section == RECIPE else {entry.section: material}
        for title, part in parts_of.items():
            section = sections.setdefault(title, Section(title=title))
            for made in entry.make(part):
                if isinstance(made, str):
                    section.remarks.append(made)
                elif made is not None:
                    section.tables.append(made)
    return sections
