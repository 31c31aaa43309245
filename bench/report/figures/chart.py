"""The description of a figure: panels with axes, and marks in the units of the data.

``draw.draw`` draws it, for the page and to files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pandas as pd
from numpy.typing import ArrayLike

from bench.results.records import WorkClass
from bench.spec.precisions import PRECISIONS, precision_rank

# Which figures are drawn, where there are too many to draw all.
Choice = Literal["overview", "all", "none"]
Scale = Literal["linear", "log"]
# The name that gives a mark its colour: a precision's name, a device's such as device-0, or one of
# those below.
Tint = str
SOFT = "soft"
PLAIN = "plain"
# Magnitudes that a format makes zero, and those that it holds with fewer digits.
LOST = "lost"
COARSE = "coarse"
# Tints of a legend's entries that tell no colours apart but lines, bands and crosses.
SOLID = "solid"
DASHED = "dashed"
BAND = "band"
CROSS = "cross"
# Tints of the classes of work in a step.
WORK: dict[WorkClass, Tint] = {work: f"work {work}" for work in get_args(WorkClass)}
# Tints of the kinds of tensors, and their columns of memory.csv.
MEMORY_KINDS = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activations": "activation_bytes",
    "temporaries": "temporary_bytes",
}
# Between a mark and a word that starts there.
SPACE = "\u00a0"
# Colours of precisions with options.
SPARE = ("#cc79a7", "#56b4e9", "#e69f00", "#000000")
# The colours and matplotlib's markers of devices, in their order, the same in all figures of a
# report.
LOOKS = (
    ("#0072b2", "o"),
    ("#c4500a", "s"),
    ("#00805c", "^"),
    ("#a8457f", "D"),
    ("#8f6a00", "v"),
    ("#3b3b3b", "P"),
    ("#6a4fc3", "<"),
    ("#1f8ac0", ">"),
)
INK = "#24292f"
GREY = "#8c959f"
# Of tints that are no precision's and no device's.
COLOURS = {
    SOFT: GREY,
    **dict.fromkeys((PLAIN, SOLID, DASHED, BAND, CROSS), INK),
    LOST: "#d55e00",
    COARSE: "#e69f00",
    # activations, which the precision changes most, stand out
    "parameters": "#4d4d4d",
    "gradients": "#7a7a7a",
    "optimizer": "#a8a8a8",
    "activations": "#56b4e9",
    "temporaries": "#d9d9d9",
    # Okabe and Ito's colours, for readers who see few, and greys where nothing is computed
    WORK["matrix units"]: "#0072b2",
    WORK["other products"]: "#56b4e9",
    WORK["normalisation and softmax"]: "#009e73",
    WORK["elementwise"]: "#f0e442",
    WORK["casts and layout"]: "#d55e00",
    WORK["optimizer"]: "#cc79a7",
    WORK["loss scaling"]: "#5e3c78",
    WORK["communication"]: "#7a4b2a",
    WORK["copies"]: "#e69f00",
    WORK["idle"]: "#d0d7de",
    WORK["unknown"]: "#6e7781",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One axis of a panel."""

    label: str = ""
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()
    """Places with their labels, which are shown where they have room. Without any, they are round
    numbers."""
    whole: bool = False
    """Whether only whole numbers have ticks."""
    low: float | None = None
    high: float | None = None
    """Where the axis ends; what is not given follows from the marks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Points joined by a line, which interrupts where one is not finite; one alone is a dot."""

    points: Sequence[tuple[float, float]]
    tint: Tint
    dashed: bool = False
    dots: bool = True
    whiskers: Sequence[tuple[float, float, float]] = ()
    """Intervals: x, and both ends of y."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A rectangle, such as a bar or a band.

    With heights at several places it is the area between a lower and an upper line.
    """

    x: ArrayLike
    low: ArrayLike
    high: ArrayLike
    tint: Tint
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A word at a place."""

    x: float
    y: float | None = None
    """None is the foot of the panel, where words of the same x stand side by side."""
    text: str
    align: Literal["left", "center", "right"] = "center"
    tint: Tint = PLAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A line across the panel at a value of one axis."""

    at: float
    axis: Literal["x", "y"]
    tint: Tint = SOFT


Mark = Curve | Bar | Text | Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Axes with marks, the first drawn first."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    rows: int = 0
    """Named rows, from the top; 0 where y is a figure."""
    precision: str = ""
    """The page leaves the panel out while this one is not among those that are shown."""


def rows_panel(
    title: str,
    x: Axis,
    names: Sequence[str],
    marks: Sequence[Mark],
) -> Panel:
    """Return a panel with a named row for each mark or group of marks."""
    ticks = []
    for place, name in enumerate(names):
        # In the middle of its row.
        ticks.append((place + 0.5, name))
    return Panel(
        title=title,
        x=x,
        y=Axis(ticks=ticks),
        marks=marks,
        rows=len(names),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A figure."""

    name: str
    """Of its files, without suffix."""
    caption: str
    about: str
    """How to read it, in a sentence."""
    panels: Sequence[Panel]
    legend: Sequence[tuple[str, Tint]] = ()
    in_files: bool = True
    """Whether it is drawn to files, too: what has very many panels takes seconds, or could not be
    read there."""


def look(tint: Tint) -> tuple[str, str]:
    """Return the colour and the marker of a tint, the same in every figure.

    In grey, the markers distinguish the lines.
    """
    if tint.startswith("device-"):
        again, place = divmod(int(tint.removeprefix("device-")), len(LOOKS))
        color, _ = LOOKS[place]
        # Where there are more devices than colours, the second of a colour has another marker.
        shifted = (place + again) % len(LOOKS)
        _, marker = LOOKS[shifted]
        return color, marker
    if tint in PRECISIONS:
        precision = PRECISIONS[tint]
        return precision.color, precision.marker
    if tint in (SOFT, PLAIN):
        return COLOURS[tint], "o"
    if tint in COLOURS:
        return COLOURS[tint], "s"
    # Not Python's hash of a text, which differs between processes.
    place = sum(tint.encode()) % len(SPARE)
    return SPARE[place], "v"


def class_of(tint: str) -> str:
    """Return the page's class of what has a tint, which no other tint has."""

    def escaped(sign: re.Match[str]) -> str:
        return f"_{ord(sign[0]):x}_"

    return "p-" + re.sub("[^A-Za-z0-9-]", escaped, tint)


def arms(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each precision, in the order of every table."""
    precisions = rows["precision"]
    groups = []
    for name in sorted(precisions.unique(), key=precision_rank):
        groups.append((name, rows[precisions == name]))
    return groups


def legend(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the legend of the precisions."""
    return [(name, name) for name, _ in arms(rows)]


def estimate(center: float, low: float, high: float, y: float, tint: Tint) -> list[Mark]:
    """Describe an estimate in a row as a dot, with its interval as a line."""
    ends = [(low, y), (high, y)]
    interval = Curve(points=ends, tint=tint, dots=False)
    return [interval, Curve(points=[(center, y)], tint=tint)]


def time_unit(longest_s: float) -> tuple[str, float]:
    """Choose a time axis's unit by its longest time: its name and its seconds."""
    if longest_s > 7200:
        return "h", 3600.0
    if longest_s > 600:
        return "min", 60.0
    return "s", 1.0
