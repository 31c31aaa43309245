"""Where a step's time goes: a bar for each precision, stacked by class of work."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.analysis.explanation import CLASSES, Explanation, Step
from bench.report.figures import chart
from bench.report.figures.chart import PLAIN, WORK, Axis, Bar, Chart, Line, Mark, Panel, Text
from bench.report.figures.svg import CHARACTER, panel_width
from bench.report.format import number, percent
from bench.results.records import WorkClass

SHORT: dict[WorkClass, str] = {
    "matrix units": "matrix",
    "other products": "products",
    "normalisation and softmax": "norms",
    "elementwise": "elem.",
    "casts and layout": "casts",
    "optimizer": "opt.",
    "loss scaling": "scaling",
    "communication": "comm.",
}
"""Names of classes whose own do not fit into a bar."""
LIGHT_ON: tuple[WorkClass, ...] = ("matrix units", "loss scaling", "communication", "unknown")
"""Classes whose colour is dark."""
MARGIN = 120
"""Pixels of a panel that its bars leave, about."""
MOST_PANELS = 12
ROWS = 2
"""Rows of a bar."""


def stacked(name: str, explained: Sequence[Explanation]) -> Chart:
    """Describe the steps of one workload, a panel for each device and batch size; ``name`` is that of its files."""
    cells: dict[tuple[str, float], list[Explanation]] = {}
    for explanation in explained:
        cells.setdefault((explanation.where, explanation.cell["batch_size"]), []).append(explanation)
    columns = min(2, len(cells))
    panels = [
        _panel(f"{where}, batch {batch:.0f}", arms, panel_width(columns))
        for (where, batch), arms in list(cells.items())[:MOST_PANELS]
    ]
    steps = [step for explanation in explained for step in (explanation.baseline, explanation.arm)]
    legend = [(work, WORK[work]) for work in CLASSES if any(step.ms[work] for step in steps)]
    left_out = f" The first {MOST_PANELS} of {len(cells)} are shown." if len(cells) > MOST_PANELS else ""
    return Chart(
        name=name,
        caption=f"Where a step's time goes: {explained[0].workload}",
        about="Each bar is a step under torch.profiler, each instant in one class. The solid line is the step timed "
        "without the profiler. Panels have axes of their own." + left_out,
        panels=panels,
        columns=columns,
        legend=[*legend, ("reached, not profiled", chart.SOLID)],
    )


def _panel(title: str, explained: Sequence[Explanation], width: float) -> Panel:
    steps = [explained[0].baseline, *(explanation.arm for explanation in explained)]
    most = 1.03 * max(max(step.timed_ms, sum(step.ms.values())) for step in steps)
    marks: list[Mark] = []
    for place, step in enumerate(steps):
        top, bottom = ROWS * (place + 0.15), ROWS * (place + 0.85)
        marks += _bar(step, top, bottom, most / (width - MARGIN))
        over, under = top - 0.1 * ROWS, bottom + 0.1 * ROWS
        says = f"{step.precision}: {number(step.timed_ms, 3)} ms without the profiler"
        marks.append(Line(points=[(step.timed_ms, over), (step.timed_ms, under)], tint=PLAIN, dots=False, says=says))
    x = Axis(label="ms a step", low=0.0, high=most)
    return chart.rows_panel(title, x, [step.precision for step in steps], marks, height=ROWS)


def _bar(step: Step, top: float, bottom: float, ms_of_pixel: float) -> list[Mark]:
    """Describe a step's bar; classes are named in it where there is room."""
    marks: list[Mark] = []
    words: list[Mark] = []
    start = 0.0
    for work in CLASSES:
        if not (ms := step.ms[work]):
            continue
        says = f"{step.precision}, {work}: {number(ms, 3)} ms, {percent(step.share(work))}"
        marks.append(Bar(x=(start, start + ms), y=(top, bottom), tint=WORK[work], says=says))
        fitting = [name for name in (work, SHORT.get(work, work)) if (len(name) + 1) * CHARACTER * ms_of_pixel <= ms]
        if fitting:
            ink, y = PLAIN if work == "idle" else chart.DARK, (top + bottom) / 2
            words.append(Text(x=start + ms / 2, y=y, text=fitting[0], tint=ink, inverse=work in LIGHT_ON))
        start += ms
    return [*marks, *words]
