"""Speedup against the values of a swept parameter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.report.figures import axes as house
from bench.report.figures.axes import Panel, Plot
from bench.report.tables.sweeps import BATCH_SIZE, REST, VALUE, Swept, groups
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(sweep: Swept, folder: Path) -> list[Plot]:
    """Draw speedup against the value, a panel for each group with all else alike; nothing where values are words."""
    values = pd.to_numeric(sweep.rows[VALUE], errors="coerce")
    rows = sweep.rows.assign(number=values)
    rows = rows[rows["speedup"].notna()]
    if values.isna().any() or rows["number"].nunique() < 2:
        return []
    alike = [group for _, group in groups(Swept(suite=sweep.suite, name=sweep.name, rows=rows))]
    panels = [_panel(group, sweep.name) for group in alike]
    name = re.sub(r"[^a-z0-9]+", "-", f"sweep-{sweep.suite}-{sweep.name}".lower())
    caption = f"{sweep.suite}: speedup against {sweep.name}"
    grid = [panels[start : start + 3] for start in range(0, len(panels), 3)]
    grid[-1] += [_blank] * (len(grid[0]) - len(grid[-1]))
    return [house.save(grid, rows, name=name, caption=caption, folder=folder)]


def _panel(rows: pd.DataFrame, name: str) -> Panel:
    return lambda axes, _rows: _draw(axes, rows, name)


def _blank(axes: Axes, _rows: pd.DataFrame) -> None:
    axes.set_axis_off()


def _places(numbers: Iterable[float], values: Sequence[float]) -> list[float]:
    """Return where numbers are on the axis: evenly spaced by order where any two of all values would touch."""
    gaps = [after - before for before, after in itertools.pairwise(values)]
    even = len(values) <= house.MOST_TICKS and min(gaps, default=1.0) < house.APART * (values[-1] - values[0])
    return [float(values.index(number)) if even else float(number) for number in numbers]


def _draw(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    axes.axhline(1.0, color=house.colour(BASELINE), linewidth=1.4, linestyle="--", label=BASELINE)
    values = sorted(rows["number"].unique())
    for precision, arm in rows.sort_values(["rank", "number"]).groupby("precision", sort=False):
        center = arm["speedup"]
        spread = [(center - arm["low"]).fillna(0).to_numpy(), (arm["high"] - center).fillna(0).to_numpy()]
        look: dict[str, Any] = {"color": house.colour(str(precision)), "marker": house.marker(str(precision))}
        axes.errorbar(_places(arm["number"], values), center, yerr=spread, capsize=3, label=str(precision), **look)
    if len(values) <= house.MOST_TICKS:
        axes.set_xticks(_places(values, values), [f"{value:g}" for value in values])
        axes.tick_params(axis="x", rotation=45 if len(values) > 4 else 0)
    axes.set_xlabel(name)
    axes.set_ylim(0, axes.get_ylim()[1])
    axes.set_ylabel("speedup (×), 95 % interval")
    first = rows.iloc[0]
    parts = [str(first["where"]), str(first[REST])]
    parts += [f"batch {first['batch_size']:.0f}"] if name != BATCH_SIZE else []
    axes.set_title(", ".join(part for part in parts if part))
