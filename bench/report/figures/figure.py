"""Shared by all figures: the colours and markers of precisions, the order of their rows, and units of time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from bench.report.figures.chart import Axis, Line, Mark, Rule
from bench.report.format import known, records, times
from bench.spec.precisions import PRECISIONS, precision_rank

SPARE = ("#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Colours of precisions with options."""
GAP = (math.nan, math.nan)
"""Interrupts a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A drawn figure: the name of its files, without suffix, and what it shows."""

    name: str
    caption: str
    about: str
    """How to read it."""
    page: Markup
    """The SVG element of the page."""
    in_files: bool
    """Whether it is also in files."""


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


def legend(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the legend of the precisions."""
    return [(name, name) for name, _ in arms(rows)]


def speedups(timed: pd.DataFrame, at: str, called: str) -> list[Mark]:
    """Describe speedups with their intervals, a line for each precision.

    Args:
        timed: rows of the summary that have a speedup.
        at: the column of their places on x.
        called: the column of what a place is called.
    """
    marks: list[Mark] = [Rule(at=1.0, axis="y")]
    for name, arm in arms(timed, at):
        rows = records(arm)
        ends = [
            point for row in rows if known(row["low"]) for point in ((row[at], row["low"]), (row[at], row["high"]), GAP)
        ]
        marks += [Line(points=ends, tint=name, dots=False)] if ends else []
        says = "; ".join(f"{row[called]}: {times(row['speedup'], row['low'], row['high'])}" for row in rows)
        marks.append(Line(points=[(row[at], row["speedup"]) for row in rows], tint=name, says=f"{name}, {says}"))
    return marks


def speedup_axis(timed: pd.DataFrame) -> Axis:
    """Return an axis of speedups, from 0; an interval that would dwarf them is cut off."""
    most = float(timed["high"].fillna(timed["speedup"]).clip(upper=2 * timed["speedup"].max()).max())
    return Axis(label="speedup (×)", low=0.0, high=max(1.1, most) * 1.08)


def time_unit(longest_s: float) -> tuple[str, float]:
    """Choose a time axis's unit by its longest time: its name and its seconds."""
    return ("h", 3600.0) if longest_s > 7200 else ("min", 60.0) if longest_s > 600 else ("s", 1.0)
