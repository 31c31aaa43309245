"""Charts as files: SVG and PNG by matplotlib, for markdown and papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.figures import chart, figure, svg
from bench.report.figures.chart import (
    KINDS,
    PLAIN,
    SOFT,
    Band,
    Bar,
    Chart,
    Line,
    Mark,
    Panel,
    Rule,
    Text,
    limits,
    ticks,
)
from bench.report.figures.figure import Plot

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INCHES = 10.0
"""Width of a figure."""
TEST: Any = (0, (3, 1.5))
"""The dashes of test data."""
ROW_INCHES = 0.21
GREYS = ("#4d4d4d", "#7a7a7a", "#a8a8a8", "#56b4e9", "#d9d9d9")
"""Colours of ``KINDS``: activations, which the precision changes most, stand out."""
HEAT = "RdBu"


def draw(what: Chart, folder: Path) -> Plot:
    """Write a chart as SVG and PNG, and return it with its SVG for the page."""
    rows = max(panel.rows for panel in what.panels)
    columns = min(what.columns, len(what.panels))
    height = max(1.3 + ROW_INCHES * rows, 2.0) if rows else 2.7
    panels = figure.grid([partial(_panel, panel=panel) for panel in what.panels], columns)
    handles = [_handle(text, tint) for text, tint in what.legend]
    inches = (INCHES / columns, height)
    plot = figure.save(panels, name=what.name, caption=what.caption, folder=folder, panel_inches=inches, legend=handles)
    return replace(plot, about=what.about, page=svg.draw(what))


def on_page(what: Chart) -> Plot:
    """Return a chart that is on the page alone, for drawing it to files takes seconds or could not be read."""
    return Plot(name=what.name, caption=what.caption, about=what.about, svg="", page=svg.draw(what))


def colour(tint: str) -> str:
    """Return what a tint is in a file."""
    if tint in KINDS:
        return GREYS[KINDS.index(tint)]
    return {SOFT: "#8c959f", PLAIN: figure.INK}.get(tint) or figure.colour(tint)


def _handle(text: str, tint: str) -> Artist:
    """Return an entry of the legend."""
    look: dict[str, Any] = {"color": figure.INK}
    match tint:
        case chart.SOLID:
            look |= {"linestyle": "-"}
        case chart.DASHED:
            look |= {"linestyle": TEST}
        case chart.CROSS:
            look |= {"linestyle": "none", "marker": "x", "markersize": 7}
        case chart.BAND:
            look |= {"linewidth": 7, "alpha": 0.18}
        case _:
            look = {"color": colour(tint), "marker": marker(tint), "linestyle": "none", "markersize": 7}
    return figure.handle(text, **look)


def marker(tint: str) -> str:
    """Return the marker of what has a tint: a precision's own, which tells it apart without colour."""
    return "s" if tint in KINDS else str(figure.look(tint)["marker"])


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
    axes.set_title(panel.title, loc="left", fontweight="bold")


def _mark(axes: Axes, mark: Mark) -> None:
    match mark:
        case Rule():
            look: dict[str, Any] = {"color": "#8c959f", "linewidth": 1.2, "linestyle": "--", "zorder": 1.5}
            (axes.axvline if mark.axis == "x" else axes.axhline)(mark.at, **look)
            if mark.label:
                place: dict[str, Any] = {"fontsize": 7.5, "color": "#59636e"}
                if mark.axis == "y":
                    axes.text(
                        0.99,
                        mark.at,
                        mark.label,
                        transform=axes.get_yaxis_transform(),
                        ha="right",
                        va="bottom",
                        **place,
                    )
                else:
                    axes.text(
                        mark.at,
                        1.0,
                        mark.label,
                        transform=axes.get_xaxis_transform(),
                        ha="center",
                        va="bottom",
                        **place,
                    )
        case Text():
            align = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            shade = "white" if mark.inverse else colour(mark.tint)
            axes.text(mark.x, mark.y, mark.text, ha=align, va="center", fontsize=8, color=shade, clip_on=True)
        case Bar():
            _bar(axes, mark)
        case Band():
            x, low, high = zip(*mark.points, strict=True)
            axes.fill_between(x, low, high, color=colour(mark.tint), alpha=0.18, linewidth=0)
        case Line():
            look = {} if mark.tint in (SOFT, PLAIN) else {"marker": marker(mark.tint)}
            axes.plot(
                [x for x, _ in mark.points],
                [y for _, y in mark.points],
                color=colour(mark.tint),
                linestyle=TEST if mark.dashed else "-",
                markevery=mark.every,
                **(look if mark.dots else {}),
            )


def _bar(axes: Axes, mark: Bar) -> None:
    import matplotlib as mpl
    from matplotlib.patches import Rectangle

    tint = mpl.colormaps[HEAT](0.5 + mark.heat / 2.4) if mark.heat is not None else colour(mark.tint)
    size = mark.x[1] - mark.x[0], mark.y[1] - mark.y[0]
    axes.add_patch(
        Rectangle(
            (mark.x[0], mark.y[0]), *size, facecolor=tint, alpha=0.18 if mark.faint else 1.0, linewidth=0, zorder=1
        )
    )
