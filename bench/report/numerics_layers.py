"""The gradient histogram layer by layer, on request: where in a model the small gradients are."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.report import axes as house
from bench.report.axes import Panel, Plot
from bench.report.load import SUBJECT
from bench.report.numerics import first_seed, last_steps
from bench.report.numerics_plots import FEWEST_BINS, float16_limits
from bench.report.summary import precision_rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IN_A_ROW = 3
"""Panels side by side."""
SHADES = "viridis"
"""From the first layer, dark, to the last."""


def draw(summary: pd.DataFrame, numerics: pd.DataFrame, folder: Path) -> dict[str, list[Plot]]:
    """Draw one plot for each subject and batch size into ``folder``: a panel a precision, a line a layer group.

    Args:
        summary: rows of ``summary.summarise``.
        numerics: rows of ``Runs.numerics``.
        folder: where the files go.

    Returns:
        The plots of each workload.
    """
    plots: dict[str, list[Plot]] = {}
    layered = numerics[(numerics["kind"] == "gradient") & (numerics["layer"] != "")]
    watched = dict(list(first_seed(layered).groupby(SUBJECT, sort=False))) if len(layered) else {}
    for key, rows in summary.groupby(SUBJECT, sort=False):
        first = rows.iloc[0]
        for batch, seen in watched[key].groupby("batch_size") if key in watched else ():
            plot = _layers(
                seen,
                name=f"{first['slug']}-b{batch:.0f}-gradients-by-layer",
                caption=f"{first['workload']} on {first['where']} at batch size {batch:.0f}: gradients by layer, "
                "last steps",
                folder=folder,
            )
            plots.setdefault(str(first["workload"]), []).append(plot)
    return plots


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how each layer group's gradients spread over magnitudes in the last steps.

    Args:
        rows: the gradient counts of one precision by layer.

    Returns:
        Per cent of the layer's values; a row for each layer in the order of the rows, which is the model's, and a
        column for each bin: the exponents of powers of two, and zero.
    """
    counts = last_steps(rows).pivot_table(index="layer", columns="name", values="value", aggfunc="sum", fill_value=0.0)
    counts = counts.reindex(rows["layer"].unique())
    return 100 * counts.div(counts.sum(axis=1), axis=0)


def _layers(rows: pd.DataFrame, *, name: str, caption: str, folder: Path) -> Plot:
    arms = sorted(rows["precision"].unique(), key=precision_rank)
    powers = [int(word) for word in rows["name"].unique() if word.lstrip("-").isdigit()]
    low, high = min([FEWEST_BINS[0], *powers]), max([FEWEST_BINS[1], *powers])
    layers = list(rows["layer"].unique())
    panels: list[Panel] = [functools.partial(_panel, precision=arm, layers=layers, low=low, high=high) for arm in arms]
    columns = min(IN_A_ROW, len(panels))
    panels += [_nothing] * (-len(panels) % columns)
    grid = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    inches = (4.2, 3.2)
    return house.save(grid, rows, name=name, caption=caption, folder=folder, panel_inches=inches, share_y=True)


def _nothing(axes: Axes, _rows: pd.DataFrame) -> None:
    axes.set_axis_off()


def _panel(axes: Axes, rows: pd.DataFrame, *, precision: str, layers: list[str], low: int, high: int) -> None:
    import matplotlib as mpl

    found = shares(rows[rows["precision"] == precision])
    exponents, zero = np.arange(low, high + 1), low - 5
    colours = mpl.colormaps[SHADES](np.linspace(0, 0.9, len(layers)))
    for layer, colour in zip(layers, colours, strict=True):
        if layer not in found.index:
            continue
        of_layer = found.loc[layer]
        line = np.array([of_layer.get(str(exponent), 0.0) for exponent in exponents])
        style: Any = {"color": colour, "linewidth": 1.2}
        axes.plot(exponents + 0.5, line, **style, label=f"layer {layer}")
        axes.plot(zero, of_layer.get("zero", np.nan), marker="_", markersize=12, **style)
    float16_limits(axes, low)
    ticks = [exponent for exponent in range(low, high + 1) if exponent % 10 == 0]
    axes.set_xticks([zero, *ticks], ["zero", *(f"2^{exponent}".replace("-", "−") for exponent in ticks)])
    axes.set_xlim(zero - 3, high + 1.5)
    axes.set_xlabel("magnitude")
    axes.set_ylabel("share of the layer's values (%)")
    axes.set_title(precision)
