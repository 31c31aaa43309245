"""What every plot has in common: colours, a batch axis whose labels do not collide, and a frame."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

INK, FAINT = "#24292f", "#d0d7de"
PALETTE = {"fp32": "#4d4d4d", "tf32": "#009e73", "amp-fp16": "#0072b2", "amp-bf16": "#d55e00"}
"""Okabe and Ito's colours, told apart by readers with any common colour blindness."""
SPARE = ("#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = {"fp32": "o", "tf32": "^", "amp-fp16": "s", "amp-bf16": "D"}
STYLE: Any = {
    "text.parse_math": False,
    "svg.hashsalt": "ampmeter",
    "svg.fonttype": "path",
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
MOST_TICKS = 20
"""With more batch sizes than this, ticks say nothing that the points do not."""
APART = 0.11
"""Share of an axis below which two labels would touch."""


def colour(precision: str) -> str:
    """Return a precision's colour, the same in every plot."""
    return PALETTE.get(precision) or SPARE[sum(precision.encode()) % len(SPARE)]


def marker(precision: str) -> str:
    """Return a precision's marker, for readers without colour."""
    return MARKERS.get(precision, "v")


def batch_labels(sizes: list[int]) -> list[tuple[float, str]]:
    """Place labels on a logarithmic axis: sizes too near each other share one, written below each other."""
    logs = [math.log2(size) for size in sizes]
    span = max(logs[-1] - logs[0], 1.0)
    groups: list[list[int]] = []
    for index, place in enumerate(logs):
        if groups and (place - logs[groups[-1][0]]) / span < APART:
            groups[-1].append(index)
        else:
            groups.append([index])
    labels = []
    for group in groups:
        names = [str(sizes[index]) for index in group]
        middle = 2 ** (sum(logs[index] for index in group) / len(group))
        labels.append((middle, "\n".join(names) if len(names) <= 2 else f"{names[0]}\n… {names[-1]}"))
    return labels


def batch_axis(axes: Axes, sizes: list[int]) -> None:
    """Make x a log2 axis of batch sizes, with a tick at each size that was measured, labels permitting."""
    axes.set_xscale("log", base=2)
    axes.set_xlabel("batch size")
    labels = batch_labels(sizes)
    ticks = [float(size) for size in sizes] if len(sizes) <= MOST_TICKS else []
    axes.xaxis.set_minor_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks([place for place, _ in labels], [text for _, text in labels])
    axes.tick_params(axis="x", which="major", length=0, pad=6)
    axes.grid(visible=False, axis="x")


def precision_axis(axes: Axes, names: list[str], batch: int) -> None:
    """Make x an axis of precisions, for what was measured at one batch size only."""
    axes.set_xticks(range(len(names)), names)
    margin = 0.6 if len(names) > 1 else 1.0
    axes.set_xlim(-margin, len(names) - 1 + margin)
    axes.set_xlabel(f"precision, at batch size {batch}")
    axes.grid(visible=False, axis="x")


def thousands(axes: Axes) -> None:
    """Write large figures on y in full, with thousands apart."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}".replace("-", "−")))


def epoch_axis(axes: Axes, last: int) -> None:
    """Make x an axis of whole epochs."""
    step = max(1, math.ceil(last / 8))
    axes.set_xticks([1, *(epoch for epoch in range(step, last + 1, step) if epoch > 1)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("epoch")
    axes.grid(visible=False, axis="x")
