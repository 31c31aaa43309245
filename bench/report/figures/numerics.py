"""Figures of the numerics and layers phases: histograms of gradients, and the modules that harm them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Line, Mark, Panel, Rule, Text
from bench.report.format import number
from bench.report.reading.load import KEY, SUBJECT
from bench.report.tables.layers import SHOWN, modules
from bench.report.tables.measurements import FIRST_SCALE, FP16_NORMAL, FP16_ZERO, GRADIENTS, first_seed, last_steps

SHARES = (0.001, 1500.0)
"""The ends of the axis of shares, in per cent; above 100 there is room for words."""
LEGEND = (("zero in fp16", chart.LOST), ("subnormal in fp16", chart.COARSE))
FILES = {"gradient": "gradients", "output_gradient": "output-gradients"}
"""How the files of the kinds of gradients end."""
EVERY = 4
"""Which powers of two have a dot; those of each precision are others, for the lines may lie on each other."""
Select = Callable[[pd.DataFrame], pd.DataFrame]


def charts(summary: pd.DataFrame, numerics: pd.DataFrame) -> Iterator[tuple[str, Chart | None]]:
    """Describe the histograms of each subject and batch size, then the modules; yield each with its workload."""
    for workload, name, subject, rows in _batches(summary, first_seed(numerics[numerics["kind"] != "module"])):
        for kind in FILES:
            if (rows["kind"] == kind).any():
                yield workload, _gradients(rows, kind, name=name, subject=subject)
    for workload, name, subject, rows in _batches(summary, numerics[numerics["kind"] == "module"]):
        yield workload, _modules(rows, name=name, subject=subject)


def _batches(summary: pd.DataFrame, numerics: pd.DataFrame) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield the workload, name of files, title and rows of each subject and batch size, in the summary's order."""
    groups = dict(list(numerics.groupby(SUBJECT, sort=False)))
    for key, rows in summary.groupby(SUBJECT, sort=False):
        workload, where, slug = (str(rows[column].iloc[0]) for column in ("workload", "where", "slug"))
        for batch, seen in groups[key].assign(where=where).groupby("batch_size") if key in groups else ():
            yield workload, f"{slug}-b{batch:.0f}", f"{workload} on {where} at batch size {batch:.0f}", seen


def _modules(rows: pd.DataFrame, *, name: str, subject: str) -> Chart | None:
    """Describe the modules' shares of the harm that a narrow precision does; None where none was searched."""
    arms = modules(rows).dropna(subset="share").groupby(KEY, sort=False)
    panels = [_shares(str(arm["precision"].iloc[0]), arm.head(SHOWN)) for _, arm in arms]
    if not panels:
        return None
    return Chart(
        name=f"{name}-layers",
        caption=f"{subject}: modules that harm the gradients",
        about="Each module alone in the narrow type: its share of the sum of squared errors.",
        panels=panels,
        columns=min(2, len(panels)),
    )


def _shares(precision: str, arm: pd.DataFrame) -> Panel:
    names = [str(name) for name in arm["layer"]]
    marks: list[Mark] = [
        Bar(x=(0.0, share), y=(place + 0.15, place + 0.85), tint=precision, says=f"{name}: {number(share, 2)} %")
        for place, (name, share) in enumerate(zip(names, 100 * arm["share"], strict=True))
    ]
    return chart.rows_panel(precision, Axis(label="share of the squared error (%)", low=0.0), names, marks)


def _gradients(rows: pd.DataFrame, kind: str, *, name: str, subject: str) -> Chart:
    """Describe the magnitudes of gradients of a kind in the first step and in the last steps."""
    whole = rows[(rows["kind"] == kind) & (rows["layer"] == "")]
    scales = rows.loc[(rows["kind"] == "step") & (rows["name"] == "loss_scale"), "value"]
    scale = float(scales.max()) if len(scales) else FIRST_SCALE
    powers = [int(word) for word in whole["name"].unique() if word.lstrip("-").isdigit()]
    lowest = min([FP16_ZERO - math.ceil(math.log2(scale)) - 3, *powers])
    exponents = np.arange(lowest, max([0, *powers]) + 1)
    first = _histogram("First step", whole, lambda arm: arm[arm["step"] == 0], exponents, scale)
    last = _histogram("Last steps", whole, last_steps, exponents, scale)
    return Chart(
        name=f"{name}-{FILES[kind]}",
        caption=f"{subject}: gradients of {GRADIENTS[kind]} by magnitude",
        about="The share of all values at each power of two, and of zeros. The arrow: where a loss scale moves them.",
        panels=[first, last],
        columns=2,
        legend=[*chart.legend(whole), *LEGEND],
    )


def _histogram(title: str, rows: pd.DataFrame, steps: Select, exponents: np.ndarray, scale: float) -> Panel:
    arms = chart.arms(rows)
    zero = int(exponents[0]) - 3 - len(arms)
    marks: list[Mark] = []
    for index, (name, arm) in enumerate(arms):
        counts = steps(arm).groupby("name")["value"].sum()
        spread = 100 * counts / counts.sum()
        look: dict[str, Any] = {"tint": name, "says": f"{name}, {spread.get('zero', 0.0):.3g} % zeros"}
        marks.append(Line(points=_heights(spread, exponents), first=index % EVERY, every=EVERY, **look))
        marks.append(Line(points=[(zero + index, spread.get("zero", 0.0) or math.nan)], **look))
    moved = FP16_ZERO - math.log2(scale)
    text = f"zero at a scale of 2^{math.log2(scale):g}"
    marks += [Rule(at=moved, axis="x"), Text(x=moved + 0.4, y=SHARES[1] / 2, text=text, anchor="start")]
    arrow = [(moved, SHARES[1] / 4), (FP16_ZERO, SHARES[1] / 4)]
    marks += [Line(points=arrow, tint=chart.PLAIN, dots=False), Text(x=FP16_ZERO, y=SHARES[1] / 4, text="▶")]
    return _magnitudes(title, marks, exponents, zero + (len(arms) - 1) / 2)


def _heights(shares: Any, exponents: np.ndarray) -> list[tuple[float, float]]:
    """Return a line over powers of two, which falls to the axis next to filled bins, and is interrupted elsewhere."""
    heights = np.array([0.0, *(float(shares.get(str(exponent), 0.0)) for exponent in exponents), 0.0])
    empty = (heights[1:-1] == 0) & (heights[:-2] == 0) & (heights[2:] == 0)
    return list(zip(exponents + 0.5, np.where(empty, math.nan, heights[1:-1]), strict=True))


def _magnitudes(title: str, marks: Sequence[Mark], exponents: np.ndarray, zero: float) -> Panel:
    """Return a panel over powers of two, ``zero`` being where zeros are; float16's zeros and subnormals are shaded."""
    low, high = int(exponents[0]), int(exponents[-1])
    left = min([zero, *(x for mark in marks if isinstance(mark, Line) for x, _ in mark.points)])
    areas = [
        Bar(x=(low - 1, FP16_ZERO), y=SHARES, tint=chart.LOST, faint=True),
        Bar(x=(FP16_ZERO, FP16_NORMAL), y=SHARES, tint=chart.COARSE, faint=True),
    ]
    powers = [(float(at), f"2^{at:g}".replace("-", "−")) for at in range(low, high + 1) if at % 10 == 0]
    x = Axis(label="magnitude", ticks=[(zero, "zero"), *powers], low=left - 1.5, high=high + 1.5)
    ticks = [(10.0**power, f"{10.0**power:g}") for power in range(-3, 3)]
    y = Axis(label="share of all values (%)", scale="log", ticks=ticks, low=SHARES[0], high=SHARES[1])
    return Panel(title=title, x=x, y=y, marks=[*areas, *marks])
