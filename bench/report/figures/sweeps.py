"""Speedup against the values of a swept parameter."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from bench.report.figures import axes as house
from bench.report.figures.axes import Plot
from bench.report.tables.sweeps import BATCH_SIZE, REST, VALUE, Swept, groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(sweep: Swept, folder: Path) -> list[Plot]:
    """Draw speedup against the value, a panel for each group with all else equal; nothing where values are words."""
    values = pd.to_numeric(sweep.rows[VALUE], errors="coerce")
    rows = sweep.rows.assign(number=values)
    rows = rows[rows["speedup"].notna()]
    if values.isna().any() or rows["number"].nunique() < 2:
        return []
    name = re.sub(r"[^a-z0-9]+", "-", f"sweep-{sweep.suite}-{sweep.name}".lower())
    caption = f"{sweep.suite}: speedup against {sweep.name}"
    alike = groups(Swept(suite=sweep.suite, name=sweep.name, rows=rows))
    grid = house.grid([functools.partial(_panel, group=group, name=sweep.name) for _, group in alike])
    return [house.save(grid, rows, name=name, caption=caption, folder=folder)]


def _places(numbers: Iterable[float], values: Sequence[float]) -> list[float]:
    """Return the places of numbers on the axis: evenly spaced by order where labels of neighbours would touch."""
    gaps = [after - before for before, after in itertools.pairwise(values)]
    even = len(values) <= house.MOST_TICKS and min(gaps, default=1.0) < house.APART * (values[-1] - values[0])
    return [float(values.index(number)) if even else float(number) for number in numbers]


def _panel(axes: Axes, _rows: pd.DataFrame, *, group: pd.DataFrame, name: str) -> None:
    house.baseline(axes)
    values = sorted(group["number"].unique())
    for precision, arm in house.arms(group, "number"):
        spread = house.errors(arm["speedup"], arm["low"], arm["high"])
        places = _places(arm["number"], values)
        axes.errorbar(places, arm["speedup"], yerr=spread, capsize=3, label=precision, **house.look(precision))
    if len(values) <= house.MOST_TICKS:
        axes.set_xticks(_places(values, values), [f"{value:g}" for value in values])
        axes.tick_params(axis="x", rotation=45 if len(values) > 4 else 0)
    axes.set_xlabel(name)
    house.speedup_axis(axes)
    first = group.iloc[0]
    parts = [str(first["where"]), str(first[REST])]
    parts += [f"batch {first['batch_size']:.0f}"] if name != BATCH_SIZE else []
    axes.set_title(", ".join(part for part in parts if part))
