"""The description of a figure: panels with axes, and marks in the units of the data; and what all figures share.

A figure is drawn twice: as SVG on the page (``svg.draw``), and by matplotlib to files (``files.draw``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import pandas as pd
from markupsafe import Markup

from bench.report.reading.labels import slug
from bench.results.records import WorkClass
from bench.spec.precisions import PRECISIONS, precision_rank

Scale = Literal["linear", "log", "words"]
Tint = str
"""The name that gives a mark its colour: a precision's name, that of ``device``, or one of those below."""
SOFT, PLAIN = "soft", "plain"
LESS, MORE = "less", "more"
LOST, COARSE = "lost", "coarse"
"""Magnitudes that a format makes zero, and those that it holds with fewer digits."""
SOLID, DASHED, BAND, CROSS = "solid", "dashed", "band", "cross"
"""Tints of a legend's entries that tell no colours apart but lines, bands and crosses."""
FAINT = (LOST, COARSE)
"""Tints of areas behind what is drawn."""
WORK: dict[WorkClass, Tint] = {work: f"work {work}" for work in get_args(WorkClass)}
"""Tints of the classes of work in a step."""
SPACE = "\u00a0"
"""Between a mark and a word that starts there."""
SPARE = ("#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Colours of precisions with options."""


class Look(NamedTuple):
    """How a device is drawn."""

    color: str
    marker: str
    """Of matplotlib."""
    shape: str
    """The marker as commands of an SVG path, in pixels from its centre; empty is a dot."""


LOOKS = (
    Look("#0072b2", "o", ""),
    Look("#c4500a", "s", "m-3-3h6v6h-6z"),
    Look("#00805c", "^", "m0-4l4 7h-8z"),
    Look("#a8457f", "D", "m0-4l4 4-4 4-4-4z"),
    Look("#8f6a00", "v", "m0 4l-4-7h8z"),
    Look("#3b3b3b", "P", "m-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z"),
    Look("#6a4fc3", "<", "m-4 0l7-4v8z"),
    Look("#1f8ac0", ">", "m4 0l-7-4v8z"),
)
"""Of devices, in their order: a device has one look in all figures of a report."""
DEVICE, REST = "device", "rest"
"""The tints of devices begin with these: of the first ``len(LOOKS)``, and of the rest, which are grey unless the page
shows one of them alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One axis of a panel."""

    label: str = ""
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()
    """Places with their labels. Without any, they are round numbers; on a scale of words, one for each row."""
    low: float | None = None
    high: float | None = None
    """Where the axis ends; what is not given follows from the marks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Points joined by a line, which one that is not finite interrupts; one point alone is a dot."""

    points: Sequence[tuple[float, float]]
    tint: Tint
    dashed: bool = False
    dots: bool = True
    first: int = 0
    every: int = 1
    """Which points have a dot: from which on, and every one, every second, and so on."""
    leads: bool = False
    """Whether it is no data, but leads from a line's end to its name."""
    whiskers: Sequence[tuple[float, float, float]] = ()
    """Intervals: x, and both ends of y."""
    says: str = ""
    """Its figures in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A rectangle from one corner to the other, such as a bar or a band."""

    x: tuple[float, float]
    y: tuple[float, float]
    tint: Tint
    faint: bool = False
    says: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """The area between a lower and an upper line."""

    points: Sequence[tuple[float, float, float]]
    """x, and both ends of y."""
    tint: Tint


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A word at a place."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "middle"
    tint: Tint = PLAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A line across the panel at a value of one axis."""

    at: float
    axis: Literal["x", "y"]


Mark = Line | Bar | Band | Text | Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Axes with marks, the first drawn first."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    rows: int = 0
    """Rows on a y axis of words; 0 on other axes."""
    precision: str = ""
    """The page leaves the panel out while this one is not among those that are shown."""


def rows_panel(title: str, x: Axis, names: Sequence[str], marks: Sequence[Mark]) -> Panel:
    """Return a panel with a named row for each mark or group of marks."""
    ticks = [(place + 0.5, name) for place, name in enumerate(names)]
    return Panel(title=title, x=x, y=Axis(scale="words", ticks=ticks), marks=marks, rows=len(names))


@dataclass(frozen=True, kw_only=True, slots=True)
class Titled:
    """A figure's names."""

    name: str
    """Of its files, without suffix."""
    caption: str
    about: str
    """How to read it, in a sentence."""
    in_files: bool = True
    """Whether it is drawn to files, too: what has very many panels takes seconds, or could not be read there."""
    workload: str = ""
    where: str = ""
    """The page leaves the figure out while it shows another recipe, or another device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart(Titled):
    """A figure."""

    panels: Sequence[Panel]
    columns: int
    legend: Sequence[tuple[str, Tint]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot(Titled):
    """A drawn figure."""

    page: Markup
    """The SVG element of the page."""


def limits(panel: Panel, which: Literal["x", "y"]) -> tuple[float, float]:
    """Return the ends of a panel's axis: those that it gives, else a little beyond its marks."""
    axis: Axis = getattr(panel, which)
    if axis.scale == "words":
        return axis.low or 0.0, float(panel.rows)
    values = [value for mark in panel.marks for value in _values(mark, which) if math.isfinite(value)]
    if axis.scale == "log":
        values = [value for value in values if value > 0]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if axis.scale == "log":
        spare = max((high / low) ** 0.06, 1.05)
        return axis.low or low / spare, axis.high or high * spare
    spare = 0.06 * (high - low or abs(high) or 1.0)
    return low - spare if axis.low is None else axis.low, high + spare if axis.high is None else axis.high


def _values(mark: Mark, which: Literal["x", "y"]) -> Sequence[float]:
    match mark:
        case Line():
            points = [*mark.points, *((x, end) for x, *ends in mark.whiskers for end in ends)]
            return [point[which == "y"] for point in points]
        case Band():
            return [value for x, *ends in mark.points for value in (ends if which == "y" else [x])]
        case Bar() | Text() if isinstance(getattr(mark, which), tuple):
            ends: tuple[float, float] = getattr(mark, which)
            return [end for end in ends if math.isfinite(end)]
        case Rule():
            return [mark.at] if mark.axis == which else []
        case _:
            return [getattr(mark, which)]


def ticks(axis: Axis, low: float, high: float) -> list[tuple[float, str]]:
    """Return the ticks of an axis: its own within its ends, else about five round numbers."""
    if axis.ticks or axis.scale == "words":
        return [(place, text) for place, text in axis.ticks if low <= place <= high]
    if axis.scale == "log":
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        decades = [10.0**power for power in range(first, last + 1)]
        steps = (1,) if sum(low <= decade <= high for decade in decades) > 1 else (1, 2, 5)
        places = [step * decade for decade in decades for step in steps]
    else:
        size = 10.0 ** math.floor(math.log10((high - low) / 4))
        step = next(step * size for step in (1, 2, 5, 10) if (high - low) / (step * size) <= 6)
        places = [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(place, f"{place:,.10g}".replace("-", "−")) for place in places if low <= place <= high]


def device(place: int) -> Tint:
    """Return the tint of the device at a place among a report's devices, from 0."""
    return f"{DEVICE if place < len(LOOKS) else REST}-{place}"


def look(tint: Tint) -> Look | None:
    """Return how a device is drawn, by its tint; None of other tints."""
    kind, _, place = tint.rpartition("-")
    return LOOKS[int(place) % len(LOOKS)] if kind in (DEVICE, REST) else None


def colour(tint: Tint) -> str:
    """Return the colour of a precision or a device, the same in every figure."""
    if known_look := look(tint):
        return known_look.color
    return PRECISIONS[tint].color if tint in PRECISIONS else SPARE[sum(tint.encode()) % len(SPARE)]


def class_of(tint: str) -> str:
    """Return the page's class of what has a tint, such as what belongs to a precision."""
    return f"p-{slug(tint)}"


def marker(tint: Tint) -> str:
    """Return the marker of a precision or a device, which tells it apart for readers without colour."""
    if known_look := look(tint):
        return known_look.marker
    return PRECISIONS[tint].marker if tint in PRECISIONS else "v"


def arms(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each precision, in the order of every table."""
    return [(name, rows[rows["precision"] == name]) for name in sorted(rows["precision"].unique(), key=precision_rank)]


def legend(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the legend of the precisions."""
    return [(name, name) for name, _ in arms(rows)]


def estimate(ends: tuple[float, float, float], y: float, tint: Tint, says: str = "") -> list[Mark]:
    """Describe an estimate in a row as a dot, with its interval as a line; ``ends`` are its center, low and high."""
    center, low, high = ends
    whole = Line(points=[(low, y), (high, y)], tint=tint, dots=False)
    return [whole, Line(points=[(center, y)], tint=tint, says=says)]


def time_unit(longest_s: float) -> tuple[str, float]:
    """Choose a time axis's unit by its longest time: its name and its seconds."""
    return ("h", 3600.0) if longest_s > 7200 else ("min", 60.0) if longest_s > 600 else ("s", 1.0)
