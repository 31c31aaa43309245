"""Where a step's time goes: a bar for each precision, stacked by class of work."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.analysis.explanation import CLASSES, Explanation
from bench.report.figures import chart
from bench.report.figures.chart import PLAIN, WORK, Axis, Bar, Chart, Line, Mark, Panel
from bench.report.format import number, percent

MOST_PANELS = 12


def stacked(name: str, explained: Sequence[Explanation]) -> Chart:
    """Describe the steps of one workload, a panel for each device and batch size; ``name`` is that of its files."""
    cells: dict[tuple[str, float], list[Explanation]] = {}
    for explanation in explained:
        cells.setdefault((explanation.where, explanation.cell["batch_size"]), []).append(explanation)
    panels = [_panel(f"{where}, batch {batch:.0f}", arms) for (where, batch), arms in list(cells.items())[:MOST_PANELS]]
    steps = [step for explanation in explained for step in (explanation.baseline, explanation.arm)]
    legend = [(work, WORK[work]) for work in CLASSES if any(step.ms[work] for step in steps)]
    left_out = f" The first {MOST_PANELS} of {len(cells)} are shown." if len(cells) > MOST_PANELS else ""
    return Chart(
        name=name,
        caption=f"Where a step's time goes: {explained[0].workload}",
        about="Each bar is a step under torch.profiler, each instant in one class. The solid line is the step timed "
        "without the profiler. Panels have axes of their own." + left_out,
        panels=panels,
        columns=min(2, len(cells)),
        legend=[*legend, ("reached, not profiled", chart.SOLID)],
    )


def _panel(title: str, explained: Sequence[Explanation]) -> Panel:
    steps = [explained[0].baseline, *(explanation.arm for explanation in explained)]
    marks: list[Mark] = []
    for place, step in enumerate(steps):
        start = 0.0
        for work, ms in step.ms.items():
            if ms:
                says = f"{step.precision}, {work}: {number(ms, 3)} ms, {percent(step.share(work))}"
                bar = Bar(x=(start, start + ms), y=(place + 0.15, place + 0.85), tint=WORK[work], says=says)
                marks.append(bar)
                start += ms
        timed = [(step.timed_ms, place + 0.05), (step.timed_ms, place + 0.95)]
        says = f"{step.precision}: {number(step.timed_ms, 3)} ms without the profiler"
        marks.append(Line(points=timed, tint=PLAIN, dots=False, says=says))
    longest_ms = max(max(step.timed_ms, step.profiled_ms) for step in steps)
    x = Axis(label="ms a step", low=0.0, high=1.03 * longest_ms)
    return chart.rows_panel(title, x, [step.precision for step in steps], marks)
