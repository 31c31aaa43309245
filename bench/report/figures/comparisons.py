"""Figures that compare more than precisions: the speedup matrix, and the values of a factor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bench.report.analysis.factors import BATCH_SIZE, Varied
from bench.report.figures import figure
from bench.report.figures.chart import Axis, Chart, Panel

MOST_TICKS = 20
"""An axis with more values than this has no tick at each."""
APART = 0.11
"""Share of an axis below which two short labels would touch."""


def against_value(one: Varied) -> Chart | None:
    """Describe speedup against the value, a panel for each group with all else equal; None where values are words."""
    rows = one.rows.assign(number=pd.to_numeric(one.rows["value"], errors="coerce"))
    timed = rows[rows["speedup"].notna()]
    if rows["number"].isna().any() or timed["number"].nunique() < 2:
        return None
    panels = [_sweep(group, one.name) for _, group in replace(one, rows=timed).groups()]
    return Chart(
        name=re.sub(r"[^a-z0-9]+", "-", f"sweep-{one.suite}-{one.name}".lower()),
        caption=f"{one.suite}: speedup against {one.name}",
        about="Speedup over fp32 at the same value, with its 95 % interval.",
        panels=panels,
        columns=min(3, max(2, len(panels))),
        legend=figure.legend(timed),
    )


def _sweep(group: pd.DataFrame, name: str) -> Panel:
    values = sorted(map(float, group["number"].unique()))
    ticks = zip(positions(values, values), map("{:g}".format, values), strict=True)
    first = group.iloc[0]
    parts = [str(first["where"]), str(first["rest"])]
    parts += [f"batch {first['batch_size']:.0f}"] if name != BATCH_SIZE else []
    return Panel(
        title=", ".join(filter(None, parts)),
        x=Axis(label=name, ticks=list(ticks) if len(values) <= MOST_TICKS else ()),
        y=figure.speedup_axis(group),
        marks=figure.speedups(group.assign(at=positions(group["number"], values)), "at", "value"),
    )


def positions(numbers: Iterable[float], values: Sequence[float]) -> list[float]:
    """Return where numbers are on the axis: evenly spaced by order where labels next to each other would touch."""
    tightest = min(np.diff(values), default=1.0)
    even = len(values) <= MOST_TICKS and tightest < APART * (values[-1] - values[0])
    return [float(values.index(number)) if even else float(number) for number in numbers]
