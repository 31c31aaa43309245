"""The figure of a factor: speedup against its values."""

from __future__ import annotations

import pandas as pd

from bench.report.analysis.factors import BATCH_SIZE, Varied
from bench.report.figures import chart
from bench.report.figures.chart import Chart
from bench.report.figures.devices import SharedAxes, labelled
from bench.report.figures.svg import CHARACTER, WIDEST
from bench.report.reading.labels import slug

MOST_TICKS = 20
"""An axis with more values than this has no tick at each."""


def against_value(varied: Varied) -> Chart | None:
    """Describe speedup against the value, a panel for each group with all else equal; None where values are words.

    Values that are too close to be read, or not above 0, are evenly spaced.
    """
    all_else = varied.groups().ngroup()
    rows = varied.rows.assign(value=varied.rows["speedup"], line=varied.rows["precision"], status="ok")
    rows["batch_size"] = pd.to_numeric(varied.rows["value"], errors="coerce")
    timed = rows[rows["value"].notna()]
    values = sorted(timed["batch_size"].unique().tolist())
    if rows["batch_size"].isna().any() or len(values) < 2:
        return None
    names: dict[float, str] = {}
    if values[0] <= 0 or len(labelled(values, CHARACTER / WIDEST)) < len(values) <= MOST_TICKS:
        names = {float(place): f"{value:g}" for place, value in enumerate(values, 1)}
        timed = timed.assign(batch_size=timed["batch_size"].map(lambda value: values.index(value) + 1.0))
    groups = [
        timed.loc[group.index].assign(device=_all_else(group.iloc[0], varied))
        for _, group in varied.rows.loc[timed.index].groupby(all_else)
    ]
    lines = [name for name, _ in chart.arms(timed)]
    axes = SharedAxes(timed, lines, {}, "", over_fp32=True, across=len(groups), along=varied.name, names=names)
    return Chart(
        name=slug(f"sweep-{varied.suite}-{varied.name}"),
        caption=f"{varied.suite}: speedup against {varied.name}",
        about="Speedup over fp32 at the same value, with its 95 % interval.",
        panels=[axes.panel("", group) for group in groups],
        columns=axes.columns,
        legend=[] if axes.labelled else chart.legend(timed),
    )


def _all_else(row: pd.Series, varied: Varied) -> str:
    """Name what is equal in a panel."""
    batch = "" if varied.name == BATCH_SIZE else f"batch {row['batch_size']:.0f}"
    return ", ".join(filter(None, [str(row["where"]), str(row["rest"]), batch]))
