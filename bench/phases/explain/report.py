"""The section "Why?": where a step's time goes in each precision, what holds it back, and why memory rises or falls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from bench.phases.explain.reasons import CLASSES, Explanation, explanations
from bench.phases.memory.report import memory_held
from bench.report.figures import chart
from bench.report.figures.chart import MEMORY_KINDS, PLAIN, WORK, Axis, Bar, Chart, Line, Mark, Panel
from bench.report.format import (
    capital,
    change,
    known,
    memory_unit,
    number,
    percent,
    records,
    share,
    signed,
    spread,
    times,
)
from bench.report.parts import Finding, Findings, PhaseReport
from bench.report.reading.labels import slugs, subjects
from bench.report.reading.load import CELL, SUBJECT, Runs, load
from bench.report.tables.table import Table, figures, table, words
from bench.results.csv_file import PAIR
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE

HEADING = "Why?"
BUSY_PCT = 10.0
"""Share of a CPU's cores from which other programs are reported."""
STRETCHED = 1.5
"""How many times as long a step takes under the profiler, from which that is reported."""
LEAST_CHANGE = 0.05
"""Share of all changes of memory below which a kind's change is not named."""
SAME = 0.01
"""Share of the peak up to which a change of memory, or a part of it, is not reported."""
FP32 = 0.10
"""The same of activations in fp32."""
Row = Mapping[Hashable, Any]


def explained(runs: Runs) -> list[Explanation]:
    """Return why each precision gains or does not, of all recipes that were explained."""
    if runs.details["explain_figures"].empty:
        return []
    trials = runs.trials
    measured = trials[(trials["phase"] == "explain") & trials["status"].isin(MEASURED)]
    sound = runs.details["explain_figures"].merge(measured[["run", *PAIR]].drop_duplicates(), on=["run", *PAIR])
    named = sound.merge(subjects(trials)[[*SUBJECT, "workload", "where"]], on=SUBJECT)
    return explanations(named)


def explain(folders: list[Path]) -> list[Findings]:
    """Return the findings of some runs.

    Raises:
        UsageError: a folder is no run, or none of the runs was explained.
    """
    found = findings(load(folders))
    if not any(group.heading for group in found):
        raise UsageError(
            "There is nothing to explain: no run there has two precisions that its phase explain measured. "
            "python run_bench.py explain --suite NAME measures that."
        )
    return found


def findings(runs: Runs) -> list[Findings]:
    """Return the findings of each recipe, or why there are none although they were asked for."""
    by_workload: dict[str, list[Explanation]] = {}
    for explanation in explained(runs):
        by_workload.setdefault(explanation.workload, []).append(explanation)
    if not by_workload:
        return _unexplained(runs.trials)
    held, found = memory_held(runs.trials), []
    for name, (workload, group) in zip(slugs([*by_workload]), by_workload.items(), strict=True):
        answers, tables = [], []
        for explanation in group:
            classes = time_by_class(explanation)
            reasons = list(sentences(explanation))
            if pair := memory_pair(held, explanation.cell, explanation.arm.precision):
                reasons += memory_sentences(*pair)
            result = gain(explanation)
            answers.append(Finding(subject=explanation.subject, result=result, reasons=reasons, table=classes))
            tables += [classes, *filter(None, [most_changed(explanation)])]
        charts = [stacked(f"{name}-why", group)]
        found.append(Findings(heading=HEADING, title=workload, findings=answers, charts=charts, tables=tables))
    return found


def _unexplained(trials: pd.DataFrame) -> list[Findings]:
    rows = trials[(trials["phase"] == "explain") & (trials["status"] != "failed")]
    if rows.empty:
        return []
    details = [str(detail) for detail in rows["detail"] if known(detail) and detail]
    reason = details[0] if details else f"it takes {BASELINE} and another precision"
    return [Findings(findings=[Finding(subject="No explanation", result=reason)])]


# Tables and sentences on time.


def time_by_class(explanation: Explanation) -> Table:
    """Return the time of one precision's step by class of work, and of the baseline's."""
    baseline, arm = explanation.baseline, explanation.arm
    times_ms = [(work, baseline.ms[work], arm.ms[work]) for work in CLASSES if baseline.ms[work] or arm.ms[work]]
    of_steps = [
        ("all, profiled", baseline.profiled_ms, arm.profiled_ms),
        ("the step, not profiled", baseline.timed_ms, arm.timed_ms),
    ]
    compared = _compared(explanation, "", "class of work", [*times_ms, *of_steps])
    assert compared is not None  # steps without time in any class are not explained
    return compared


def most_changed(explanation: Explanation) -> Table | None:
    """Return the operators whose time in a step changed most; None where none were kept."""
    title, what = ": operators whose time changed most", "operator, sizes of its inputs"
    return _compared(explanation, title, what, explanation.changed)


def _compared(
    explanation: Explanation, title: str, what: str, times_ms: Sequence[tuple[str, float, float]]
) -> Table | None:
    """Return a table of times in ms in fp32 and in the precision, with their difference."""
    columns = [
        words(what, itemgetter(0), wrap=True),
        figures(f"{explanation.baseline.precision} (ms)", itemgetter(1), 3),
        figures(f"{explanation.arm.precision} (ms)", itemgetter(2), 3),
        figures("change (ms)", lambda row: row[2] - row[1], lambda ms: signed(ms, 3)),
    ]
    return table(explanation.subject + title, times_ms, columns)


def gain(explanation: Explanation) -> str:
    """Write the speedup with its interval, and the unexplained part."""
    center, low, high = explanation.speedup.ends
    text = times(center, low, high)
    if low is not None and high is not None:
        text += f" {spread(low, high)}"
    text += " in the rounds of this phase"
    if explanation.unexplained is not None:
        text += f"; unexplained {share(explanation.unexplained)} of the difference"
    return text


def sentences(explanation: Explanation) -> Iterator[str]:
    """Yield the causes, the techniques to try against them, and what to doubt."""
    for reason in explanation.reasons:
        yield f"{capital(reason.sentence)}."
    if not explanation.reasons:
        yield "No rule found a cause."
    if tries := ",".join(explanation.techniques):
        yield f"Worth trying: {tries}. A run with --ladder --techniques {tries} measures it."
    baseline, arm = explanation.baseline, explanation.arm
    stretched = [step.profiled_ms / step.timed_ms for step in (baseline, arm)]
    if max(stretched) >= STRETCHED:
        yield (
            f"Under the profiler {baseline.precision}'s step takes {number(stretched[0], 2)} times as long and "
            f"{arm.precision}'s {number(stretched[1], 2)} times, so the classes, and the causes, are rough."
        )
    busy = baseline.figure("foreign load")
    if busy >= BUSY_PCT:
        yield f"Other programs took {busy:.0f} % of the CPU meanwhile, so these figures are rough."


# Memory.


def memory_pair(held: pd.DataFrame, cell: Mapping[str, Any], precision: str) -> tuple[Row, Row] | None:
    """Return the rows of ``memory_held`` of the baseline and of a precision in a cell; None if there are not both."""
    here = held.merge(pd.DataFrame([cell])[CELL], on=CELL)
    rows = {row["precision"]: row for row in records(here)}
    if BASELINE not in rows or precision not in rows:
        return None
    return rows[BASELINE], rows[precision]


def memory_sentences(before: Row, after: Row) -> Iterator[str]:
    """Yield why the peak of the tensors rose or fell, and the size of autocast's copies and of activations in fp32."""
    was, now = before["tracked_peak_bytes"], after["tracked_peak_bytes"]
    unit, size, _ = memory_unit(max(was, now))

    def amount(value: float) -> str:
        return f"{number(value / size, 3)} {unit}"

    text = "Memory: the most that tensors of a step hold at once"
    if abs(now - was) < SAME * was:
        yield f"{text} is {amount(now)}, as in fp32 within {percent(SAME)}."
    else:
        moves = "rises" if now > was else "falls"
        parts = ", ".join(_changed_kinds(before, after, amount))
        yield f"{text} {moves} from {amount(was)} to {amount(now)} ({change((now - was) / was)}): {parts}."
    copies, most = after["weight_copy_bytes"], after["most_weight_copy_bytes"]
    if known(copies) and most >= SAME * now:
        yield (
            f"Autocast's 16-bit copies of weights take up to {amount(most)} during a step; at the moment of the peak "
            f"{amount(copies) if copies else 'none is held'}."
        )
    kept = after["fp32_activation_bytes"]
    if kept >= FP32 * now:
        part = percent(kept / after["activation_bytes"])
        yield f"{amount(kept)} of its activations, {part}, are kept in fp32 for the backward pass."


def _changed_kinds(before: Row, after: Row, amount: Callable[[float], str]) -> list[str]:
    """Return the kinds of tensors that changed, the largest change first."""
    changes = pd.Series({kind: after[column] - before[column] for kind, column in MEMORY_KINDS.items()})
    sizes = changes.abs().sort_values(ascending=False, kind="stable")
    named = []
    for kind in sizes[sizes >= LEAST_CHANGE * sizes.sum()].index:
        sign = "+" if changes[kind] > 0 else ""
        named.append(f"{kind} {sign}{amount(changes[kind])}")
    return named


# The figure.


def stacked(name: str, explained: Sequence[Explanation]) -> Chart:
    """Describe the steps of one workload, a panel for each device and batch size; ``name`` is that of its files."""
    cells: dict[tuple[str, float], list[Explanation]] = {}
    for explanation in explained:
        cells.setdefault((explanation.where, explanation.cell["batch_size"]), []).append(explanation)
    panels = [_panel(f"{where}, batch {batch:.0f}", arms) for (where, batch), arms in cells.items()]
    steps = [step for explanation in explained for step in (explanation.baseline, explanation.arm)]
    legend = [(work, WORK[work]) for work in CLASSES if any(step.ms[work] for step in steps)]
    return Chart(
        name=name,
        caption=f"Where a step's time goes: {explained[0].workload}",
        about="Each bar is a step under torch.profiler, each instant in one class. The solid line is the step timed "
        "without the profiler. Panels have axes of their own.",
        panels=panels,
        legend=[*legend, ("reached, not profiled", chart.SOLID)],
    )


def _panel(title: str, explained: Sequence[Explanation]) -> Panel:
    steps = [explained[0].baseline, *(explanation.arm for explanation in explained)]
    marks: list[Mark] = []
    for place, step in enumerate(steps):
        start = 0.0
        for work, ms in step.ms.items():
            if ms:
                marks.append(Bar(x=(start, start + ms), low=place + 0.15, high=place + 0.85, tint=WORK[work]))
                start += ms
        timed = [(step.timed_ms, place + 0.05), (step.timed_ms, place + 0.95)]
        marks.append(Line(points=timed, tint=PLAIN, dots=False))
    longest_ms = max(max(step.timed_ms, step.profiled_ms) for step in steps)
    x = Axis(label="ms a step", low=0.0, high=1.03 * longest_ms)
    return chart.rows_panel(title, x, [step.precision for step in steps], marks)


REPORT = PhaseReport(findings=lambda material: findings(material.runs))
