"""Sweeps: a parameter's values beside each other, against the first and precision by precision."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.figures import axes as house
from bench.report.figures.axes import Panel, Plot
from bench.report.reading.load import CELL, Runs
from bench.report.tables.format import UNKNOWN, number, ratio, records
from bench.report.tables.tables import Table, table, told, word
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[Hashable, Any]
VALUE, REST = "value", "rest"
BATCH = "batch_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """A suite with one of its parameters varied, all else alike."""

    suite: str
    name: str
    rows: pd.DataFrame
    """Of the summary, with ``value``, ``rest`` (the other parameters) and ``turn`` (which value came how early)."""


def swept(summary: pd.DataFrame, runs: Runs) -> list[Swept]:
    """Return what the runs have swept, by what they were asked; a parameter is one only with two values measured."""
    names = {run.label: [str(pair[0]) for pair in run.part("request").get("sweep") or []] for run in runs.runs}
    order = {text: turn for turn, text in enumerate(runs.trials["parameters"].drop_duplicates())}
    timed = summary[summary["step_ms"].notna()]
    found = []
    for name in dict.fromkeys(name for asked in names.values() for name in asked):
        asked_for = [run for run, swept_there in names.items() if name in swept_there]
        rows = timed[timed["run"].isin(asked_for)]
        parts = [parse(str(text)) for text in rows["parameters"]]
        rows = rows.assign(
            value=pd.Series([part.get(name) for part in parts], index=rows.index, dtype=object),
            rest=[" ".join(f"{key}={value}" for key, value in part.items() if key != name) for part in parts],
            turn=[order[text] for text in rows["parameters"]],
        )
        for suite, group in rows[rows[VALUE].notna()].groupby("suite", sort=False):
            if group[VALUE].nunique() > 1:
                found.append(Swept(suite=str(suite), name=name, rows=group))
    return found


def parse(text: str) -> dict[str, str]:
    """Return the parameters that a row of trials.csv names."""
    return dict(part.split("=", 1) for part in re.split(r" (?=\w+=)", text) if part)


def table_of(sweep: Swept) -> Table:
    """Return step time, its ratio to the first value's, and speedup for each value, precision by precision."""
    several_sizes = sweep.name != BATCH
    body = []
    for _, alike in _alike(sweep):
        first: dict[str, Row] = {}
        for row in records(alike.sort_values(["turn", "rank"], kind="stable")):
            precision = str(row["precision"])
            against = first.setdefault(precision, row)
            speedup = ratio(row["speedup"], row["low"], row["high"])
            body.append(
                [
                    row["where"],
                    row[REST] or UNKNOWN,
                    *([f"{row['batch_size']:.0f}"] if several_sizes else []),
                    str(row[VALUE]),
                    precision,
                    number(row["step_ms"]),
                    "first" if against is row else _against(row, against),
                    told(row["speed_status"], "baseline" if precision == BASELINE else speedup, row["lost_speed"]),
                    word(row["verdict"]),
                ]
            )
    headers = ["device", "other parameters", *(["batch size"] if several_sizes else []), sweep.name, "precision"]
    headers += ["step (ms)", "× step of the first value [95 % interval]", "speedup [95 % interval]", "verdict"]
    about = (
        f"Each value of {sweep.name}, with all else alike. The step's time is compared with that at the first value, "
        "in the same precision, by Welch's interval over processes, for they were not measured side by side; more work "
        "takes more time, so what a value costs shows where its neighbours do nearly the same work. The speedup is "
        "over fp32 at the same value."
    )
    made = table(f"{sweep.suite}: {sweep.name}", headers, body, about=about)
    return _without(made, 1) if {line[1] for line in made.rows} == {UNKNOWN} else made


def _alike(sweep: Swept) -> Any:
    keys = [key for key in CELL if key not in ("parameters", *([BATCH] if sweep.name == BATCH else []))]
    return sweep.rows.groupby([*keys, REST], sort=False)


def _against(row: Row, first: Row) -> str:
    """Return the ratio of two step times, which are batch sizes over throughputs."""
    steps, before = (np.log(one["batch_size"] / np.asarray(one["paces"], dtype=float)) for one in (row, first))
    apart = stats.welch_interval(steps, before).exp()
    return ratio(apart.center, apart.low, apart.high)


def _without(made: Table, column: int) -> Table:
    def cut(cells: list[str]) -> list[str]:
        return [*cells[:column], *cells[column + 1 :]]

    rows = [cut(row) for row in made.rows]
    return Table(headers=cut(made.headers), rows=rows, title=made.title, about=made.about, footnotes=made.footnotes)


def plots_of(sweep: Swept, folder: Path) -> list[Plot]:
    """Draw speedup against the value, a panel for each group with all else alike; nothing where values are words."""
    values = pd.to_numeric(sweep.rows[VALUE], errors="coerce")
    rows = sweep.rows.assign(number=values)
    rows = rows[rows["speedup"].notna()]
    if values.isna().any() or rows["number"].nunique() < 2:
        return []
    groups = [alike for _, alike in _alike(Swept(suite=sweep.suite, name=sweep.name, rows=rows))]
    panels = [_panel(alike, sweep.name) for alike in groups]
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
    parts += [f"batch {first['batch_size']:.0f}"] if name != BATCH else []
    axes.set_title(", ".join(part for part in parts if part))
