"""An ablation as a waterfall: what each ablation step changes in time per epoch and memory, and its accuracy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.report.analysis.ablation import AblationSummary
from bench.report.figures import chart
from bench.report.figures.chart import LESS, MORE, PLAIN, SPACE, Axis, Bar, Chart, Mark, Panel, Text
from bench.report.format import MIB, known, number, records
from bench.report.reading.labels import slug
from bench.spec.precisions import BASELINE
from bench.stats import Interval

Row = Mapping[Hashable, Any]
Dot = tuple[float, float, float]
"""An estimate: its center, and the ends of its interval."""
ABOUT = (
    "Pale, with the figure: the median step × steps of an epoch, and the peak memory of each step alone in a process. "
    "Blue and red: what the step changes in the one that it builds on. Dot and line: fp32's time ÷ the speedup over "
    "fp32, with its 95 % interval; the verdict rests on it, for in it the machine's drift cancels."
)
MOST = 2.5
"""The axis ends at this multiple of the longest bar: a wider interval is cut off."""
ROOM = 1.3
"""How far beyond that it ends, for the longest bar's figure."""
WHOLE, INNER = (0.1, 0.9), (0.3, 0.7)
"""Where bars are within their rows."""


def waterfall(ladder: AblationSummary) -> Chart | None:
    """Describe time per epoch, peak memory, and accuracy where it was trained; None where no step was timed."""
    rows = ladder.rows
    if rows["step_ms"].isna().all():
        return None
    panels = [_times(rows)]
    if rows["memory_bytes"].notna().any():
        panels.append(_panel("Peak memory", "MiB", rows, rows["memory_bytes"] / MIB, {}))
    panels += [_accuracies(rows)] if rows["accuracy"].notna().any() else []
    drawn = rows[rows["epoch_s"].notna() | rows["memory_bytes"].notna()]
    changes = [mark.tint for panel in panels for mark in panel.marks if isinstance(mark, Bar) and not mark.faint]
    words = {LESS: "less than the step that it builds on", MORE: "more"}
    legend = chart.legend(drawn) + [(text, tint) for tint, text in words.items() if tint in changes]
    caption, columns = f"Ladder: {ladder.title}", max(2, len(panels))
    return Chart(name=slug(ladder.slug), caption=caption, about=ABOUT, panels=panels, columns=columns, legend=legend)


def _times(rows: pd.DataFrame) -> Panel:
    base = rows.loc[rows["added"] == BASELINE, "epoch_s"].max()
    unit, seconds = chart.time_unit(float(rows["epoch_s"].max()))
    dots: dict[int, Dot] = {}
    for place, over in enumerate(rows["over_first"]):
        if isinstance(over, Interval) and over.low is not None and over.high is not None and known(base):
            dots[place] = (base / over.center / seconds, base / over.high / seconds, base / over.low / seconds)
    return _panel("Time per epoch", unit, rows, rows["epoch_s"] / seconds, dots, names=True)


def _panel(
    title: str, unit: str, rows: pd.DataFrame, values: pd.Series, dots: Mapping[int, Dot], *, names: bool = False
) -> Panel:
    """Describe a bar for each step, with its difference from the step that it builds on.

    The bars' lengths are ``values``, NaN where unknown; ``dots`` are estimates, by the number of the row.
    """
    longest = float(values.max())
    most = min(MOST * longest, max([longest, *(high for _, _, high in dots.values())]))
    marks: list[Mark] = []
    words: list[Mark] = []
    lengths = dict(zip(rows["added"], values, strict=True))
    for place, (row, value) in enumerate(zip(records(rows), values, strict=True)):
        y, before, dot = place + 0.5, lengths.get(row["builds_on"]), dots.get(place, ())
        if known(value):
            marks += _bar(row, place, value, before, f"{number(value)} {unit}")
            end = min(most, max(filter(known, [value, before, *dot])))
            words.append(Text(x=end, y=y, text=f"{SPACE}{number(value)}", anchor="start"))
        elif not known(row["step_ms"]):
            words.append(Text(x=0.0, y=y, text=f"{SPACE}× {row['status']}", anchor="start"))
        words += chart.estimate(dot, y, PLAIN) if dot else []
    marks += words
    x = Axis(label=unit, low=0.0, high=ROOM * most if known(most) and most > 0 else 1.0)
    return Panel(title=title, x=x, y=_names(rows, names), marks=marks, rows=len(rows))


def _bar(row: Row, place: int, value: float, before: float | None, text: str) -> list[Mark]:
    whole, inner = ((place + low, place + high) for low, high in (WHOLE, INNER))
    bars: list[Mark] = [Bar(x=(0.0, value), y=whole, tint=str(row["precision"]), faint=True, says=text)]
    if before is not None and known(before) and before != value:
        bars.append(Bar(x=(before, value), y=inner, tint=LESS if value < before else MORE))
    return bars


def _accuracies(rows: pd.DataFrame) -> Panel:
    marks: list[Mark] = []
    for place, (row, interval) in enumerate(zip(records(rows), rows["accuracy"], strict=True)):
        if isinstance(interval, Interval):
            center, low, high = (interval.center if end is None else end for end in interval.ends)
            marks += chart.estimate((center, low, high), place + 0.5, str(row["precision"]))
            marks.append(Text(x=high, y=place + 0.5, text=f"{SPACE}{center:.2f}", anchor="start"))
    x = Axis(label="test accuracy (%), 95 % over seeds")
    return Panel(title="Accuracy where trained", x=x, y=_names(rows, False), marks=marks, rows=len(rows))


def _names(rows: pd.DataFrame, shown: bool) -> Axis:
    """Return the axis of steps; of several panels the first has their names."""
    ticks = [(place + 0.5, str(name)) for place, name in enumerate(rows["added"])]
    return Axis(scale="words", ticks=ticks if shown else ())
