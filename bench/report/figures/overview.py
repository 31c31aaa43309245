"""Figures over all recipes of a report: what memory is used for, and how accuracy, or the loss of tokens, differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from bench.report.analysis.explanation import MEMORY_KINDS, memory_held
from bench.report.analysis.verdict import Answer
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Mark, Panel, Text
from bench.report.format import capital, memory_unit, number, records, written
from bench.report.reading.load import CELL, SUBJECT
from bench.spec.metric import Metric
from bench.spec.metrics import MEMORY
from bench.spec.precisions import BASELINE

MOST_ROWS = 24
"""Most rows of a panel."""


def memory_by_kind(summary: pd.DataFrame, trials: pd.DataFrame, answers: Sequence[Answer]) -> Chart | None:
    """Describe what memory is used for at each answer, in fp32 and in the precision that is advised or came nearest."""
    held = memory_held(trials).merge(summary[[*SUBJECT, "workload", "where"]].drop_duplicates(), on=SUBJECT)
    panels, most = [], 0
    for workload in dict.fromkeys(answer.workload for answer in answers):
        lines: list[tuple[str, Mapping[Hashable, Any]]] = []
        for answer in answers:
            if answer.workload != workload or not answer.arm:
                continue
            cell = held[(held["workload"] == workload) & (held["where"] == answer.where)]
            cell = cell[cell["batch_size"] == answer.batch]
            for name in (BASELINE, str(answer.arm["precision"])):
                lines += [(f"{answer.label} {name}", row) for row in records(cell[cell["precision"] == name].tail(1))]
        most = max(most, len(lines))
        if lines:
            panels.append(_kinds(workload, lines[:MOST_ROWS]))
    if not panels:
        return None
    return Chart(
        name=MEMORY.name,
        caption="What memory is used for",
        about="Peak memory at the batch size of each verdict: the most that tensors of a step held at once, by kind, "
        "and what libraries, rounding and slack took beyond it (pale)." + _cut(most),
        panels=panels,
        columns=min(3, len(panels)),
        legend=[(kind, kind) for kind in MEMORY_KINDS],
    )


def _kinds(workload: str, lines: list[tuple[str, Mapping[Hashable, Any]]]) -> Panel:
    most = max(row["peak"] for _, row in lines)
    unit, size, _ = memory_unit(most)
    marks: list[Mark] = []
    for place, (_, row) in enumerate(lines):
        start = 0.0
        for kind, column in MEMORY_KINDS.items():
            if (value := row[column] / size) > 0:
                marks.append(Bar(x=(start, start + value), y=(place + 0.15, place + 0.85), tint=kind))
                start += value
        peak = row["peak"] / size
        if peak > start:
            marks.append(Bar(x=(start, peak), y=(place + 0.15, place + 0.85), tint=chart.SOFT, faint=True))
        marks.append(Text(x=max(start, peak), y=place + 0.5, text=f"{chart.SPACE}{number(peak, 3)}", anchor="start"))
    x = Axis(label=unit, low=0.0, high=1.2 * most / size)
    return chart.rows_panel(workload, x, [label for label, _ in lines], marks)


def differences(summary: pd.DataFrame, metric: Metric) -> Iterator[Chart]:
    """Describe each precision's accuracy or loss less fp32's, with its interval and the margin.

    Figures of merit of suites' own have a figure each.
    """
    center, low, _ = metric.changes
    compared = summary[summary[center].notna() & summary[low].notna()]
    described = pd.Series([metric.of(row) for row in records(compared)], compared.index, dtype=object)
    for place, (each, rows) in enumerate(compared.groupby(described, sort=False)):
        yield _differences(rows, each, metric.name + f"-{place + 1}" * (place > 0))


def _differences(compared: pd.DataFrame, metric: Metric, file: str) -> Chart:
    (center, low, high), rows = metric.changes, compared.head(MOST_ROWS)
    unit = f" {metric.unit}" * bool(metric.unit)
    margin = Bar(x=(-metric.margin, metric.margin), y=(0, len(rows)), tint=chart.SOFT, faint=True)
    marks: list[Mark] = [margin, chart.Rule(at=0.0, axis="x")]
    several = {name: rows[name].nunique() > 1 for name in ("workload", "label", "batch_size")}
    names, sizes = [], rows.groupby(CELL[:-1])["batch_size"].transform("nunique") > 1
    for place, (row, many) in enumerate(zip(records(rows), sizes, strict=True)):
        y, name = place + 0.5, str(row["precision"])
        says = f"{written(metric, [row[column] for column in metric.changes], metric.unit)}, {row['parity']}"
        marks += chart.estimate((row[center], row[low], row[high]), y, name, says)
        parts = [str(row[column]) for column in ("workload", "label") if several[column]]
        parts += [f"batch {row['batch_size']}"] if many else []
        names.append(" ".join([*parts, name]))
    return Chart(
        name=file,
        caption=f"{capital(metric.label)} less fp32's",
        about=f"Means over seeds with 90 % intervals; the band is the margin of ±{metric.margin:g}{unit}, and "
        f"{metric.better} is better." + _cut(len(compared)),
        panels=[chart.rows_panel("", Axis(label=metric.unit), names, marks)],
        columns=1,
        legend=chart.legend(rows),
    )


def _cut(count: int) -> str:
    """Say what is left out of a panel that would have more than ``MOST_ROWS`` rows."""
    return f" The first {MOST_ROWS} of {count} are shown; details.md has all." if count > MOST_ROWS else ""
