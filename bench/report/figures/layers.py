"""The figure of the layers phase: the modules' shares of the harm that a narrow precision does."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Mark
from bench.report.format import number
from bench.report.reading.load import KEY, SUBJECT
from bench.report.tables.layers import SHOWN, modules


def charts(summary: pd.DataFrame, numerics: pd.DataFrame) -> Iterator[tuple[str, Chart | None]]:
    """Describe the figure of each subject and batch size that was searched; yield each with its workload."""
    searched = dict(list(numerics[numerics["kind"] == "module"].groupby(SUBJECT, sort=False)))
    for key, rows in summary.groupby(SUBJECT, sort=False):
        workload, where, slug = (str(rows[column].iloc[0]) for column in ("workload", "where", "slug"))
        for batch, seen in searched[key].assign(where=where).groupby("batch_size") if key in searched else ():
            panels = [
                _panel(str(arm["precision"].iloc[0]), arm.head(SHOWN))
                for _, arm in modules(seen).groupby(KEY, sort=False)
            ]
            if panels:
                yield (
                    workload,
                    Chart(
                        name=f"{slug}-b{batch:.0f}-layers",
                        caption=f"{workload} on {where} at batch size {batch:.0f}: modules that harm the gradients",
                        about="Each module alone in the narrow type: its share of the sum of squared errors.",
                        panels=panels,
                        columns=min(2, len(panels)),
                    ),
                )


def _panel(precision: str, arm: pd.DataFrame) -> chart.Panel:
    names = [str(name) for name in arm["layer"]]
    marks: list[Mark] = [
        Bar(
            x=(0.0, 100 * share),
            y=(place + 0.15, place + 0.85),
            tint=precision,
            says=f"{name}: {number(100 * share, 2)} %",
        )
        for place, (name, share) in enumerate(zip(names, arm["share"], strict=True))
    ]
    return chart.rows_panel(precision, Axis(label="share of the squared error (%)", low=0.0), names, marks)
