"""Figures of the numerics phase: magnitudes of gradients, and the course of loss and loss scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Line, Mark, Panel, Rule, Text
from bench.report.figures.training import falls_far, whole_numbers
from bench.report.reading.load import SUBJECT
from bench.report.tables.measurements import FIRST_SCALE, FP16_NORMAL, FP16_ZERO, first_seed, last_steps

FEWEST_BINS = (-30, 0)
"""Exponents that are always drawn, so that float16's limits have a place."""
SHARES = (0.001, 1500.0)
"""The ends of the axis of shares, in per cent; above 100 there is room for words."""
LEGEND = (("zero in fp16", chart.LOST), ("subnormal in fp16", chart.COARSE))
GRADIENTS = {
    "gradient": ("gradients", "gradients"),
    "output_gradient": ("output-gradients", "gradients of layers' outputs"),
}
"""Kinds of gradients, and how their figures' files and captions call them."""
EVERY = 4
"""Which powers of two have a dot; those of each precision are others, for the lines may lie on each other."""
MARKS = 8
"""About so many dots on a line."""
Select = Callable[[pd.DataFrame], pd.DataFrame]


def charts(summary: pd.DataFrame, numerics: pd.DataFrame) -> Iterator[tuple[str, Chart | None]]:
    """Describe the figures of each subject and batch size; yield each with its workload."""
    watched = dict(list(first_seed(numerics[numerics["kind"] != "module"]).groupby(SUBJECT, sort=False)))
    for key, rows in summary.groupby(SUBJECT, sort=False):
        workload, where, slug = (str(rows[column].iloc[0]) for column in ("workload", "where", "slug"))
        for batch, seen in watched[key].groupby("batch_size") if key in watched else ():
            name, subject = f"{slug}-b{batch:.0f}", f"{workload} on {where} at batch size {batch:.0f}"
            for kind in GRADIENTS:
                if (seen["kind"] == kind).any():
                    yield workload, _gradients(seen, kind, name=name, subject=subject)
            yield workload, _course(seen, name=name, subject=subject)


# Histograms: lines over powers of two, and at the left the share of zeros.


def _gradients(rows: pd.DataFrame, kind: str, *, name: str, subject: str) -> Chart:
    """Describe the magnitudes of gradients of a kind in the first step and in the last steps."""
    whole = rows[(rows["kind"] == kind) & (rows["layer"] == "")]
    scales = rows.loc[(rows["kind"] == "step") & (rows["name"] == "loss_scale"), "value"]
    scale = float(scales.max()) if len(scales) else FIRST_SCALE if kind == "output_gradient" else None
    slug, words = GRADIENTS[kind]
    exponents = _bins(whole, FEWEST_BINS[0] if scale is None else FP16_ZERO - math.ceil(math.log2(scale)) - 3)
    first = _histogram("First step", whole, lambda arm: arm[arm["step"] == 0], exponents, scale)
    last = _histogram("Last steps", whole, last_steps, exponents, scale)
    return Chart(
        name=f"{name}-{slug}",
        caption=f"{subject}: magnitudes of {words}",
        about="The share of all values at each power of two, and of zeros. The arrow: where a loss scale moves them.",
        panels=[first, last],
        columns=2,
        legend=[*chart.legend(whole), *LEGEND],
    )


def _histogram(title: str, rows: pd.DataFrame, steps: Select, exponents: np.ndarray, scale: float | None) -> Panel:
    arms = chart.arms(rows)
    zero = int(exponents[0]) - 3 - len(arms)
    marks: list[Mark] = []
    for index, (name, arm) in enumerate(arms):
        counts = steps(arm).groupby("name")["value"].sum()
        spread = 100 * counts / counts.sum()
        look: dict[str, Any] = {"tint": name, "says": _says(name, spread)}
        marks.append(Line(points=_heights(spread, exponents), first=index % EVERY, every=EVERY, **look))
        marks.append(Line(points=[(zero + index, spread.get("zero", 0.0) or math.nan)], **look))
    if scale is not None:
        moved = FP16_ZERO - math.log2(scale)
        text = f"zero at a scale of 2^{math.log2(scale):g}"
        marks += [Rule(at=moved, axis="x"), Text(x=moved + 0.4, y=SHARES[1] / 2, text=text, anchor="start")]
        arrow = [(moved, SHARES[1] / 4), (FP16_ZERO, SHARES[1] / 4)]
        marks += [Line(points=arrow, tint=chart.PLAIN, dots=False), Text(x=FP16_ZERO, y=SHARES[1] / 4, text="▶")]
    return _magnitudes(title, marks, exponents, zero + (len(arms) - 1) / 2)


def _says(name: str, shares: Any) -> str:
    return f"{name}, {shares.get('zero', 0.0):.3g} % zeros"


def _bins(rows: pd.DataFrame, lowest: int) -> np.ndarray:
    """Return the exponents that are drawn, at least from ``lowest`` on."""
    powers = [int(word) for word in rows["name"].unique() if word.lstrip("-").isdigit()]
    return np.arange(min([lowest, *powers]), max([FEWEST_BINS[1], *powers]) + 1)


def _heights(shares: Any, exponents: np.ndarray) -> list[tuple[float, float]]:
    """Return a line over powers of two, which falls to the axis next to filled bins, and is interrupted elsewhere."""
    heights = np.array([0.0, *(float(shares.get(str(exponent), 0.0)) for exponent in exponents), 0.0])
    empty = (heights[1:-1] == 0) & (heights[:-2] == 0) & (heights[2:] == 0)
    return list(zip(exponents + 0.5, np.where(empty, math.nan, heights[1:-1]), strict=True))


def _magnitudes(title: str, marks: Sequence[Mark], exponents: np.ndarray, zero: float) -> Panel:
    """Return a panel over powers of two; what float16 makes zero or subnormal is shaded.

    Args:
        title: of the panel.
        marks: what is drawn.
        exponents: the powers of two.
        zero: where the share of zeros is.
    """
    low, high = int(exponents[0]), int(exponents[-1])
    left = min([zero, *(x for mark in marks if isinstance(mark, Line) for x, _ in mark.points)])
    areas = [
        Bar(x=(low - 1, FP16_ZERO), y=SHARES, tint=chart.LOST, faint=True),
        Bar(x=(FP16_ZERO, FP16_NORMAL), y=SHARES, tint=chart.COARSE, faint=True),
    ]
    powers = [(float(at), _power(at)) for at in range(low, high + 1) if at % 10 == 0]
    x = Axis(label="magnitude", ticks=[(zero, "zero"), *powers], low=left - 1.5, high=high + 1.5)
    ticks = [(10.0**power, f"{10.0**power:g}") for power in range(-3, 3)]
    y = Axis(label="share of all values (%)", scale="log", ticks=ticks, low=SHARES[0], high=SHARES[1])
    return Panel(title=title, x=x, y=y, marks=[*areas, *marks])


def _power(exponent: float) -> str:
    return f"2^{exponent:g}".replace("-", "−")


# The first steps.


def _course(rows: pd.DataFrame, *, name: str, subject: str) -> Chart:
    """Describe the loss of the first steps, and the loss scale where there is one."""
    steps = rows[rows["kind"] == "step"]
    panels = [_loss(steps), *([_loss_scale(steps)] if _scaled(steps) else [])]
    legend = chart.legend(steps)
    legend += [("not finite after this", chart.CROSS)] if _failed(steps).any() else []
    skipped = (steps["name"] == "skipped") & (steps["value"] > 0)
    if len(panels) > 1 and steps[skipped]["precision"].isin(_scaled(steps)).any():
        legend.append(("step skipped", chart.STROKE))
    return Chart(
        name=f"{name}-loss-scale",
        caption=f"{subject}: the first {steps['step'].max() + 1:.0f} steps",
        about="Of one training, that of the first seed.",
        panels=panels,
        columns=2,
        legend=legend,
    )


def _scaled(steps: pd.DataFrame) -> set[str]:
    return set(steps.loc[steps["name"] == "loss_scale", "precision"])


def _failed(steps: pd.DataFrame) -> pd.Series:
    """Return whether each row is of a precision's last step and shows that its training failed there."""
    ended = steps.groupby("precision")["step"].transform("max")
    infinite = (steps["name"] == "finite") & (steps["value"] == 0)
    no_loss = (steps["name"] == "loss") & ~np.isfinite(steps["value"])
    fatal = ~steps["precision"].isin(_scaled(steps)) | (ended < steps["step"].max())
    return pd.Series((steps["step"] == ended) & (no_loss | (infinite & fatal)))


def _loss(steps: pd.DataFrame) -> Panel:
    losses = steps[steps["name"] == "loss"]
    failed = set(steps.loc[_failed(steps), "precision"])
    marks: list[Mark] = []
    for index, (name, arm) in enumerate(chart.arms(losses, "step")):
        finite = arm[np.isfinite(arm["value"])]
        every = max(1, math.ceil(len(finite) / MARKS))
        points = list(zip(finite["step"] + 1.0, finite["value"], strict=True))
        marks.append(Line(points=points, tint=name, first=index * every // 4 % every, every=every, says=name))
        if name in failed and points:
            x, y = points[-1]
            marks.append(Text(x=x, y=y, text=chart.SIGNS[chart.CROSS], tint=name))
    logarithmic = falls_far(losses["value"].to_numpy())
    y = Axis(label="training loss", scale="log" if logarithmic else "linear")
    return Panel(title="Loss", x=_steps(steps), y=y, marks=marks)


def _loss_scale(steps: pd.DataFrame) -> Panel:
    """Describe the loss scale, which holds until the step at which it changes."""
    marks: list[Mark] = []
    scaled = steps[steps["name"] == "loss_scale"]
    for name, scales in chart.arms(scaled, "step"):
        powers = dict(zip(scales["step"] + 1.0, np.log2(scales["value"]), strict=True))
        points = list(powers.items())
        held = [(after[0], before[1]) for before, after in itertools.pairwise(points)]
        corners = [point for pair in zip(points, [*held, points[-1]], strict=True) for point in pair]
        marks.append(Line(points=corners, tint=name, every=2 * MARKS, says=name))
        skipped = steps[(steps["precision"] == name) & (steps["name"] == "skipped") & (steps["value"] > 0)]
        lost = [step + 1.0 for step in skipped["step"] if step + 1.0 in powers]
        marks += [Text(x=step, y=powers[step], text=chart.SIGNS[chart.STROKE]) for step in lost]
    low, high = math.floor(np.log2(scaled["value"].min())) - 1, math.ceil(np.log2(scaled["value"].max())) + 1
    ticks = [(float(at), _power(at)) for at in range(low, high + 1) if at % math.ceil((high - low) / 5) == 0]
    y = Axis(label="loss scale", ticks=ticks, low=low, high=high)
    return Panel(title="Loss scale", x=_steps(steps), y=y, marks=marks)


def _steps(steps: pd.DataFrame) -> Axis:
    return whole_numbers("step", int(steps["step"].max()) + 1)
