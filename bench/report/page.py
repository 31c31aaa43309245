"""The report: its contents, and the files in its folder."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.analysis import ablation, bottleneck, comparability, explanation, factors, matrix, missing, scaling
from bench.report.analysis.lead import Part, lead
from bench.report.analysis.literature import load_published
from bench.report.analysis.memory import memory_change
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import Answer, Sentence, sentences
from bench.report.exports import data
from bench.report.figures import ablation as ablation_figures
from bench.report.figures import comparisons as comparison_figures
from bench.report.figures import devices, files, overview
from bench.report.figures import explanation as explanation_figures
from bench.report.figures import matrix as matrix_figures
from bench.report.figures import numerics as numerics_figures
from bench.report.figures.figure import Plot
from bench.report.format import known
from bench.report.reading.folders import mark
from bench.report.reading.labels import slugs
from bench.report.reading.load import CELL, KEY, Run, Runs
from bench.report.render import render
from bench.report.tables import ablation as ablation_tables
from bench.report.tables import comparisons, diagnostics, measurements, numerics, training
from bench.report.tables import explanation as explanation_tables
from bench.report.tables.answers import Grid, grid
from bench.report.tables.literature import literature_tables
from bench.report.tables.published import published_beside
from bench.report.tables.table import Table
from bench.report.tables.why import Why
from bench.results.csv_file import PAIR
from bench.results.files import write_atomically
from bench.results.records import MEASURED
from bench.spec import lifetime
from bench.spec.metrics import learned
from bench.spec.precisions import BASELINE, precision_rank

STRIP = "speedup over fp32, 95 % interval"
OVERVIEW = ""
OVERVIEWS = (devices.ACROSS, overview.MEMORY, *(metric.name for metric in learned()))
"""The figures of the whole report, in order."""
MOST_PLOTS = 3
"""Most figures of single devices in report.md; the others are in details.md."""
FILES = "files.json"
"""The list of the figures and CSVs of the report in a folder."""
RESIDENT = (
    "Steps are timed on data already on the device. Time per epoch includes loading data; where it gains less "
    "than the step does, look at the time spent waiting for data."
)
LOADED = (
    "An ablation's steps are timed with the loader that feeds them: the step and the time per epoch include loading "
    "data."
)
NO_NOTES = "Every trial was measured, and no interval within a process is wider than was asked for."
HOW_TO_READ = (
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
    "In a matrix of setups each figure says how many times as fast the row is as the column. Between precisions timed "
    "side by side its interval is the paired one, else Welch's over the processes or seeds of each: that of these very "
    "boards, and another board of the same name may differ by more.",
    '"–": not measured. A word such as oom, unsupported, nonfinite, invalid, timeout or failed replaces '
    "a figure that could not be measured; the notes say why.",
    "A verdict on parity of accuracy, or of the loss of tokens, needs at least 5 seeds: two runs that differ only in "
    "their seed differ, too, in accuracy by some tenths of a point.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page under one heading."""

    title: str
    tables: list[Table]
    remarks: list[str] = field(default_factory=list)
    """Whole sentences."""
    plots: list[Plot] = field(default_factory=list)
    more: list[Table] = field(default_factory=list)
    """Tables of figures that the page has in the details of its grid, or in a figure; details.md has them first."""
    csvs: list[str] = field(default_factory=list)
    """Names of files in the report's folder that the tables refer to."""
    why: list[Why] = field(default_factory=list)
    """Why each precision of the section's workload gains, or does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """How to make one run's figures again."""

    label: str
    command: str
    environment: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The contents of the page, in order."""

    title: str
    facts: list[str]
    """What was compared, when, with which torch."""
    lead: list[list[Part]]
    grid: Grid
    verdicts: list[Sentence]
    cautions: list[str]
    """Data missing from the runs, and differences between them other than those being compared."""
    missing: list[str]
    """What no device supports, or holds."""
    warnings: list[str]
    remarks: list[str]
    """What limits where."""
    headline: list[Plot]
    """The figures that are shown first."""
    sections: list[Section]
    how_to_read: list[str]
    reproduce: list[Origin]
    precisions: list[str]
    """Those of the grid."""
    drawn: list[str]
    """Those that figures show."""
    choices: dict[str, list[tuple[str, str]]]
    """What the control bar offers: for each control values, and what they are called."""
    data: dict[str, Any]
    """What the page's script draws from."""
    why: list[Section]
    """A section for each workload that was explained."""
    ablations: list[Table]
    """Short tables of the ablations, for the terminal."""
    failures: list[str]
    """What failed, for the terminal."""

    @property
    def strip(self) -> str:
        """The heading of the grid's strips."""
        return STRIP

    @property
    def other_verdicts(self) -> list[str]:
        """Verdicts that are in no grid: those of ablations."""
        return [str(sentence) for sentence in self.verdicts if sentence.answer is None]

    @property
    def cautioned(self) -> list[str]:
        """The headings of lists that are not empty."""
        lists = {
            "Before comparing": self.cautions,
            "Warnings while measuring": self.warnings,
            "Not measured": self.missing,
        }
        return [name for name, lines in lists.items() if lines]

    @property
    def plots(self) -> list[Plot]:
        """Every figure, in order."""
        return [*self.headline, *(plot for section in [*self.why, *self.sections] for plot in section.plots)]

    @property
    def files(self) -> list[str]:
        """The names of the report's files beside its pages."""
        plots = [f"{plot.name}.{kind}" for plot in self.plots if plot.in_files for kind in ("png", "svg")]
        return sorted({"details.md", *plots, *(name for section in self.sections for name in section.csvs)})


def publish(
    runs: Runs, out: Path, *, published: bool = False, layers: bool = False, figures: devices.Choice = "overview"
) -> tuple[Path, list[Sentence], list[Table], list[str], list[Why]]:
    """Write the report of ``runs`` and delete files that only the previous report had.

    The arguments are those of ``bench.report.report``.
    """
    literature = load_published() if published else None
    out.mkdir(parents=True, exist_ok=True)
    report = compose(runs, out, literature, layers=layers, figures=figures)
    for name, text in render(report, mark({run.folder: run.info for run in runs.runs})).items():
        write_atomically(out / name, text)
    _replace(out / FILES, report.files)
    return (
        out / "report.md",
        report.verdicts,
        report.ablations,
        report.failures,
        [one for section in report.why for one in section.why],
    )


def _replace(manifest: Path, files: list[str]) -> None:
    """Write the list of a report's files, and delete files of the previous report that are not on it."""
    previous = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else []
    write_atomically(manifest, json.dumps(files, indent=1) + "\n")
    for name in set(previous) - set(files):
        if name == Path(name).name:  # never delete outside the folder
            (manifest.parent / name).unlink(missing_ok=True)


@contextmanager
def _second_process() -> Iterator[ProcessPoolExecutor]:
    """Give a process to draw figures in, which ends with this one, and at once where this one is interrupted.

    Ctrl-C goes to both: that process starts, and stays, with signals blocked.
    """
    with ProcessPoolExecutor(1, get_context("fork"), lifetime.end_with, (os.getpid(),)) as other:
        try:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                other.submit(os.getpid)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield other
        except BaseException:
            for process in active_children():
                process.kill()
            raise


def compose(
    runs: Runs,
    out: Path,
    literature: pd.DataFrame | None = None,
    *,
    layers: bool = False,
    figures: devices.Choice = "overview",
) -> Report:
    """Build the report and draw its figures into ``out``; ``literature`` holds published results to compare with."""
    summary, ablations = summarise(runs.trials), ablation.ablations(runs)
    supported = missing.without_unsupported(summary)
    explained = _why_sections(runs, supported)
    matrices, sweeps = matrix.matrices(summary), factors.varied(summary, runs)
    with _second_process() as other:  # figures take as long as tables
        drawing = of_memory = None
        if figures != "none":
            drawing = other.submit(
                _draw,
                out,
                summary,
                epochs=runs.epochs,
                figures_of_numerics=runs.numerics,
                matrices=matrices,
                ablations=ablations,
                sweeps=sweeps,
                memory=devices.memories(runs.runs),
                layers=layers,
                figures=figures,
            )
        verdicts = [*sentences(summary), *map(ablation_tables.sentence, ablations)]
        answers = [verdict.answer for verdict in verdicts if verdict.answer is not None]
        if drawing and (kinds := overview.memory_by_kind(summary, runs.trials, answers)) is not None:
            of_memory = other.submit(files.draw, kinds, out)
        stacked = [
            other.submit(files.draw, explanation_figures.stacked(f"{name}-why", section.title, _pairs(section)), out)
            for name, section in zip(slugs([section.title for section in explained]), explained, strict=True)
            if drawing
        ]
        tried = runs.trials[runs.trials["status"] != missing.UNSUPPORTED]
        notes = present(
            diagnostics.unsupported(runs.trials),
            diagnostics.notes(pd.concat([tried, runs.ablations], ignore_index=True)),
        )
        sections = [
            Section(title="Machines", tables=present(*diagnostics.machines(runs.runs))),
            *_matrices(matrices, out),
            *(Section(title=one.name, tables=present(ablation_tables.full(one))) for one in ablations),
            *(Section(title=one.title, tables=present(comparisons.along(one))) for one in sweeps),
            *_recipes(supported, runs, literature),
            Section(title="Published figures", tables=[] if literature is None else literature_tables(literature)),
            Section(title="Formats of numbers", tables=present(numerics.formats()) if len(runs.numerics) else []),
            Section(title="Precision switches", tables=present(diagnostics.switches(runs.trials))),
            Section(title="Notes", tables=notes, remarks=[] if notes else [NO_NOTES]),
        ]
        plots, left_out = drawing.result() if drawing else ([], {})
        plots += [(OVERVIEW, of_memory.result())] if of_memory else []
        for section, figure in zip(explained, stacked, strict=False):  # none where nothing is drawn
            section.plots.append(figure.result())
    by_title = {section.title: section for section in sections}
    headline: list[Plot] = []
    for title, plot in plots:
        (headline if title == OVERVIEW else by_title[title].plots).append(plot)
    headline.sort(key=lambda plot: OVERVIEWS.index(plot.name))
    for title, remark in left_out.items():
        by_title[title].remarks.append(remark)
    precisions = sorted(map(str, summary["precision"].unique()), key=precision_rank)
    stepped = [str(name) for one in ablations for name in one.rows["precision"]]
    return Report(
        title=f"FP32 against mixed precision: {', '.join(run.label for run in runs.runs)}",
        facts=facts(runs, summary),
        lead=lead(answers),
        grid=grid(verdicts, summary),
        verdicts=verdicts,
        cautions=comparability.cautions(runs),
        missing=missing.sentences(summary, runs),
        warnings=diagnostics.warnings(runs.runs),
        remarks=bottleneck.epoch_remarks(supported) + bottleneck.loader_remarks(supported),
        headline=headline
        if any(plot.name == devices.ACROSS for plot in headline)
        else _single(sections, answers) + headline,
        sections=[one for one in sections if one.tables or one.more or one.remarks or one.plots],
        how_to_read=how_to_read(runs),
        reproduce=[_origin(run) for run in runs.runs],
        precisions=precisions,
        drawn=list(dict.fromkeys([*precisions, *stepped])),
        choices=_choices(summary, precisions),
        data={
            "baseline": BASELINE,
            "precisions": precisions,
            "answers": data.answers(answers),
            "length": len(summary),
            "columns": data.columnar(data.rows(summary, data.PAGE)),
            "pairs": data.pairs(summary),
            "matrices": {
                one.slug: data.ratios(one) for one in matrices if len(one.setups) <= matrix_figures.MOST_SETUPS
            },
        },
        why=explained,
        ablations=present(*map(ablation_tables.short, ablations)),
        failures=[
            *diagnostics.failures(pd.concat([tried, runs.ablations], ignore_index=True)),
            *([] if explained else _unexplained(runs.trials)),
        ],
    )


def _choices(summary: pd.DataFrame, precisions: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Return what the control bar offers."""

    def each(column: str, label: str) -> list[tuple[str, str]]:
        return list(dict.fromkeys(zip(summary[column].map(str), summary[label].map(str), strict=True)))

    sizes = [(str(size), str(size)) for size in sorted(map(int, summary["batch_size"].unique()))]
    offered = {
        "model": [("", "all"), *each("workload", "workload")],
        "device": [("", "all"), *each("where", "label")],
        "batch": [("", "as advised"), *sizes],
    }
    several = {name: choices for name, choices in offered.items() if len(choices) > 2}
    return several | {"baseline": [(name, name) for name in precisions]}


def facts(runs: Runs, summary: pd.DataFrame) -> list[str]:
    """Return what the header says of the whole: how many devices and models, when, and with which torch."""
    dates = sorted(str(run.info["started"])[:10] for run in runs.runs if run.info.get("started"))
    versions = dict.fromkeys(str(run.environment["torch"]) for run in runs.runs if run.environment.get("torch"))
    when = dates[:1] if dates[:1] == dates[-1:] else [f"{dates[0]} to {dates[-1]}"]
    counts = [("device", summary["where"].nunique()), ("model", summary["suite"].nunique())]
    counted = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts if count]
    return [*counted, *when, *([f"torch {', '.join(versions)}"] if versions else [])]


def _origin(run: Run) -> Origin:
    words = run.part("request").get("argv") or []
    machine = run.environment
    names = {"torch": "torch", "cuda": "CUDA", "cudnn": "cuDNN", "driver": "driver", "python": "Python", "os": ""}
    parts = [f"{name} {machine[key]}".strip() for key, name in names.items() if machine.get(key)]
    version = [f"ampmeter {run.info['version']}"] if run.info.get("version") else []
    command = shlex.join(["python", "run_bench.py", *map(str, words)]) if words else ""
    return Origin(label=run.label, command=command, environment=", ".join([*version, *parts]))


def _single(sections: list[Section], answers: list[Answer]) -> list[Plot]:
    """Take the figures of single devices that report.md shows out of their sections.

    They are those of speed, and of the trainings at the answers' batch sizes; where there are none, the first.
    """
    ends = ("-speed", *(f"-training-b{answer.batch}" for answer in answers))
    every = [(section, plot) for section in sections for plot in section.plots]
    taken = ([one for one in every if one[1].name.endswith(ends)] or every)[:MOST_PLOTS]
    for section, plot in taken:
        section.plots.remove(plot)
    return [plot for _, plot in taken]


def _draw(
    out: Path,
    summary: pd.DataFrame,
    *,
    epochs: pd.DataFrame,
    figures_of_numerics: pd.DataFrame,
    matrices: list[matrix.Matrix],
    ablations: list[ablation.AblationSummary],
    sweeps: list[factors.Varied],
    memory: devices.Memory,
    layers: bool,
    figures: devices.Choice,
) -> tuple[list[tuple[str, Plot]], dict[str, str]]:
    """Draw all figures; return each with its section's title, and a remark by title on figures left out.

    Those of no section have ``OVERVIEW`` for a title.
    """
    charts, left_out = devices.charts(summary, epochs, memory, figures)
    charts += [(OVERVIEW, devices.across(summary))]
    charts += [(OVERVIEW, overview.differences(summary, metric)) for metric in learned()]
    charts += [(_title(one), matrix_figures.heat_map(one)) for one in matrices]
    charts += [(one.name, ablation_figures.waterfall(one)) for one in ablations]
    charts += [(one.title, comparison_figures.against_value(one)) for one in sweeps]
    for by_layer in (False, True) if layers else (False,):
        charts += numerics_figures.charts(summary, figures_of_numerics, layers=by_layer)
    return [(title, files.draw(chart, out)) for title, chart in charts if chart is not None], left_out


def how_to_read(runs: Runs) -> list[str]:
    """Return the lines of ``HOW_TO_READ`` that apply to these runs."""
    only_ablations = not runs.ablations.empty and runs.trials["phase"].eq("train").all()
    left_out = RESIDENT if only_ablations else LOADED if runs.ablations.empty else None
    return [line for line in HOW_TO_READ if line != left_out]


def _explained(runs: Runs, rows: pd.DataFrame) -> list[tuple[explanation.Explanation, str]]:
    """Return the explanations of one workload, each with what the summary calls its device."""
    if runs.explained.empty:
        return []
    counts = runs.trials[(runs.trials["phase"] == "explain") & runs.trials["status"].isin(MEASURED)]
    sound = runs.explained.merge(counts[["run", *PAIR]].drop_duplicates(), on=["run", *PAIR])
    named = sound.merge(rows[[*CELL, "where"]].drop_duplicates(), on=CELL)
    where = {tuple(cell): label for *cell, label in named[[*CELL, "where"]].drop_duplicates().to_numpy().tolist()}
    found = explanation.explanations(named)
    return [(one, str(where[tuple(one.cell[name] for name in CELL)])) for one in found]


def why(runs: Runs, summary: pd.DataFrame) -> list[Why]:
    """Return why each precision gains or does not, of all workloads that were explained."""
    return [
        Why(
            workload=str(title),
            where=where,
            one=one,
            memory=memory_change(runs.trials, one.cell, one.arm.precision),
        )
        for title, rows in summary.groupby("workload", sort=False)
        for one, where in _explained(runs, rows)
    ]


def _pairs(section: Section) -> list[tuple[explanation.Explanation, str]]:
    return [(one.one, one.where) for one in section.why]


def _unexplained(trials: pd.DataFrame) -> list[str]:
    """Return why there is no explanation although it was asked for; nothing where it was not."""
    rows = trials[(trials["phase"] == "explain") & (trials["status"] != "failed")]
    reasons = [str(reason) for reason in rows["detail"] if known(reason) and reason]
    text = reasons[0] if reasons else f"it takes {BASELINE} and another precision"
    return [f"Why? has no answer: {text}."] if len(rows) else []


def _why_sections(runs: Runs, summary: pd.DataFrame) -> list[Section]:
    """Return a section for each workload that was explained; its figure is drawn later."""
    sections: dict[str, Section] = {}
    for one in why(runs, summary):
        sections.setdefault(one.workload, Section(title=one.workload, tables=[])).why.append(one)
    for section in sections.values():
        found = _pairs(section)
        section.more.extend(present(explanation_tables.time_by_class(found)))
        section.tables.extend(
            present(
                explanation_tables.ceilings(found),
                explanation_tables.operators_alone(found),
            )
        )
    return list(sections.values())


def present(*tables: Table | None) -> list[Table]:
    """Return the tables that have rows."""
    return [table for table in tables if table is not None]


def _title(one: matrix.Matrix) -> str:
    return f"Setups of {one.title} against each other"


def _matrices(matrices: list[matrix.Matrix], out: Path) -> list[Section]:
    """Return a section for each recipe that several devices or runs measured; write its ratios as CSV."""
    sections = {title: Section(title=title, tables=[]) for title in map(_title, matrices)}
    for one in matrices:
        sections[_title(one)].remarks.extend(matrix_figures.remarks(one))
        sections[_title(one)].csvs.append(matrix_figures.file_name(one))
        matrix_figures.write_csv(one, out)
    return list(sections.values())


def _recipes(summary: pd.DataFrame, runs: Runs, literature: pd.DataFrame | None) -> Iterator[Section]:
    """Yield a section for each recipe, its tables in the order of the page."""
    hosts = diagnostics.hosts(runs.runs)
    for title, rows in summary.groupby("workload", sort=False):
        named = rows[[*KEY, "workload", "where"]]
        trials, figures = (named.merge(frame, on=KEY) for frame in (runs.trials, runs.numerics))
        scaled, unscaled = scaling.scaling(rows, summary, runs)
        against_published, unpublished = (None, []) if literature is None else published_beside(rows, runs, literature)
        more = present(*measurements.by_device(rows, hosts))
        tables = present(
            measurements.best_batch(rows),
            measurements.largest_batch(runs.trials, rows),
            *training.training(rows),
            measurements.energy(rows),
            measurements.memory(trials),
            diagnostics.what_ran(rows),
            diagnostics.conversions(trials),
            diagnostics.compiling(trials),
            diagnostics.how_timed(rows),
            *numerics.numerics(figures),
            measurements.inference(trials),
            comparisons.scaling(scaled),
            training.against_plain(runs.trials, rows),
            against_published,
        )
        remarks = unscaled + unpublished
        yield Section(title=str(title), tables=tables, more=more, remarks=remarks)
