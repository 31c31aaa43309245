"""The section "Why?": where a step's time and memory go, and what holds a precision back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from bench.phases.explain import CLASSES
from bench.phases.explain.reasons import NAMED, Explanation, Step, explanations, side_by_side
from bench.report.figures import chart
from bench.report.figures.chart import WORK, Axis, Bar, Chart, Panel
from bench.report.format import (
    at_batch,
    capital,
    change,
    memory_unit,
    number,
    percent,
    records,
    signed,
)
from bench.report.parts import Finding, Findings, PhaseReport
from bench.report.reading.labels import slugs, subjects
from bench.report.reading.load import KEY, SUBJECT, Runs, load
from bench.report.tables.table import Table, make_table, number_column, text_column
from bench.results.csv_file import PAIR
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE

HEADING = "Why?"
# Share of the peak up to which a change of memory is not reported.
SAME = 0.01
# So that the rows add up to the step: negative unless steps were faster under the profiler.
PROFILER = "the profiler's own time, taken off"
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
    rows = runs.details["explain_figures"]
    if rows.empty:
        return []
    is_measured = runs.trials["status"].isin(MEASURED)
    trials = runs.trials[is_measured]
    of_arm = ["run", *PAIR]
    measured = trials[trials["phase"] == "explain"][of_arm].drop_duplicates()
    peaks = trials[trials["phase"] == "memory"]
    # As the memory phase's table: of a CPU the resident set, which torch's allocator does not show.
    peak_bytes = peaks["peak_allocated_bytes"].fillna(peaks["peak_resident_bytes"])
    peaks = peaks[KEY].assign(kind="memory", value=peak_bytes)
    figures_of_arms = rows.merge(measured, on=of_arm)
    every = pd.concat([figures_of_arms, peaks], ignore_index=True)
    names = subjects(runs.trials)[[*SUBJECT, "workload", "where"]]
    return explanations(every.merge(names, on=SUBJECT))


def explain(folders: list[Path]) -> list[Findings]:
    """Return the findings of some runs.

    Raises:
        UsageError: a folder is no run, or none of the runs was explained.
    """
    groups = findings(load(folders))
    if not any(group.heading for group in groups):
        raise UsageError(
            "There is nothing to explain: no run there measured the phase explain in fp32 and "
            "another precision. python run_bench.py explain --suite NAME measures it."
        )
    return groups


def findings(runs: Runs) -> list[Findings]:
    """Return the findings of each recipe, or why there are none although they were asked for."""
    by_workload: dict[str, list[Explanation]] = {}
    for explanation in explained(runs):
        workload = explanation.cell["workload"]
        by_workload.setdefault(workload, []).append(explanation)
    if not by_workload:
        return _unexplained(runs.trials)
    groups = []
    files = slugs([*by_workload])
    for file, (workload, of_workload) in zip(files, by_workload.items(), strict=True):
        answers = []
        tables = []
        for explanation in of_workload:
            classes = time_by_class(explanation)
            answer = Finding(
                subject=explanation.subject,
                result=f"{number(explanation.speedup, 3)}× in the steps of this phase",
                reasons=list(sentences(explanation)),
                table=classes,
            )
            answers.append(answer)
            tables += [classes, *operators_changed(explanation)]
        group = Findings(
            heading=HEADING,
            title=workload,
            findings=answers,
            charts=[chart_of(f"{file}-why", of_workload)],
            tables=tables,
        )
        groups.append(group)
    return groups


def _unexplained(trials: pd.DataFrame) -> list[Findings]:
    rows = trials[trials["phase"] == "explain"]
    rows = rows[rows["status"] != "failed"]
    if rows.empty:
        return []
    reason = f"it takes {BASELINE} and another precision"
    for detail in rows["detail"].dropna():
        if detail:
            reason = detail
            break
    finding = Finding(subject="No explanation", result=reason)
    return [Findings(findings=[finding])]


def time_by_class(explanation: Explanation) -> Table:
    """Return the time of one precision's step by class of work, and of the baseline's."""
    times = []
    for step in (explanation.baseline, explanation.arm):
        rest_ms = {
            PROFILER: step.timed_ms - step.profiled_ms,
            "the step": step.timed_ms,
        }
        times.append(pd.concat([step.ms, pd.Series(rest_ms)]))
    rows = side_by_side(*times)
    is_there = (rows["before"] != 0) | (rows["after"] != 0)
    return _compared(explanation, "", "class of work", rows[is_there])


def operators_changed(explanation: Explanation) -> Iterator[Table]:
    """Yield the operators whose time, and whose memory at the peak, changed most."""
    times = explanation.changed("operator")
    if not times.empty:
        what = "operator, its module, sizes of its inputs"
        yield _compared(explanation, ": operators whose time changed most", what, times)
    held = explanation.changed("held")
    if not held.empty:
        title = ": memory at the peak that changed most"
        what = "what holds it: operator, its module, shape"
        peak_bytes = max(explanation.baseline.peak_bytes, explanation.arm.peak_bytes)
        yield _compared(explanation, title, what, held, memory_unit(peak_bytes))


def _compared(
    explanation: Explanation,
    title: str,
    what: str,
    changes: pd.DataFrame,
    in_unit: tuple[str, float] = ("ms", 1.0),
) -> Table:
    """Return a table of figures in fp32 and in the precision, with their difference.

    Args:
        explanation: both steps.
        title: what is added to the subject.
        what: the header of the names.
        changes: the rows, as of ``side_by_side``.
        in_unit: the unit of the table, and how large it is in that of the rows.
    """
    unit, size = in_unit
    columns = [
        text_column(what, "name", wrap=True),
        number_column(f"{explanation.baseline.precision} ({unit})", "before", 3, per=size),
        number_column(f"{explanation.arm.precision} ({unit})", "after", 3, per=size),
        number_column(f"change ({unit})", "change", lambda value: signed(value, 3), per=size),
    ]
    shown = make_table(explanation.subject + title, records(changes), columns)
    assert shown is not None  # there are changes
    return shown


def sentences(explanation: Explanation) -> Iterator[str]:
    """Yield the causes, what holds the memory, and the techniques to try."""
    for reason in explanation.reasons:
        yield f"{capital(reason.sentence)}."
    if not explanation.reasons:
        yield _largest_part(explanation)
    if explanation.baseline.peak_bytes and explanation.arm.peak_bytes:
        yield _memory(explanation)
    techniques = ",".join(explanation.techniques)
    if techniques:
        text = f"Worth trying: {techniques}."
        if explanation.cell["data"] != "script":  # which has no ladder
            text += f" The same run with --ladder --techniques {techniques} measures it."
        yield text


def _largest_part(explanation: Explanation) -> str:
    """Say what the precision's step spends most time in, where no rule found a cause."""
    baseline = explanation.baseline
    arm = explanation.arm
    work = max(CLASSES, key=lambda work: arm.ms[work])
    ms = arm.ms[work]
    baseline_ms = baseline.ms[work]
    return (
        f"Nothing was found that holds it back. The largest part of its step is {work}: "
        f"{arm.pct(ms):.0f} %, {number(ms, 3)} ms, and {number(baseline_ms, 3)} ms in fp32."
    )


def _memory(explanation: Explanation) -> str:
    """Say how the peak of the tensors changed, where it is reached, and by what it rose or fell."""
    was = explanation.baseline.peak_bytes
    now = explanation.arm.peak_bytes
    larger = max(was, now)
    unit, size = memory_unit(larger)
    text = f"At the peak of a step its tensors hold {number(now / size, 3)} {unit}"
    difference = now - was
    if abs(difference) < SAME * was:
        text += f", as in fp32 within {percent(SAME)}"
    else:
        baseline = number(was / size, 3)
        text += f", and {baseline} {unit} in fp32 ({change(difference / was)})"
    parts = []
    largest = explanation.changed("held", by_size=False).head(NAMED)
    for part in records(largest):
        change_bytes = part["change"]
        if abs(change_bytes) < SAME * larger:
            continue
        sign = "+" if change_bytes > 0 else ""
        amount = number(change_bytes / size, 3)
        parts.append(f"{part['name']} {sign}{amount} {unit}")
    if parts:
        text += f": {'; '.join(parts)}"
    return f"{text}. The peak comes at {explanation.arm.peak_at}."


# The figure.


def chart_of(name: str, explained: Sequence[Explanation]) -> Chart:
    """Describe the steps of one workload: time and memory for each device and batch size."""
    cells: dict[str, list[Step]] = {}
    for explanation in explained:
        title = f"{explanation.cell['where']}{at_batch(explanation.cell)}"
        cells.setdefault(title, [explanation.baseline]).append(explanation.arm)
    panels = []
    shown = set[str]()
    for title, steps in cells.items():
        largest = max(step.peak_bytes for step in steps)
        unit, size = memory_unit(largest)
        times = {}
        memory = {}
        for step in steps:
            times[step.precision] = step.ms.reindex([*PARTS], fill_value=0.0)
            memory[step.precision] = _held(step) / size
        panels.append(_panel(title, "ms a step", times))
        panels.append(_panel(title, f"{unit} at the peak", memory))
        for parts in (*times.values(), *memory.values()):
            shown.update(parts.index[parts != 0])
    return Chart(
        name=name,
        caption=f"Where a step's time and memory go: {explained[0].cell['workload']}",
        about="Time under torch.profiler, each instant in one class of work; tensors at the peak "
        "of a step, by the class of the operator that made them. Panels have axes of their own.",
        panels=panels,
        legend=[(part, tint) for part, tint in PARTS.items() if part in shown],
    )


def _held(step: Step) -> pd.Series[float]:
    """Return the bytes of each part at the peak; without a class, such as views, is the rest."""
    held = step.of("held")
    has_class = held["work"] != ""
    parts = held["work"].where(has_class, held["name"])
    by_part = held["value"].groupby(parts).sum()
    amounts = by_part.reindex([*PARTS], fill_value=0.0)
    amounts[REST] += step.peak_bytes - amounts.sum()
    return amounts


def _panel(title: str, unit: str, steps: dict[str, pd.Series[float]]) -> Panel:
    """Describe a stacked bar of parts for each precision."""
    marks = []
    longest = 0.0
    for place, parts in enumerate(steps.values()):
        start = 0.0
        for part, value in parts[parts > 0].items():
            end = start + value
            tint = PARTS[str(part)]
            # Bars are 0.7 of a row high, so that those of two rows do not touch.
            bar = Bar(
                x=(start, end),
                low=place + 0.15,
                high=place + 0.85,
                tint=tint,
            )
            marks.append(bar)
            start = end
        longest = max(longest, start)
    axis = Axis(label=unit, low=0.0, high=1.03 * longest)
    return chart.rows_panel(title, axis, [*steps], marks)


REPORT = PhaseReport(findings=lambda material: findings(material.runs))
