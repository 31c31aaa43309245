"""Charts as files: SVG and PNG by matplotlib, for markdown and papers.

matplotlib takes half a second to import, so only the functions that use it import it.
"""

from __future__ import annotations

import io
import logging
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.analysis.explanation import MEMORY_KINDS
from bench.report.figures import chart, svg
from bench.report.figures.chart import Band, Bar, Chart, Line, Mark, Panel, Plot, Rule, Text, Titled, limits, ticks
from bench.results.files import replacing, write_atomically

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INK, GREY = "#24292f", "#8c959f"
STYLE: Any = {
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "text.parse_math": False,
    "svg.hashsalt": "ampmeter",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d0d7de",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
}
INCHES, NARROWEST_INCHES = 10.0, 6.0
"""Width of a figure with all its columns, and of the narrowest."""
TEST: Any = (0, (3, 1.5))
"""The dashes of test data."""
ROW_INCHES = 0.21
CHARACTER_INCHES, HANDLE_INCHES = 0.075, 0.55
"""Width of a character of a legend, about, and of what stands before its words."""
FAINT_ALPHA = 0.18
WORK_COLOURS = ["#0072b2", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7"]
WORK_COLOURS += ["#5e3c78", "#7a4b2a", "#e69f00", "#d0d7de", "#6e7781"]
COLOURS = {
    chart.SOFT: GREY,
    chart.PLAIN: INK,
    chart.LESS: "#2166ac",
    chart.MORE: "#b2182b",
    chart.LOST: "#d55e00",
    chart.COARSE: "#e69f00",
    # activations, which the precision changes most, stand out
    **dict(zip(MEMORY_KINDS, ("#4d4d4d", "#7a7a7a", "#a8a8a8", "#56b4e9", "#d9d9d9"), strict=True)),
    # Okabe and Ito's colours, for readers who see few, and greys where nothing is computed
    **dict(zip(chart.WORK.values(), WORK_COLOURS, strict=True)),
}
"""Tints that are no precision's."""
TITLE_CHARACTERS = 8
"""Of a panel's title in an inch."""


def draw(what: Chart, folder: Path) -> Plot:
    """Return a chart as it is on the page, after writing it as SVG and PNG."""
    if what.in_files:
        write(what, folder)
    page = svg.draw(what)
    return Plot(page=page, **{each.name: getattr(what, each.name) for each in fields(Titled)})


def write(what: Chart, folder: Path) -> None:
    """Draw a chart as SVG and PNG, under its name."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = max(panel.rows for panel in what.panels)
    height = max(1.3 + ROW_INCHES * rows, 2.0) if rows else 2.7
    columns = min(what.columns, len(what.panels))
    lines = math.ceil(len(what.panels) / columns)
    width = max(INCHES * columns / min(what.columns, 3), NARROWEST_INCHES)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # the user cannot mend a font that lacks a glyph
    with mpl.rc_context(STYLE), warnings.catch_warnings(action="ignore", category=UserWarning):
        drawing = Figure(figsize=(width, height * lines), layout="constrained")
        frames = list(drawing.subplots(lines, columns, squeeze=False).flat)
        for place, (axes, panel) in enumerate(zip(frames, what.panels, strict=False)):
            shared = place % columns > 0 and panel.y == what.panels[0].y
            _panel(axes, panel=replace(panel, y=replace(panel.y, label="")) if shared else panel)
            title = textwrap.fill(panel.title, int(TITLE_CHARACTERS * width / columns))
            axes.set_title(title, loc="left", fontweight="bold")
        for axes in frames[len(what.panels) :]:
            axes.set_axis_off()
        drawing.suptitle(textwrap.fill(what.caption, int(10 * width)), fontsize=11, fontweight="bold")
        if what.legend:
            handles = [_handle(text, tint) for text, tint in what.legend]
            drawing.legend(handles=handles, loc="outside lower center", ncols=_legend_columns(what, width))
        text = io.StringIO()
        drawing.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        drawing.set_layout_engine(None)  # keeps the layout that the first drawing found, and need not find it again
        with replacing(folder / f"{what.name}.png") as draft:
            drawing.savefig(draft, dpi=144, metadata={"Software": None})
    write_atomically(folder / f"{what.name}.svg", text.getvalue())


def _legend_columns(what: Chart, width: float) -> int:
    """Return how many columns of the legend fit into a width in inches; it is filled column by column."""
    texts = [text for text, _ in what.legend]
    for columns in range(min(len(texts), int(width / 1.4)), 1, -1):
        rows = math.ceil(len(texts) / columns)
        widest = [max(map(len, texts[start : start + rows])) for start in range(0, len(texts), rows)]
        if sum(CHARACTER_INCHES * characters + HANDLE_INCHES for characters in widest) <= width:
            return columns
    return 1


def colour(tint: str) -> str:
    """Return what a tint is in a file."""
    return COLOURS.get(tint) or (GREY if tint.startswith(chart.REST) else chart.colour(tint))


def _handle(text: str, tint: str) -> Artist:
    """Return an entry of the legend."""
    from matplotlib.lines import Line2D

    sign = {"linestyle": "none", "markersize": 7}
    area = {"linewidth": 7, "alpha": FAINT_ALPHA}
    looks: dict[str, dict[str, Any]] = {
        chart.SOLID: {"color": INK},
        chart.DASHED: {"color": INK, "linestyle": TEST},
        chart.CROSS: {"color": INK, "marker": "x", **sign},
        chart.BAND: {"color": INK, **area},
        **{faint: {"color": colour(faint), **area} for faint in chart.FAINT},
    }
    look = looks.get(tint) or {"color": colour(tint), "marker": marker(tint), **sign}
    return Line2D([], [], label=text, **look)


def marker(tint: str) -> str:
    """Return the marker of what has a tint: a precision's own, which tells it apart without colour."""
    if tint in COLOURS:
        return "o" if tint in (chart.SOFT, chart.PLAIN) else "s"
    return chart.marker(tint)


def _panel(axes: Axes, *, panel: Panel) -> None:
    from matplotlib.ticker import NullLocator

    for mark in panel.marks:
        _mark(axes, mark)
    for which, axis in (("x", panel.x), ("y", panel.y)):
        low, high = limits(panel, which)  # type: ignore[arg-type]  # a loop over literals
        if axis.scale == "log":
            getattr(axes, f"set_{which}scale")("log")
        getattr(axes, f"set_{which}lim")(low, high)
        places: Sequence[tuple[float, str]] = ticks(axis, low, high)
        getattr(axes, f"set_{which}ticks")([place for place, _ in places], [text for _, text in places])
        getattr(axes, f"{which}axis").set_minor_locator(NullLocator())
        getattr(axes, f"set_{which}label")(axis.label)
    if panel.y.scale == "words":
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    if panel.x.scale == "words":
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")


def _mark(axes: Axes, mark: Mark) -> None:
    match mark:
        case Rule():
            look: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": "--", "zorder": 1.5}
            (axes.axvline if mark.axis == "x" else axes.axhline)(mark.at, **look)
        case Text():
            align = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            shade = colour(mark.tint)
            axes.text(mark.x, mark.y, mark.text, ha=align, va="center", fontsize=8, color=shade, clip_on=True)
        case Bar():
            from matplotlib.patches import Rectangle

            (left, right), (bottom, top) = mark.x, mark.y
            edge = {"linewidth": 0.8, "edgecolor": "white"} if mark.tint in chart.WORK.values() else {"linewidth": 0}
            alpha = FAINT_ALPHA if mark.faint else 1.0
            look = {"facecolor": colour(mark.tint), "alpha": alpha, "zorder": 1, **edge}
            axes.add_patch(Rectangle((left, bottom), right - left, top - bottom, **look))
        case Band():
            x, low, high = zip(*mark.points, strict=True)
            axes.fill_between(x, low, high, color=colour(mark.tint), alpha=FAINT_ALPHA, linewidth=0)
        case Line():
            look = {"marker": marker(mark.tint), "markevery": (mark.first, mark.every)} if mark.dots else {}
            for size, bottom, top in mark.whiskers:
                axes.plot([size, size], [bottom, top], color=colour(mark.tint))
            x, y = zip(*mark.points, strict=True)
            look |= {"linewidth": 0.7, "alpha": 0.7} if mark.leads else {}
            style = ":" if mark.leads else TEST if mark.dashed else "-"
            axes.plot(x, y, color=colour(mark.tint), linestyle=style, **look)
