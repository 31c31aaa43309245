"""The drawing of figures by matplotlib: of one drawing are SVG, PNG and the page's panels.

matplotlib takes half a second to import, so only the processes that draw import this module.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator

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
    Curve,
    Mark,
    Panel,
    Rule,
    Text,
    Tint,
    class_of,
    look,
)
from bench.report.format import with_minus
from bench.results.files import replacing, write_atomically

# Width in pixels of a panel where a figure has at most MOST_WIDE of them, and where it has more:
# the page shows as many next to each other as it has room for, and words must be readable on a
# telephone, too.
WIDE = 400
NARROW = 320
MOST_WIDE = 2
# Height in pixels of a panel's frame, and of a line of a row's name.
HEIGHT = 170
ROW = 17
# Margins above, below and right of the frame, in pixels.
TOP = 24
BOTTOM = 38
RIGHT = 18
# Width of a character and height of a line, in pixels.
CHARACTER = 6.7
LINE = 17
# Characters in a line of a row's name.
LONGEST_NAME = 30
# Width of the sign of a legend's entry, in pixels.
KEY = 16
# A line of more points than these has a dot at some of them only; dots distinguish lines where
# there is no colour.
DOTS = 16
PIXELS_PER_INCH = 72
PNG_PIXELS_PER_INCH = 120
DASHES = (0, (3, 2))
RULE_DASHES = (0, (4, 3))
GRID = "#d1d9e0"
PALE = 0.18
# The looks of signs of a legend that are not just a marker.
SIGNS: dict[Tint, dict[str, Any]] = {
    SOLID: {},
    DASHED: {"linestyle": DASHES},
    CROSS: {
        "linestyle": "none",
        "marker": "x",
        "markeredgewidth": 1.5,
    },
    **{tint: {"linewidth": 9, "alpha": PALE} for tint in (BAND, LOST, COARSE)},
}
STYLE: Any = {
    "text.color": INK,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
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
    "lines.solid_capstyle": "butt",
    "lines.markersize": 7,
    "lines.markeredgewidth": 0,
}
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
# What the page takes over of matplotlib's elements, as attributes: it allows no styles of elements.
KEPT = (
    "id",
    "d",
    "x",
    "y",
    "transform",
    "stroke-width",
    "stroke-dasharray",
    "opacity",
    "text-anchor",
    "font-weight",
)
# Those that need no attribute, because page.css has them.
DEFAULTS = {"stroke-width": "1.8", "text-anchor": "middle"}
# A rectangle in a figure: left, top, width and height in pixels, from its top left corner.
Box = tuple[float, float, float, float]


def draw(chart: Chart, folder: Path) -> Markup:
    """Return a chart's elements of the page; write it as SVG and PNG if it goes to files."""
    # The salt makes the names of markers differ from those of other figures on the page.
    style = STYLE | {"svg.hashsalt": chart.name}
    # matplotlib warns of a glyph that a font lacks, which the user cannot mend.
    with mpl.rc_context(style), warnings.catch_warnings(action="ignore"):
        figure, boxes = _figure(chart)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        if chart.in_files:
            file = folder / f"{chart.name}.svg"
            picture = folder / f"{chart.name}.png"
            write_atomically(file, svg.getvalue())
            # Without the version of matplotlib, equal figures are equal files.
            with replacing(picture) as draft:
                figure.savefig(draft, dpi=PNG_PIXELS_PER_INCH, metadata={"Software": None})
    return _page(chart, svg.getvalue(), boxes)


def _height(panel: Panel) -> float:
    if not panel.rows:
        return TOP + HEIGHT + BOTTOM
    # All rows are as high as the one with the longest name.
    row_height = ROW
    for _, name in panel.y.ticks:
        lines = textwrap.wrap(name, LONGEST_NAME)
        row_height = max(row_height, ROW * len(lines))
    return TOP + panel.rows * row_height + BOTTOM


def _figure(chart: Chart) -> tuple[Figure, list[Box]]:
    """Draw the panels in columns and the legend below; return where each of them is, too."""
    count = len(chart.panels)
    columns = 2 if count == 4 else min(3, count)
    panel_width = NARROW if count > MOST_WIDE else WIDE
    row_height = max(map(_height, chart.panels))
    width = columns * panel_width
    # Bold letters are wider.
    characters = int(width / CHARACTER / 1.25)
    caption = textwrap.fill(chart.caption, characters)
    caption_lines = caption.count("\n") + 1
    top = LINE * caption_lines + 8
    rows = math.ceil(count / columns)
    foot = top + rows * row_height
    places = _entries(chart)
    legend_height = 0.0
    if places:
        _, last_y = places[-1]
        legend_height = last_y + LINE / 2
    height = foot + legend_height + 4
    size = (width / PIXELS_PER_INCH, height / PIXELS_PER_INCH)
    figure = Figure(size, dpi=PIXELS_PER_INCH)
    caption_x = 8 / width
    caption_y = 1 - 4 / height
    figure.text(caption_x, caption_y, caption, va="top", fontweight="bold")
    boxes: list[Box] = []
    for place, panel in enumerate(chart.panels):
        row, column = divmod(place, columns)
        left = column * panel_width
        panel_top = top + row * row_height
        box = (left, panel_top, panel_width, _height(panel))
        _panel(figure, panel, box)
        boxes.append(box)
    if chart.legend:
        box = (0, foot, WIDE, legend_height)
        axes = figure.add_axes(_place(figure, box), frameon=False, gid=".panel")
        axes.set(xlim=(0, WIDE), ylim=(legend_height, 0))
        axes.set(xticks=[], yticks=[])
        for (x, y), (text, tint) in zip(places, chart.legend, strict=True):
            _entry(axes, x, y, text, tint)
        boxes.append(box)
    return figure, boxes


def _entries(chart: Chart) -> list[tuple[float, float]]:
    """Return where the entries of a legend begin: one after another, as many in a line as fit."""
    places = []
    x = 8.0
    y = LINE / 2
    for text, _ in chart.legend:
        width = CHARACTER * len(text) + 2 * KEY
        if x > 8 and x + width > WIDE:
            x = 8.0
            y += LINE
        places.append((x, y))
        x += width
    return places


def _place(figure: Figure, box: Box) -> Box:
    """Return a rectangle in shares of the figure, from its bottom left corner."""
    figure_width, figure_height = PIXELS_PER_INCH * figure.get_size_inches()
    left, top, width, height = box
    bottom = figure_height - top - height
    return (
        left / figure_width,
        bottom / figure_height,
        width / figure_width,
        height / figure_height,
    )


def _entry(axes: Any, x: float, y: float, text: str, tint: Tint) -> None:
    """Draw an entry of a legend: its sign, and its words."""
    shade, marker = look(tint)
    just_marker = {"linestyle": "none", "marker": marker, "markersize": 9}
    shape = SIGNS.get(tint, just_marker)
    end = x + KEY
    name = class_of(tint)
    # A marker stands in the middle of the sign.
    middle = (x + end) / 2
    axes.plot(
        [x, middle, end],
        [y, y, y],
        markevery=[1],
        color=shade,
        gid=f".{name}",
        **shape,
    )
    axes.text(end + 4, y, text, va="center", gid=f".entry {name}")


def _panel(figure: Figure, panel: Panel, box: Box) -> None:
    """Draw a panel into its place in a figure."""
    axes: Any = figure.add_axes((0, 0, 1, 1), frameon=False, gid=".panel")
    x = panel.x
    y = panel.y
    axes.set(xscale=x.scale, yscale=y.scale)
    axes.set(xlabel=x.label, ylabel=y.label)
    crosses: Counter[float] = Counter()
    for mark in panel.marks:
        _mark(axes, mark, crosses)
    _ticks(axes.yaxis, y)
    if panel.rows:
        axes.set_ylim(panel.rows, 0)
    else:
        axes.set_ylim(y.low, y.high)
    # The labels, which only now are final, decide how far right the frame begins.
    label_width = 0.0
    for label in axes.get_yticklabels():
        for line in label.get_text().split("\n"):
            label_width = max(label_width, CHARACTER * len(line))
    before = label_width + 8
    if y.label:
        before += LINE
    left, top, width, height = box
    frame_width = width - before - RIGHT
    frame_height = height - TOP - BOTTOM
    frame = (left + before, top + TOP, frame_width, frame_height)
    axes.set_position(_place(figure, frame))
    _ticks(axes.xaxis, x, int(frame_width / CHARACTER))
    # After the ticks, which may widen it.
    axes.set_xlim(x.low, x.high)
    axes.minorticks_off()
    axes.grid(visible=not panel.rows, axis="y")
    axes.set_title(panel.title, gid=".head")
    axes.xaxis.set_gid(".tick")
    axes.yaxis.set_gid(".tick")


def _ticks(drawn: Any, axis: Axis, room: int = 0) -> None:
    """Set the ticks of an axis: those that it gives, else round numbers.

    Where their labels have no ``room``, in characters, some are left out; 0 is room for all.
    """
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        every = 1
        if room:
            side_by_side = " ".join(names)
            needed = len(side_by_side) + 1
            every = math.ceil(needed / room)
        shown = names[::every]
        labels = [textwrap.fill(name, LONGEST_NAME) for name in shown]
        drawn.set_ticks(places[::every], labels)
        return
    locator: Locator
    if axis.scale == "log":
        locator = LogLocator(subs=(1, 2, 5))
    else:
        locator = MaxNLocator(6, steps=[1, 2, 5, 10], integer=axis.whole)

    def written(value: float, _place: int) -> str:
        return with_minus(f"{value:,.10g}")

    drawn.set_major_locator(locator)
    drawn.set_major_formatter(written)


def _mark(axes: Any, mark: Mark, crosses: Counter[float]) -> None:
    """Draw a mark.

    ``crosses`` counts the words at the foot of the panel at each x, which stand side by side.
    """
    shade, marker = look(mark.tint)
    shared: Any = {"color": shade, "gid": f".{class_of(mark.tint)}"}
    match mark:
        case Rule():
            across = axes.axvline if mark.axis == "x" else axes.axhline
            # Over bars, whose order is 1, and under lines, whose order is 2.
            across(mark.at, linewidth=0.9, linestyle=RULE_DASHES, zorder=1.5, **shared)
        case Text(y=None):
            aside = -1.5 * CHARACTER * crosses[mark.x]
            crosses[mark.x] += 1
            axes.annotate(
                mark.text,
                xy=(mark.x, 0),
                xytext=(aside, 7),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                va="center",
                **shared,
            )
        case Text():
            axes.text(mark.x, mark.y, mark.text, ha=mark.align, va="center", **shared)
        case Bar():
            x, low, high = np.broadcast_arrays(mark.x, mark.low, mark.high)
            # Along the upper line, and back along the lower.
            around_x = np.append(x, x[::-1])
            around_y = np.append(high, low[::-1])
            opacity = PALE if mark.faint else 1
            axes.fill(around_x, around_y, alpha=opacity, linewidth=0, **shared)
        case Curve():
            _curve(axes, mark, marker, shared)


def _curve(axes: Any, curve: Curve, marker: str, shared: Any) -> None:
    """Draw a line with its dots, and its whiskers as one path with gaps."""
    x, y = zip(*curve.points, strict=True)
    shape: dict[str, Any] = {"linestyle": DASHES if curve.dashed else "-"}
    if curve.dots:
        every = math.ceil(len(y) / DOTS)
        # Each line has its dots elsewhere, because lines may coincide.
        first = len(axes.lines) % every
        shape |= {"marker": marker, "markevery": (first, every)}
    axes.plot(x, y, clip_on=False, **shape, **shared)
    whiskers = []
    for at, low, high in curve.whiskers:
        whiskers += [(at, low), (at, high)]
        # The gap before the next one.
        whiskers.append((math.nan, math.nan))
    if whiskers:
        axes.plot(*zip(*whiskers, strict=True), **shared)


def _page(chart: Chart, svg: str, boxes: list[Box]) -> Markup:
    """Return a drawn figure as elements of the page: an SVG for each panel, and for the legend."""
    tints = {tint for _, tint in chart.legend}
    for panel in chart.panels:
        tints.update(mark.tint for mark in panel.marks)
    colours = {}
    for tint in tints:
        colours[class_of(tint)], _ = look(tint)
    shown = Element("div")
    is_wide = len(chart.panels) <= MOST_WIDE
    grid = SubElement(shown, "div", {"class": "panels wide" if is_wide else "panels"})
    groups = ElementTree.fromstring(svg).iterfind(f".//{SVG}g[@id='.panel']")
    legend = Panel(
        title="legend",
        x=Axis(),
        y=Axis(),
        marks=(),
    )
    # Without a legend there is no box for it.
    drawn = zip([*chart.panels, legend], boxes, groups, strict=False)
    for panel, box, group in drawn:
        parent = shown if panel is legend else grid
        view = SubElement(parent, "svg", {"class": "chart", "role": "img"})
        view.set("viewBox", "{:g} {:g} {:g} {:g}".format(*box))
        label = chart.caption
        # The panel of one device alone may have no title.
        if panel.title:
            label += f": {panel.title}"
        view.set("aria-label", label)
        if panel.precision:
            view.set("data-precision", panel.precision)
        view.extend(_converted(group, colours))
    return Markup(ElementTree.tostring(shown, encoding="unicode"))


def _converted(element: Element, colours: Mapping[str, str]) -> list[Element]:
    """Return what an element of matplotlib's comes to on the page, which has its own colours.

    The name of an artist that begins with a dot is a class; other groups are left out, but not what
    is in them.
    """
    tag = element.tag.removeprefix(SVG)
    name = element.get("id", "")
    inside = []
    for child in element:
        inside += _converted(child, colours)
    if tag == "clipPath":
        return []
    if tag == "g" and not name.startswith("."):
        return inside
    made = Element(tag)
    made.extend(inside)
    if tag == "g":
        made.set("class", name[1:])
        # Words of a legend have another class before that of their tint.
        colour = colours.get(name[1:], INK)
        if colour not in (INK, GREY):
            made.set("color", colour)
    else:
        _draw_alike(made, element)
    return [made]


def _draw_alike(made: Element, element: Element) -> None:
    """Take over what the page needs of matplotlib's path, use or text."""
    values = _attributes(element)
    if made.tag == "text":
        made.text = element.text
        values.setdefault("text-anchor", "start")
    elif made.tag == "path" and values.get("fill", "none") != "none":
        made.set("fill", "currentColor")
    if LINK in values:
        made.set("href", values[LINK])
    for key in KEPT:
        value = values.get(key, "")
        if value and value != DEFAULTS.get(key):
            made.set(key, _short(value))


def _attributes(element: Element) -> dict[str, str]:
    """Return the attributes of an element with those of its style."""
    values = dict(element.attrib)
    for style in values.pop("style", "").split("; "):
        key, _, value = style.partition(": ")
        values[key] = value
    # matplotlib turns text that stands upright by an angle of -0.
    if values.get("transform", "").startswith("rotate(-0 "):
        del values["transform"]
    return values


def _short(text: str) -> str:
    """Return numbers of pixels, and the commands of a path, as short as can be seen."""

    def shorter(number: re.Match[str]) -> str:
        return f"{float(number[0]):.1f}".removesuffix(".0")

    rounded = re.sub(r"-?\d+\.\d+", shorter, text.strip())
    return re.sub(r"\s*([A-Zz])\s*", r"\1", rounded)
