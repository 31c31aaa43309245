"""What all figures share: colours, axes, and the files of a figure.

matplotlib takes half a second to import, so only the functions that use it import it.
"""

from __future__ import annotations

import io
import itertools
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.spec.precisions import BASELINE, PRECISIONS, precision_rank

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INK, FAINT = "#24292f", "#d0d7de"
SPARE = ("#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Colours of precisions with options."""
STYLE: Any = {
    "text.parse_math": False,
    "svg.hashsalt": "ampmeter",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
}
Panel = Callable[["Axes"], None]
"""Draws into axes."""
NARROWEST_INCHES = 6.0
MOST_TICKS = 20
"""An axis with more values than this has no tick at each."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what matplotlib has to say from the user, who cannot mend it: that a font lacks a glyph, for one."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        log.setLevel(level)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A drawn figure: the name of its files, without suffix, and what it shows."""

    name: str
    caption: str
    svg: str
    """As it is in its file; empty where it has none."""
    about: str = ""
    """How to read it."""
    page: str = ""
    """As it is on the page, where that is another drawing of the same."""


def save(
    grid: Sequence[Sequence[Panel]],
    *,
    name: str,
    caption: str,
    folder: Path,
    panel_inches: tuple[float, float] = (3.7, 3.5),
    share_y: bool = False,
    legend: Sequence[Artist] = (),
) -> Plot:
    """Draw rows of panels and write the figure as SVG and PNG, under ``name`` without suffix.

    With ``share_y`` the panels of a row have one y axis. ``legend`` has the handles; without it they are those of the
    panels, each label once.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    width = max(panel_inches[0] * len(grid[0]), NARROWEST_INCHES)
    with mpl.rc_context(STYLE), quiet():
        figure = Figure(figsize=(width, panel_inches[1] * len(grid)), layout="constrained")
        frames = figure.subplots(len(grid), len(grid[0]), squeeze=False, sharey="row" if share_y else False)
        for axes, panel in zip(frames.flat, itertools.chain(*grid), strict=True):
            panel(axes)
        figure.suptitle(textwrap.fill(caption, int(10 * width)), fontsize=11, fontweight="bold")
        handles = {str(handle.get_label()): handle for handle in legend} or {
            text: line for axes in figure.axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if handles:
            columns = min(len(handles), int(width / 1.4))
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine(None)  # keeps the layout that the first drawing found, and need not find it again
        figure.savefig(folder / f"{name}.png", dpi=144, metadata={"Software": None})
    (folder / f"{name}.svg").write_text(text.getvalue(), encoding="utf-8")
    return Plot(name=name, caption=caption, svg=text.getvalue())


def colour(precision: str) -> str:
    """Return a precision's colour, the same in every figure."""
    if precision in PRECISIONS:
        return PRECISIONS[precision].color
    return SPARE[sum(precision.encode()) % len(SPARE)]


def look(precision: str) -> dict[str, Any]:
    """Return a precision's colour and marker, which tells it apart for readers without colour."""
    return {"color": colour(precision), "marker": PRECISIONS[precision].marker if precision in PRECISIONS else "v"}


def arms(rows: pd.DataFrame, by: str = "") -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each precision, in the order of every table; sorted ``by`` a column, if one is named."""
    rows = rows.sort_values(by, kind="stable") if by else rows
    return [(name, rows[rows["precision"] == name]) for name in sorted(rows["precision"].unique(), key=precision_rank)]


def grid(panels: Sequence[Panel], columns: int = 3) -> list[list[Panel]]:
    """Return panels in rows of at most so many, the last row filled up with empty ones."""
    columns = min(columns, len(panels))
    panels = [*panels, *[lambda axes: axes.set_axis_off()] * (-len(panels) % columns)]
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def speedup_axis(axes: Axes) -> None:
    """Make y an axis of speedups, from 0, with a line for fp32 at 1."""
    axes.axhline(1.0, color=colour(BASELINE), linewidth=1.4, linestyle="--", label=BASELINE, zorder=1.9)
    axes.autoscale_view(scalex=False)
    axes.set_ylim(0, axes.get_ylim()[1])
    axes.set_ylabel("speedup (×), 95 % interval")


def errors(center: pd.Series, low: pd.Series, high: pd.Series) -> list[Any]:
    """Return the lengths of error bars below and above; 0 where there is no interval."""
    return [(center - low).fillna(0).to_numpy(), (high - center).fillna(0).to_numpy()]


def handle(label: str, **look: Any) -> Artist:
    """Return a legend's line or marker."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def in_full(value: float, _place: object = None) -> str:
    """Write a tick in full, with thousands separated."""
    return f"{value:,.10g}".replace("-", "−")


def log_axis(axes: Axes) -> None:
    """Make y logarithmic, its ticks written in full: 0.1, 0.2, 0.5, 1."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def time_unit(longest_s: float) -> tuple[str, float]:
    """Choose a time axis's unit by its longest time: its name and its seconds."""
    return ("h", 3600.0) if longest_s > 7200 else ("min", 60.0) if longest_s > 600 else ("s", 1.0)
