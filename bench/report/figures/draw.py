"""The drawing of figures by matplotlib: one drawing is the SVG and the PNG of files, and the page's panels.

matplotlib takes half a second to import, so only the processes that draw import this module.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import Affine2D

from bench.report.figures.chart import (
    BAND,
    COARSE,
    CROSS,
    DASHED,
    GREY,
    INK,
    LOST,
    SOLID,
    Axis,
    Bar,
    Chart,
    Line,
    Mark,
    Panel,
    Rule,
    Text,
    Tint,
    class_of,
    look,
)
from bench.results.files import replacing, write_atomically

WIDE, NARROW = 400, 320
"""Width in pixels of a panel of a figure with one or two, and with more: the page shows as many next to each other as
it has room for, and words must be readable on a telephone, too."""
HEIGHT, ROW = 170, 17
"""Height in pixels of a panel's frame, and of a line of a row's name."""
TOP, BOTTOM, RIGHT = 24, 38, 18
"""Margins above, below and right of the frame, in pixels."""
CHARACTER, LINE = 6.7, 17
"""Width of a character and height of a line, in pixels."""
NAME_LINE = 13
"""Least distance of the names at the ends of lines, in pixels."""
LONGEST_NAME = 30
"""Characters in a line of a row's name."""
KEY = 16, 11
"""Width and height of the sign of a legend's entry, in pixels."""
DOTS = 16
"""A line of more points than these has a dot at some of them only; dots distinguish lines where there is no colour."""
PIXELS_PER_INCH, PNG_PIXELS_PER_INCH = 72, 120
DASHES = (0, (3, 2))
GRID = "#d1d9e0"
PALE = 0.18
SIGNS: dict[Tint, dict[str, Any]] = {
    SOLID: {},
    DASHED: {"linestyle": DASHES},
    CROSS: {"linestyle": "none", "marker": "x", "markeredgewidth": 1.5},
    **{tint: {"linewidth": 9, "alpha": PALE} for tint in (BAND, LOST, COARSE)},
}
"""The looks of signs of a legend that are not just a marker."""
STYLE: Any = {
    "text.color": INK,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.xmargin": 0.06,
    "axes.ymargin": 0.06,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "xtick.major.pad": 5,
    "xtick.major.size": 0,
    "ytick.color": INK,
    "ytick.major.pad": 5,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 7,
    "lines.markeredgewidth": 0,
}
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
KEPT = ("fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "text-anchor", "font-weight")
"""The properties of matplotlib's elements that become attributes; the page allows no styles of elements."""
DEFAULTS = {"fill": "none", "stroke-width": "1.8", "text-anchor": "middle"}
"""Properties that need no attribute: the root of a file has them, and page.css."""


class Box(NamedTuple):
    """A rectangle in a figure, in pixels from its top left corner."""

    left: float
    top: float
    width: float
    height: float


def draw(chart: Chart, folder: Path) -> Chart:
    """Return a chart with its elements of the page, after writing it as SVG and PNG if it goes to files."""
    # The user cannot mend a font that lacks a glyph. The salt makes the names of markers differ from those of other
    # figures on the page.
    with mpl.rc_context(STYLE | {"svg.hashsalt": chart.name}), warnings.catch_warnings(action="ignore"):
        figure, panels, signs = _figure(chart)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        if chart.in_files:
            with replacing(folder / f"{chart.name}.png") as draft:
                figure.savefig(draft, dpi=PNG_PIXELS_PER_INCH, metadata={"Software": None})
    root = ElementTree.fromstring(text.getvalue())
    drawn = _simplified(root)[0]
    if chart.in_files:
        drawn.attrib |= {"xmlns": SVG[1:-1], "font-family": "DejaVu Sans, sans-serif", "font-size": "11", **DEFAULTS}
        drawn.attrib |= {name: root.attrib[name] for name in ("viewBox", "width", "height")}
        write_atomically(folder / f"{chart.name}.svg", ElementTree.tostring(drawn, encoding="unicode") + "\n")
    return replace(chart, panels=(), page=_page(chart, panels, signs, drawn))


def _height(panel: Panel) -> float:
    lines = [len(textwrap.wrap(name, LONGEST_NAME)) for _, name in panel.y.ticks]
    return TOP + (panel.rows * ROW * max(lines) if panel.rows else HEIGHT) + BOTTOM


def _figure(chart: Chart) -> tuple[Figure, list[Box], list[Box]]:
    """Draw the panels in columns and the legend below; return where the panels and the signs of the legend are, too."""
    count = len(chart.panels)
    columns = 2 if count == 4 else min(3, count)
    panel_width = WIDE if count < 3 else NARROW
    width = columns * panel_width
    row_height = max(map(_height, chart.panels))
    caption = textwrap.fill(chart.caption, int(width / CHARACTER / 1.25))
    top = LINE * (caption.count("\n") + 1) + 8
    foot = top + math.ceil(count / columns) * row_height
    entry = CHARACTER * max((len(text) for text, _ in chart.legend), default=0) + 3 * KEY[0]
    entries = max(1, int(width / entry))
    height = foot + LINE * math.ceil(len(chart.legend) / entries) + 4
    figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH)
    # from pixels that go down to those of a picture of any resolution
    pixels = Affine2D().scale(1, -1).translate(0, height).scale(1 / PIXELS_PER_INCH) + figure.dpi_scale_trans
    figure.text(8, 4, caption, transform=pixels, va="top", fontweight="bold", gid="caption|")
    panels, signs = [], []
    for place, panel in enumerate(chart.panels):
        row, column = divmod(place, columns)
        box = Box(column * panel_width, top + row * row_height, panel_width, _height(panel))
        _panel(figure, panel, box, width, height)
        panels.append(box)
    for place, (text, tint) in enumerate(chart.legend):
        row, column = divmod(place, entries)
        box = Box(8 + column * entry, foot + row * LINE, *KEY)
        signs.append(box)
        shade, marker = look(tint)
        shape = SIGNS.get(tint, {"linestyle": "none", "marker": marker, "markersize": 9})
        x, y = np.array([0, 0.5, 1]) * box.width + box.left, box.top + box.height / 2
        gid = f"sign {class_of(tint)}|"
        figure.add_artist(Line2D(x, [y, y, y], markevery=[1], color=shade, transform=pixels, gid=gid, **shape))
        figure.text(box.left + box.width + 4, y, text, transform=pixels, va="center", gid="entry|")
    return figure, panels, signs


def _panel(figure: Figure, panel: Panel, box: Box, figure_width: float, figure_height: float) -> None:
    """Draw a panel into its place in a figure."""
    axes: Any = figure.add_axes((0, 0, 1, 1), frameon=False, gid="panel|")
    axes.set(xscale=panel.x.scale, yscale=panel.y.scale)
    for mark in panel.marks:
        _mark(axes, panel, mark)
    axes.set(xlim=(panel.x.low, panel.x.high), ylim=(panel.rows, 0) if panel.rows else (panel.y.low, panel.y.high))
    y_ticks = _ticks(panel.y, *sorted(axes.get_ylim()))
    lines = [line for name in y_ticks.values() for line in name.split("\n")]
    before = CHARACTER * max(map(len, lines), default=0) + 8 + 17 * bool(panel.y.label)
    named = [mark for mark in panel.marks if isinstance(mark, Line) and mark.name]
    after = CHARACTER * max((len(mark.name) for mark in named), default=0) + RIGHT
    width, height = box.width - before - after, box.height - TOP - BOTTOM
    left, bottom = box.left + before, figure_height - box.top - TOP - height
    axes.set_position((left / figure_width, bottom / figure_height, width / figure_width, height / figure_height))
    x_ticks = _ticks(panel.x, *axes.get_xlim())
    while CHARACTER * sum(len(name) + 1 for name in x_ticks.values()) > width:
        x_ticks = dict(list(x_ticks.items())[::2])
    axes.set_xticks([*x_ticks], x_ticks.values())
    axes.set_yticks([*y_ticks], y_ticks.values())
    axes.minorticks_off()
    axes.grid(visible=not panel.rows, axis="y")
    axes.set(xlabel=panel.x.label, ylabel=panel.y.label)
    axes.set_title(panel.title, gid="head|")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_gid("tick|")
    _names(axes, named, height)


def _ticks(axis: Axis, low: float, high: float) -> dict[float, str]:
    """Return the ticks of an axis within its ends, with their labels: those that it gives, else round numbers."""
    ticks = {place: textwrap.fill(name, LONGEST_NAME) for place, name in axis.ticks}
    if not ticks:
        if axis.scale == "log":
            locator: Any = LogLocator(subs=(1,) if high > 30 * low else (1, 2, 5))
        else:
            locator = MaxNLocator(6, steps=[1, 2, 5, 10], integer=axis.whole)
        ticks = {place: f"{place:,.10g}".replace("-", "−") for place in locator.tick_values(low, high)}
    return {place: name for place, name in ticks.items() if low <= place <= high}


def _names(axes: Any, lines: Sequence[Line], height: float) -> None:
    """Write the names of lines on the right of the frame, each next to the end of its line, or below those above it."""
    ends = [(*(axes.transScale + axes.transLimits).transform(line.points[-1]), line) for line in lines]
    ends.sort(key=itemgetter(1), reverse=True)
    place = math.inf
    for x, y, line in ends:
        place = min(y, place - NAME_LINE / height)
        shared: Any = {"color": look(line.tint)[0], "gid": f"{class_of(line.tint)}|", "transform": axes.transAxes}
        axes.text(1.02, place, line.name, va="center", **shared)
        if x < 0.9:
            axes.plot([x, 1.01], [y, place], linewidth=0.8, linestyle=(0, (1, 3)), clip_on=False, **shared)


def _mark(axes: Any, panel: Panel, mark: Mark) -> None:
    shade, marker = look(mark.tint)
    shared: Any = {"color": shade, "gid": f"{class_of(mark.tint)}|{getattr(mark, 'says', '')}"}
    match mark:
        case Rule():
            across = axes.axvline if mark.axis == "x" else axes.axhline
            across(mark.at, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5, **shared)
        case Text(y=None):
            beside = [each for each in panel.marks if isinstance(each, Text) and each.x == mark.x]
            aside = (beside.index(mark) - (len(beside) - 1) / 2) * 1.5 * CHARACTER
            place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(mark.text, (mark.x, 0), (aside, 7), ha="center", va="center", **place, **shared)
        case Text():
            axes.text(mark.x, mark.y, mark.text, ha=mark.align, va="center", **shared)
        case Bar():
            x, low, high = np.broadcast_arrays(mark.x, mark.low, mark.high)
            around = np.append(x, x[::-1]), np.append(high, low[::-1])
            axes.fill(*around, alpha=PALE if mark.faint else 1, linewidth=0, **shared)
        case Line():
            _line(axes, panel, mark, shared | {"marker": marker if mark.dots else ""})


def _line(axes: Any, panel: Panel, line: Line, shared: dict[str, Any]) -> None:
    """Draw a line with its dots and whiskers."""
    x, y = np.array(line.points, dtype=float).T
    floor = -math.inf if panel.y.low is None else panel.y.low
    every = math.ceil(len(y) / DOTS)
    # each line has its dots elsewhere, because lines may coincide
    shown = [place for place in range(len(axes.lines) % every, len(y), every) if y[place] >= floor]
    style = DASHES if line.dashed else "-"
    # whiskers are more of the same path, behind gaps: that is faster than a path for each
    for at, low, high in line.whiskers:
        x, y = np.append(x, [math.nan, at, at]), np.append(y, [math.nan, low, high])
    axes.plot(x, np.maximum(y, floor), clip_on=False, markevery=shown, linestyle=style, **shared)


def _simplified(element: Element) -> list[Element]:
    """Return what an element of matplotlib's comes to: attributes are for styles, and a group is for what has a class.

    A class, and what a title says, are in the name that an artist was given, before and after a bar.
    """
    tag, name = element.tag.removeprefix(SVG), element.get("id", "")
    if tag in ("metadata", "style", "clipPath"):
        return []
    inside = [each for child in element for each in _simplified(child)]
    classes, ours, says = name.partition("|")
    if tag == "g" and not ours:
        return inside
    made = Element(tag)
    if ours:
        made.set("class", classes)
        inside = _joined(inside)
        if says:
            ElementTree.SubElement(made, "title").text = says
    elif name:
        made.set("id", name)
    if tag == "text":
        made.text = element.text
        made.set("text-anchor", "start")  # unless its style has another
    styles = (style.partition(": ") for style in element.get("style", "").split("; "))
    for key, value in (*element.items(), *((key, value) for key, _, value in styles)):
        if key in ("d", "x", "y"):
            made.set(key, _short(value))
        elif key == LINK:
            made.set("href", value)
        elif DEFAULTS.get(key) == value:
            made.attrib.pop(key, None)
        elif key in KEPT or (key == "transform" and not value.startswith("rotate(-0 ")):
            made.set(key, value)
    made.extend(inside)
    return [made]


def _short(text: str) -> str:
    """Return numbers of pixels, and commands of a path, as short as can be seen."""
    words = [word if word.isalpha() else f"{round(float(word), 1):g}" for word in text.split()]
    return re.sub(" ?([A-Za-z]) ?", r"\1", " ".join(words))


def _joined(elements: Sequence[Element]) -> list[Element]:
    """Join paths that look the same, such as the lines of a grid, and groups of a class that say nothing."""
    joined: dict[Any, Element] = {}
    for element in elements:
        attributes = {**element.attrib, "d": ""}
        first = joined.setdefault((element.tag, *sorted(attributes.items())), element)
        if first is element:
            continue
        if element.tag == "path":
            first.set("d", first.attrib["d"] + element.attrib["d"])
        elif element.tag == "g" and first.find("title") is None and element.find("title") is None:
            first[:] = _joined([*first, *element])
        else:
            joined[element] = element
    return list(joined.values())


def _page(chart: Chart, panels: Sequence[Box], signs: Sequence[Box], drawn: Element) -> Markup:
    """Return a drawn figure as elements of the page: an SVG element for each panel, then the legend."""
    shown = Element("div", {"class": "panels" if len(panels) > 2 else "panels wide"})
    groups = drawn.findall("g[@class='panel']")
    for panel, box, group in zip(chart.panels, panels, groups, strict=True):
        view = _view(box, group, {"class": "chart", "role": "img"})
        if panel.precision:
            view.set("data-precision", panel.precision)
        title = Element("title")
        title.text = f"{chart.caption}: {panel.title}" if panel.title else chart.caption
        view.insert(0, title)
        shown.append(view)
    legend = Element("p", {"class": "legend soft"})
    groups = [group for group in drawn if group.get("class", "").startswith("sign ")]
    for (text, tint), box, group in zip(chart.legend, signs, groups, strict=True):
        entry = ElementTree.SubElement(legend, "span", {"class": class_of(tint)})
        entry.append(_view(box, [group], {"class": "chart key"}))
        entry[0].tail = f" {text}"
    parts = [shown, legend] if signs else [shown]
    return Markup("".join(ElementTree.tostring(part, encoding="unicode") for part in parts))


def _view(box: Box, parts: Iterable[Element], attributes: dict[str, str]) -> Element:
    """Return an SVG element of the page that shows a part of a figure, in colours that follow the theme."""
    shown = Element("svg", attributes, viewBox=" ".join(f"{length:g}" for length in box))
    shown.extend(parts)
    for group in shown:
        _follow_theme(group)
    return shown


def _follow_theme(group: Element) -> None:
    """Give a group the colour that its parts have, and them the current colour, which the page may change."""
    for part in group.iter():
        for name in ("fill", "stroke"):
            if name in part.attrib:
                if part.get(name) not in (INK, GREY, GRID):
                    group.set("color", part.attrib[name])
                part.set(name, "currentColor")
        # what page.css says of all such parts
        if part.tag in ("text", "use"):
            part.attrib.pop("fill", None)
        elif part.tag == "path" and "fill" not in part.attrib:
            part.attrib.pop("stroke", None)
