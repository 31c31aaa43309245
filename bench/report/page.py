"""The report: its contents, and the files in its folder."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from markupsafe import Markup

from bench.report import published
from bench.report.analysis import comparability
from bench.report.analysis.lead import Grid, Sentence, grid, lead, other_types_sentence
from bench.report.analysis.verdict import Answer, stalled
from bench.report.figures import devices
from bench.report.figures.chart import Chart, Choice
from bench.report.format import counted
from bench.report.frames import arms, as_csv
from bench.report.parts import OVERVIEW, Findings, parts
from bench.report.reading.load import Run, Runs
from bench.report.render import render
from bench.report.tables import diagnostics, measurements
from bench.report.tables.table import EACH_RECIPE, Entry, Material, Table, material_of
from bench.spec.precisions import precision_rank

# The list of the figures and CSVs of the report in a folder, which the next report deletes.
FILES = "files.json"
SUMMARY = "summary.csv"
HOW_TO_READ = (
    "A speedup is fp32's step time divided by the other precision's: 2 is twice as fast, below 1 "
    "is slower. For precisions timed side by side it is a trimmed mean over their ABBA rounds, and "
    "step (ms) is a median over blocks, so the ratio of two steps differs from the speedup by "
    "chance. Intervals are 95 % over fresh processes. With "
    '"one process", an interval holds within that process only; another process may land outside '
    "it.",
    "FASTER and SLOWER: the whole interval lies further from 1 than the A/A noise, which is how "
    "far fp32 measured against itself was from 1 on this machine (1 % where that was not "
    "measured). SAME: the interval lies within 1 %. INCONCLUSIVE: none of these.",
    "Steps are timed on data already on the device; those of an ablation on data in host memory, "
    "those of a script with its own loading. Time per epoch includes loading data: where it gains "
    "less than the step does, look at the time spent waiting for data.",
    "Peak memory is the steady peak of tensors on a GPU, and on a CPU what resident memory grew by "
    "from before the model was built, with one precision alone in its process.",
    '"–": not measured, or a difference too small to be resolved. A word such as oom, unsupported, '
    "nonfinite, invalid, timeout or failed replaces a figure that could not be measured; the notes "
    "say why.",
    "A verdict on parity of accuracy, or of the loss of tokens, needs at least 5 seeds: two runs "
    "that differ only in their seed differ, too, in accuracy by some tenths of a point.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page under one heading."""

    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Whole sentences."""
    plots: list[Chart] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show under the heading."""
        return not (self.tables or self.remarks or self.plots)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The contents of the page, in order."""

    title: str
    facts: list[str]
    """Devices, models, dates and versions of torch."""
    lead: list[Sentence]
    other_types: Sentence
    """A sentence that names the precisions whose products ran in other types."""
    grid: Grid
    by_workload: list[Table]
    """A table for each workload, of every precision on each device."""
    verdicts: Sequence[Answer]
    """With the evidence for each."""
    stalled: list[str]
    """Why there is no advice although something is faster."""
    lists: dict[str, list[str]]
    """Sentences under headings: on data missing and on other differences between the runs, on what
    no device supports or holds, and the warnings while measuring."""
    speedups: list[Chart]
    """The figures that are shown first: speedup against batch size, of each workload."""
    headline: list[Chart]
    """The other figures of all workloads."""
    sections: dict[str, Section]
    """By their titles."""
    reproduce: list[dict[str, str]]
    """The ``label`` and the ``command`` of each run; its environment is in the table of
    machines."""
    precisions: list[str]
    """Those of the page's bar."""
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
    def charts(self) -> list[Chart]:
        """All figures, in the order of the page."""
        charts = [*self.speedups, *self.headline]
        for group in self.findings:
            charts += group.charts
        for section in self.sections.values():
            charts += section.plots
        return charts


def publish(
    runs: Runs, out: Path, *, with_published: bool = False, figures: Choice = "overview"
) -> Report:
    """Write the report of ``runs`` and delete files that only the previous report had.

    It is written into a folder of its own and moved when it is whole, so an interruption leaves the
    previous report. The arguments are those of ``bench.report.report``.
    """
    material = material_of(runs, figures)
    report = compose(material, with_published=with_published)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".report-", dir=out) as scratch:
        folder = Path(scratch)
        texts = {SUMMARY: as_csv(arms(material.summary))}
        texts |= render(report, _draw_all(report.charts, folder))
        # Not the texts of fixed names, which the next report replaces anyway.
        listed = sorted([SUMMARY, *(path.name for path in folder.iterdir())])
        texts[FILES] = json.dumps(listed, indent=1) + "\n"
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        manifest = out / FILES
        previous = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else []
        for path in sorted(folder.iterdir()):
            path.replace(out / path.name)
    for name in set(previous) - set(listed):
        (out / Path(name).name).unlink(missing_ok=True)  # nothing outside the folder
    return report


def _draw_all(charts: Sequence[Chart], folder: Path) -> dict[str, Markup]:
    """Draw figures into a folder; return their elements of the page, by their names."""
    if not charts:
        return {}
    # Only here, for matplotlib takes half a second to import.
    from bench.report.figures.draw import draw

    return {chart.name: draw(chart, folder) for chart in charts}


def compose(material: Material, *, with_published: bool = False) -> Report:
    """Return what a report says; nothing is drawn or written yet."""
    runs, summary, answers = material.runs, material.summary, material.answers
    findings: list[Findings] = []
    for phase in parts().values():
        findings += phase.findings(material)
    sections = _tables(material)
    if material.figures == "none":
        findings = [replace(group, charts=()) for group in findings]
    else:
        _add_charts(sections, material)
    if with_published:
        sections[published.SECTION].tables.append(published.published_table())
    overview = sections[OVERVIEW].plots
    del sections[OVERVIEW]
    return Report(
        title=f"FP32 against mixed precision: {', '.join(run.label for run in runs.runs)}",
        facts=facts(runs, summary),
        lead=lead(answers),
        other_types=other_types_sentence(answers),
        grid=grid(answers),
        by_workload=measurements.by_workload(material.rows, answers),
        verdicts=answers,
        stalled=stalled(answers),
        lists={
            "Before comparing": comparability.cautions(runs),
            "Failed": diagnostics.failures(runs),
            "Warnings while measuring": diagnostics.warnings(runs.runs),
            "Not measured": diagnostics.not_measured(summary, runs),
        },
        speedups=[chart for chart in overview if chart.name.startswith(devices.SPEEDUP)],
        headline=[chart for chart in overview if not chart.name.startswith(devices.SPEEDUP)],
        sections={title: section for title, section in sections.items() if not section.is_empty},
        reproduce=[_origin(run) for run in runs.runs],
        precisions=sorted(map(str, summary["precision"].unique()), key=precision_rank),
        unfolded=measurements.unfolded(material.rows, answers),
        tints=devices.tints_of(summary),
        findings=findings,
        faults=comparability.unfinished(runs),
    )


def facts(runs: Runs, summary: pd.DataFrame) -> list[str]:
    """Return what the header says of the whole: how many devices and models, dates, versions."""
    texts = [
        counted(summary["label"].nunique(), "device"),
        counted(summary["suite"].nunique(), "model"),
    ]
    dates = sorted(str(run.info["started"])[:10] for run in runs.runs if run.info.get("started"))
    if dates:
        texts.append(" to ".join(dict.fromkeys([dates[0], dates[-1]])))
    versions = dict.fromkeys(run.environment.get("torch") for run in runs.runs)
    return texts + [f"torch {version}" for version in versions if version]


def _origin(run: Run) -> dict[str, str]:
    """Return the command to make a run's figures again, as far as run.json tells."""
    words = ["python", "run_bench.py", *map(str, run.part("request").get("argv") or [])]
    return {"label": run.label, "command": shlex.join(words)}


def entries() -> list[Entry]:
    """Return the tables of ``bench.report.tables``, and those of the phases, in their order."""
    found = list(diagnostics.TABLES)
    for phase in parts().values():
        found += phase.tables
    return sorted(found, key=attrgetter("place"))


def _tables(material: Material) -> dict[str, Section]:
    """Return the sections by their titles, with their tables, in the order of the entries.

    A title that is new, such as that of a figure, adds a section.
    """
    recipes = list(material.recipes())
    # A section is asked for even where its first table is empty, so that those of all recipes keep
    # the order of the recipes.
    sections: dict[str, Section] = defaultdict(Section)
    for entry in entries():
        of_sections = recipes if entry.section == EACH_RECIPE else [(entry.section, material)]
        for title, of_section in of_sections:
            section = sections[title]
            for made in entry.make(of_section):
                if isinstance(made, str):
                    section.remarks.append(made)
                elif made is not None:
                    section.tables.append(made)
    return sections


def _add_charts(sections: dict[str, Section], material: Material) -> None:
    """Add the figures, and remarks in place of figures, to their sections."""
    placed: list[tuple[str, Chart | str | None]] = list(
        devices.charts(material.summary, material.figures)
    )
    for phase in parts().values():
        placed += phase.charts(material)
    for title, chart in placed:
        if isinstance(chart, str):
            sections[title].remarks.append(chart)
        elif chart is not None:
            sections[title].plots.append(chart)
