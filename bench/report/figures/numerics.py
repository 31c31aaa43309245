"""Plots of the numerics phase: how large gradients are, and the course of loss and loss scale."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.report.figures import axes as house
from bench.report.figures.axes import Panel, Plot
from bench.report.figures.curves import CROSS, LOG_FROM
from bench.report.reading.load import SUBJECT
from bench.report.tables.numerics import first_seed, last_steps
from bench.spec.precisions import precision_rank

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# The gradient histogram layer by layer, on request: where in a model the small gradients are.

IN_A_ROW = 3
"""Panels side by side."""
SHADES = "viridis"
"""From the first layer, dark, to the last."""


def draw_layers(summary: pd.DataFrame, numerics: pd.DataFrame, folder: Path) -> dict[str, list[Plot]]:
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


ZERO_AT = -25
"""Magnitudes of 2^-25 or less are zero in float16, rounded to nearest."""
NORMAL_FROM = -14
"""From 2^-14 on a number is normal in float16."""
FEWEST_BINS = (-30, 0)
"""Exponents that are always drawn, so that float16's limits have a place."""


def draw(summary: pd.DataFrame, numerics: pd.DataFrame, folder: Path) -> dict[str, list[Plot]]:
    """Draw what the numerics phase saw into ``folder``; return the plots of each workload."""
    plots: dict[str, list[Plot]] = {}
    watched = dict(list(first_seed(numerics).groupby(SUBJECT, sort=False))) if len(numerics) else {}
    for key, rows in summary.groupby(SUBJECT, sort=False):
        first = rows.iloc[0]
        for batch, seen in watched[key].groupby("batch_size") if key in watched else ():
            name = f"{first['slug']}-b{batch:.0f}"
            subject = f"{first['workload']} on {first['where']} at batch size {batch:.0f}"
            found = plots.setdefault(str(first["workload"]), [])
            if (seen["kind"] == "gradient").any():
                found.append(_gradients(seen, name=f"{name}-gradients", subject=subject, folder=folder))
            found.append(_course(seen, name=f"{name}-loss-scale", subject=subject, folder=folder))
    return plots


def float16_limits(axes: Axes, low: int) -> None:
    """Shade the magnitudes that are zero or subnormal in float16, over shares in per cent on a logarithmic axis.

    Args:
        axes: where shares are drawn over exponents of two.
        low: the least of them.
    """
    axes.axvspan(low - 1, ZERO_AT, color="#d55e00", alpha=0.12, linewidth=0)
    axes.axvspan(ZERO_AT, NORMAL_FROM, color="#e69f00", alpha=0.12, linewidth=0)
    house.log_axis(axes)
    axes.set_yticks([10.0**power for power in range(-3, 3)])
    axes.set_ylim(0.001, 1500)
    for place, text in ((ZERO_AT - 0.3, "zero\nin fp16"), (NORMAL_FROM - 0.3, "subnormal\nin fp16")):
        axes.text(place, 0.985, text, transform=axes.get_xaxis_transform(), fontsize=7.5, ha="right", va="top")


def _arms(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(name, rows[rows["precision"] == name]) for name in sorted(rows["precision"].unique(), key=precision_rank)]


def _gradients(rows: pd.DataFrame, *, name: str, subject: str, folder: Path) -> Plot:
    found = rows[(rows["kind"] == "gradient") & (rows["layer"] == "")]
    scales = rows.loc[(rows["kind"] == "step") & (rows["name"] == "loss_scale"), "value"]
    scale = float(scales.max()) if len(scales) else None
    powers = [int(name) for name in found["name"].unique() if name.lstrip("-").isdigit()]
    lowest = FEWEST_BINS[0] if scale is None else ZERO_AT - math.ceil(math.log2(scale)) - 3
    low, high = min([lowest, *powers]), max([FEWEST_BINS[1], *powers])
    panels: list[Panel] = [
        functools.partial(_histogram, title=title, last=last, low=low, high=high, scale=scale)
        for title, last in (("First step", False), ("Last steps", True))
    ]
    caption = f"{subject}: magnitudes of gradients"
    return house.save([panels], found, name=name, caption=caption, folder=folder, panel_inches=(5.0, 3.7), share_y=True)


def _histogram(
    axes: Axes, rows: pd.DataFrame, *, title: str, last: bool, low: int, high: int, scale: float | None
) -> None:
    """Draw shares of all values: a line over powers of two, and at the left what is zero."""
    arms, exponents = _arms(rows), np.arange(low, high + 1)
    zero = low - 3 - len(arms)
    for index, (name, arm) in enumerate(arms):
        seen = last_steps(arm) if last else arm[arm["step"] == 0]
        counts = seen.groupby("name")["value"].sum()
        shares = 100 * counts / counts.sum()
        line = np.array([shares.get(str(exponent), 0.0) for exponent in exponents])
        style: Any = {"color": house.colour(name), "marker": house.marker(name)}
        axes.plot(exponents + 0.5, line, **style, markevery=(index % 4, 4), label=name)
        axes.plot(zero + index, shares.get("zero", math.nan), **style, linestyle="none")
    float16_limits(axes, low)
    if scale is not None:
        moved = ZERO_AT - math.log2(scale)
        axes.axvline(moved, color=house.INK, linewidth=1, linestyle=":")
        label = f"zero at a scale of 2^{math.log2(scale):g}"
        axes.text(
            *(moved - 0.2, 0.985),
            label,
            transform=axes.get_xaxis_transform(),
            fontsize=7.5,
            rotation=90,
            ha="right",
            va="top",
        )
    ticks = [exponent for exponent in range(low, high + 1) if exponent % 10 == 0]
    middle = zero + (len(arms) - 1) / 2
    axes.set_xticks([middle, *ticks], ["zero", *(f"2^{exponent}".replace("-", "−") for exponent in ticks)])
    axes.set_xlim(zero - 1.5, high + 1.5)
    axes.set_xlabel("magnitude")
    axes.set_ylabel("share of all values (%)" if not last else "")
    axes.set_title(title)


def _course(rows: pd.DataFrame, *, name: str, subject: str, folder: Path) -> Plot:
    steps = rows[rows["kind"] == "step"]
    panels: list[Panel] = [_loss]
    panels += [_loss_scale] if (steps["name"] == "loss_scale").any() else []
    handles: list[Artist] = [
        house.handle(arm, color=house.colour(arm), marker=house.marker(arm)) for arm, _ in _arms(steps)
    ]
    if _failed(steps).any():
        handles.append(house.handle("not finite after this", **CROSS, color=house.INK, linestyle="none"))
    skipped = (steps["name"] == "skipped") & (steps["value"] > 0)
    if len(panels) > 1 and steps[skipped]["precision"].isin(_scaled(steps)).any():
        handles.append(house.handle("step skipped", marker="|", markersize=9, color=house.INK, linestyle="none"))
    caption = f"{subject}: the first {steps['step'].max() + 1:.0f} steps"
    inches = (5.0, 3.4)
    return house.save([panels], steps, name=name, caption=caption, folder=folder, panel_inches=inches, legend=handles)


def _scaled(steps: pd.DataFrame) -> set[str]:
    return set(steps.loc[steps["name"] == "loss_scale", "precision"])


def _failed(steps: pd.DataFrame) -> pd.Series:
    """Say for each row whether it is a step's last, and what ended the training."""
    last = steps["step"] == steps.groupby("precision")["step"].transform("max")
    short = steps.groupby("precision")["step"].transform("max") < steps["step"].max()
    unscaled = ~steps["precision"].isin(_scaled(steps))
    lost = ((steps["name"] == "finite") & (steps["value"] == 0) & unscaled) | (
        (steps["name"] == "loss") & ~np.isfinite(steps["value"])
    )
    return pd.Series(last & lost | (last & short & (steps["name"] == "finite") & (steps["value"] == 0)))


def _loss(axes: Axes, steps: pd.DataFrame) -> None:
    losses = steps[steps["name"] == "loss"]
    failed = set(steps.loc[_failed(steps), "precision"])
    for index, (name, arm) in enumerate(_arms(losses)):
        finite = arm[np.isfinite(arm["value"])].sort_values("step")
        every = max(1, math.ceil(len(finite) / 8))
        style: Any = {"color": house.colour(name), "marker": house.marker(name)}
        axes.plot(finite["step"] + 1, finite["value"], **style, markevery=(index * every // 4 % every, every))
        if name in failed and len(finite):
            axes.plot(
                finite["step"].iloc[-1] + 1, finite["value"].iloc[-1], **CROSS, color=style["color"], linestyle="none"
            )
    values = losses.loc[np.isfinite(losses["value"]), "value"]
    if len(values) and values.min() > 0 and values.max() > LOG_FROM * values.min():
        axes.set_yscale("log")
    axes.set_ylabel("training loss")
    axes.set_title("Loss")
    _step_axis(axes)


def _loss_scale(axes: Axes, steps: pd.DataFrame) -> None:
    for index, (name, arm) in enumerate(_arms(steps[steps["name"] == "loss_scale"])):
        scales = arm.sort_values("step")
        axes.plot(
            scales["step"] + 1,
            np.log2(scales["value"]),
            drawstyle="steps-post",
            color=house.colour(name),
            marker=house.marker(name),
            markevery=(3 * index, 10),
        )
        skipped = steps[(steps["precision"] == name) & (steps["name"] == "skipped") & (steps["value"] > 0)]["step"]
        at = scales[scales["step"].isin(skipped)]
        axes.plot(at["step"] + 1, np.log2(at["value"]), marker="|", markersize=11, color=house.INK, linestyle="none")
    low, high = axes.get_ylim()
    axes.set_ylim(low - 1, high + 1)
    axes.locator_params(axis="y", nbins=6, integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"2^{value:g}".replace("-", "−"))
    axes.set_ylabel("loss scale")
    axes.set_title("Loss scale")
    _step_axis(axes)


def _step_axis(axes: Axes) -> None:
    axes.locator_params(axis="x", nbins=8, integer=True)
    axes.set_xlabel("step")
