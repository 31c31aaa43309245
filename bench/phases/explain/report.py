"""The section "Why?": where a step's time and memory go in each precision, and what holds it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import pandas as pd

from bench.phases.explain.reasons import CLASSES, NAMED, Change, Explanation, Step, explanations
from bench.report.figures import chart
from bench.report.figures.chart import WORK, Axis, Bar, Chart, Mark, Panel
from bench.report.format import (
    at_batch,
    capital,
    change,
    known,
    memory_unit,
    number,
    percent,
    signed,
)
from bench.report.parts import Finding, Findings, PhaseReport
from bench.report.reading.labels import slugs, subjects
from bench.report.reading.load import KEY, SUBJECT, Runs, load
from bench.report.tables.table import Table, figures, table, words
from bench.results.csv_file import PAIR
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE

HEADING = "Why?"
# Share of the peak up to which a change of memory is not reported.
SAME = 0.01
REST = "other"
# The tints of a step's parts, in their order: what was there before it, and classes of work.
PARTS: dict[str, str] = {
    "parameters": "parameters",
    "optimizer state": "optimizer",
    "batches": "gradients",
    **{str(work): tint for work, tint in WORK.items()},
    REST: chart.SOFT,
}


def explained(runs: Runs) -> list[Explanation]:
    """Return why each precision gains or does not, of all recipes that were explained."""
    if runs.details["explain_figures"].empty:
        return []
    trials = runs.trials
    measured = trials[(trials["phase"] == "explain") & trials["status"].isin(MEASURED)]
    sound = runs.details["explain_figures"].merge(
        measured[["run", *PAIR]].drop_duplicates(), on=["run", *PAIR]
    )
    peaks = trials[(trials["phase"] == "memory") & trials["status"].isin(MEASURED)]
    peaks = peaks.assign(
        kind="memory", value=peaks["peak_allocated_bytes"].fillna(peaks["peak_resident_bytes"])
    )
    every = pd.concat([sound, peaks[[*KEY, "kind", "value"]]], ignore_index=True)
    named = every.merge(subjects(trials)[[*SUBJECT, "workload", "where"]], on=SUBJECT)
    return explanations(named)


def explain(folders: list[Path]) -> list[Findings]:
    """Return the findings of some runs.

    Raises:
        UsageError: a folder is no run, or none of the runs was explained.
    """
    found = findings(load(folders))
    if not any(group.heading for group in found):
        raise UsageError(
            "There is nothing to explain: no run there measured the phase explain in fp32 and "
            "another precision. python run_bench.py explain --suite NAME measures it."
        )
    return found


def findings(runs: Runs) -> list[Findings]:
    """Return the findings of each recipe, or why there are none although they were asked for."""
    by_workload: dict[str, list[Explanation]] = {}
    for explanation in explained(runs):
        by_workload.setdefault(explanation.workload, []).append(explanation)
    if not by_workload:
        return _unexplained(runs.trials)
    found = []
    for name, (workload, group) in zip(slugs([*by_workload]), by_workload.items(), strict=True):
        answers, tables = [], []
        for explanation in group:
            classes = time_by_class(explanation)
            reasons = list(sentences(explanation))
            result = f"{number(explanation.speedup, 3)}× in the steps of this phase"
            answers.append(
                Finding(subject=explanation.subject, result=result, reasons=reasons, table=classes)
            )
            tables += [classes, *operators_changed(explanation)]
        charts = [chart_of(f"{name}-why", group)]
        found.append(
            Findings(
                heading=HEADING, title=workload, findings=answers, charts=charts, tables=tables
            )
        )
    return found


def _unexplained(trials: pd.DataFrame) -> list[Findings]:
    rows = trials[(trials["phase"] == "explain") & (trials["status"] != "failed")]
    if rows.empty:
        return []
    details = [str(detail) for detail in rows["detail"] if known(detail) and detail]
    reason = details[0] if details else f"it takes {BASELINE} and another precision"
    return [Findings(findings=[Finding(subject="No explanation", result=reason)])]


def time_by_class(explanation: Explanation) -> Table:
    """Return the time of one precision's step by class of work, and of the baseline's."""
    baseline, arm = explanation.baseline, explanation.arm
    rows = []
    for work in CLASSES:
        if baseline.ms[work] or arm.ms[work]:
            rows.append(Change(operator=work, before=baseline.ms[work], after=arm.ms[work]))
    extra_ms = [step.timed_ms - step.profiled_ms for step in (baseline, arm)]
    rows.append(Change(operator="the profiler's own time", before=extra_ms[0], after=extra_ms[1]))
    rows.append(Change(operator="the step", before=baseline.timed_ms, after=arm.timed_ms))
    return _compared(explanation, ("", "class of work"), rows)


def operators_changed(explanation: Explanation) -> Iterator[Table]:
    """Yield the operators whose time, and whose memory at the peak, changed most."""
    if rows := explanation.changed("operator"):
        headings = (
            ": operators whose time changed most",
            "operator, its module, sizes of its inputs",
        )
        yield _compared(explanation, headings, rows)
    if rows := explanation.changed("held"):
        unit, size, _ = memory_unit(
            max(explanation.baseline.peak_bytes, explanation.arm.peak_bytes)
        )
        headings = (
            ": memory at the peak that changed most",
            "what holds it: operator, its module, shape",
        )
        yield _compared(explanation, headings, rows, unit, size)


def _compared(
    explanation: Explanation,
    headings: tuple[str, str],
    changes: Sequence[Change],
    unit: str = "ms",
    size: float = 1.0,
) -> Table:
    """Return a table of figures in fp32 and in the precision, with their difference.

    ``headings`` are what the title adds to the subject, and that of the first column.
    """
    title, what = headings
    columns = [
        words(what, attrgetter("operator"), wrap=True),
        figures(f"{explanation.baseline.precision} ({unit})", attrgetter("before"), 3, per=size),
        figures(f"{explanation.arm.precision} ({unit})", attrgetter("after"), 3, per=size),
        figures(
            f"change ({unit})",
            lambda row: row.after - row.before,
            lambda value: signed(value, 3),
            per=size,
        ),
    ]
    shown = table(explanation.subject + title, changes, columns)
    assert shown is not None  # there are changes
    return shown


def sentences(explanation: Explanation) -> Iterator[str]:
    """Yield the causes, what holds the memory, and the techniques to try."""
    for reason in explanation.reasons:
        yield f"{capital(reason.sentence)}."
    if not explanation.reasons:
        yield _largest_part(explanation)
    yield from _memory(explanation)
    if tries := ",".join(explanation.techniques):
        is_script = explanation.cell["data"] == "script"
        measures = (
            "" if is_script else f" The same run with --ladder --techniques {tries} measures it."
        )
        yield f"Worth trying: {tries}.{measures}"


def _largest_part(explanation: Explanation) -> str:
    """Say what the precision's step spends most time in, where no rule found a cause."""
    baseline, arm = explanation.baseline, explanation.arm
    work = max(CLASSES, key=lambda work: arm.ms[work])
    return (
        f"Nothing was found that holds it back. The largest part of its step is {work}: "
        f"{arm.pct(work):.0f} %, {number(arm.ms[work], 3)} ms, and {number(baseline.ms[work], 3)} "
        "ms in fp32."
    )


def _memory(explanation: Explanation) -> Iterator[str]:
    """Yield how the peak of the tensors changed, where it is reached, and by what it rose or fell."""
    was, now = explanation.baseline.peak_bytes, explanation.arm.peak_bytes
    if not was or not now:
        return
    unit, size, _ = memory_unit(max(was, now))
    text = f"At the peak of a step its tensors hold {number(now / size, 3)} {unit}"
    if abs(now - was) < SAME * was:
        text += f", as in fp32 within {percent(SAME)}"
    else:
        text += f", and {number(was / size, 3)} {unit} in fp32 ({change((now - was) / was)})"
    parts = []
    for held in explanation.changed("held", shapes=False)[:NAMED]:
        more = held.after - held.before
        if abs(more) >= SAME * max(was, now):
            parts.append(f"{held.operator} {signed(more / size, 1)} {unit}")
    by = f": {'; '.join(parts)}" if parts else ""
    yield f"{text}{by}. The peak comes at {explanation.arm.peak_at}."


# The figure.


def chart_of(name: str, explained: Sequence[Explanation]) -> Chart:
    """Describe the steps of one workload: two panels, time and memory, for each device and batch size."""
    cells: dict[str, list[Step]] = {}
    for explanation in explained:
        title = f"{explanation.where}{at_batch(explanation.cell)}"
        cells.setdefault(title, [explanation.baseline]).append(explanation.arm)
    panels, shown = [], set[str]()
    for title, steps in cells.items():
        unit, size, _ = memory_unit(max(step.peak_bytes for step in steps))
        times = {step.precision: {str(work): ms for work, ms in step.ms.items()} for step in steps}
        memory = {step.precision: _held(step, size) for step in steps}
        panels.append(_panel(f"{title}: time", "ms a step", times))
        panels.append(_panel(f"{title}: memory at the peak", unit, memory))
        for parts in (*times.values(), *memory.values()):
            shown.update(part for part, value in parts.items() if value)
    return Chart(
        name=name,
        caption=f"Where a step's time and memory go: {explained[0].workload}",
        about="Time under torch.profiler, each instant in one class of work; tensors at the peak of "
        "a step, by the class of the operator that made them. Panels have axes of their own.",
        panels=panels,
        legend=[(part, tint) for part, tint in PARTS.items() if part in shown],
    )


def _held(step: Step, size: float) -> dict[str, float]:
    """Return what holds memory at the peak, in a unit; what has no class of work, such as views, is the rest."""
    held = step.of("held")
    parts = held["work"].where(held["work"] != "", held["name"])
    amounts = held["value"].groupby(parts.where(parts.isin([*PARTS]), REST)).sum() / size
    rest = step.peak_bytes / size - amounts.drop(REST, errors="ignore").sum()
    return {**amounts, REST: rest}


def _panel(title: str, unit: str, steps: Mapping[str, Mapping[str, float]]) -> Panel:
    """Describe a stacked bar for each precision."""
    marks: list[Mark] = []
    for place, parts in enumerate(steps.values()):
        start = 0.0
        for part, tint in PARTS.items():
            value = parts.get(part, 0.0)
            if value > 0:
                ends = (start, start + value)
                marks.append(Bar(x=ends, low=place + 0.15, high=place + 0.85, tint=tint))
                start += value
    longest = max(sum(parts.values()) for parts in steps.values())
    return chart.rows_panel(title, Axis(label=unit, low=0.0, high=1.03 * longest), [*steps], marks)


REPORT = PhaseReport(findings=lambda material: findings(material.runs))
