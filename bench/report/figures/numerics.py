"""Figures of the numerics phase: magnitudes of gradients, also by layer, and the course of loss and loss scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.report.figures import figure
from bench.report.figures.figure import Panel, Plot
from bench.report.figures.training import falls_far
from bench.report.reading.load import SUBJECT
from bench.report.tables.numerics import first_seed, last_steps

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

CROSS: dict[str, Any] = {"marker": "x", "markersize": 9, "markeredgewidth": 2, "zorder": 5}
SHADES = "viridis"
"""Colours of layers, from the first, dark, to the last."""
ZERO_AT = -25
"""Magnitudes of 2^-25 or less are zero in float16, rounded to nearest."""
NORMAL_FROM = -14
"""From 2^-14 on a number is normal in float16."""
FEWEST_BINS = (-30, 0)
"""Exponents that are always drawn, so that float16's limits have a place."""


def draw(
    summary: pd.DataFrame, numerics: pd.DataFrame, folder: Path, *, layers: bool = False
) -> Iterator[tuple[str, Plot]]:
    """Draw the figures of each subject and batch size; yield each with its workload.

    With ``layers`` gradients are drawn layer by layer, instead of all together.
    """
    if layers:
        numerics = numerics[(numerics["kind"] == "gradient") & (numerics["layer"] != "")]
    watched = dict(list(first_seed(numerics).groupby(SUBJECT, sort=False)))
    for key, rows in summary.groupby(SUBJECT, sort=False):
        workload, where, slug = (str(rows[column].iloc[0]) for column in ("workload", "where", "slug"))
        for batch, seen in watched[key].groupby("batch_size") if key in watched else ():
            name, subject = f"{slug}-b{batch:.0f}", f"{workload} on {where} at batch size {batch:.0f}"
            has_gradients = (seen["kind"] == "gradient").any()
            for paint in [_layers] if layers else [_gradients, _course] if has_gradients else [_course]:
                yield workload, paint(seen, name=name, subject=subject, folder=folder)


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how each layer group's gradients spread over magnitudes in the last steps, in per cent of its values.

    There is a row for each layer in the order of ``rows``, which is the model's, and a column for each bin: the
    exponents of powers of two, and zero.
    """
    counts = last_steps(rows).pivot_table(index="layer", columns="name", values="value", aggfunc="sum", fill_value=0.0)
    counts = counts.reindex(rows["layer"].unique())
    return 100 * counts.div(counts.sum(axis=1), axis=0)


def _bins(rows: pd.DataFrame, lowest: int = FEWEST_BINS[0]) -> np.ndarray:
    """Return the exponents that are drawn, at least from ``lowest`` on."""
    powers = [int(word) for word in rows["name"].unique() if word.lstrip("-").isdigit()]
    return np.arange(min([lowest, *powers]), max([FEWEST_BINS[1], *powers]) + 1)


def _layers(rows: pd.DataFrame, *, name: str, subject: str, folder: Path) -> Plot:
    """Draw a panel for each precision and a line for each layer group."""
    layers, exponents = list(rows["layer"].unique()), _bins(rows)
    grid = figure.grid(
        [
            partial(_layer_panel, rows=arm, title=precision, layers=layers, exponents=exponents)
            for precision, arm in figure.arms(rows)
        ]
    )
    name, caption = f"{name}-gradients-by-layer", f"{subject}: gradients by layer, last steps"
    return figure.save(grid, name=name, caption=caption, folder=folder, panel_inches=(4.2, 3.2), share_y=True)


def _layer_panel(axes: Axes, *, rows: pd.DataFrame, title: str, layers: list[str], exponents: np.ndarray) -> None:
    import matplotlib as mpl

    found, zero = shares(rows), int(exponents[0]) - 5
    colours = mpl.colormaps[SHADES](np.linspace(0, 0.9, len(layers)))
    for layer, colour in zip(layers, colours, strict=True):
        if layer in found.index:
            style: Any = {"color": colour, "linewidth": 1.2}
            axes.plot(exponents + 0.5, _heights(found.loc[layer], exponents), **style, label=f"layer {layer}")
            axes.plot(zero, found.loc[layer].get("zero", np.nan), marker="_", markersize=12, **style)
    _magnitude_axis(axes, exponents, zero, zero - 3)
    axes.set_ylabel("share of the layer's values (%)")
    axes.set_title(title)


def _heights(shares: Any, exponents: np.ndarray) -> np.ndarray:
    return np.array([shares.get(str(exponent), 0.0) for exponent in exponents])


def _magnitude_axis(axes: Axes, exponents: np.ndarray, zero: float, left: float) -> None:
    """Make x an axis of powers of two from ``left``, zeros at ``zero``, and y one of shares in per cent.

    What float16 makes zero or subnormal is shaded.
    """
    low, high = int(exponents[0]), int(exponents[-1])
    axes.axvspan(low - 1, ZERO_AT, color="#d55e00", alpha=0.12, linewidth=0)
    axes.axvspan(ZERO_AT, NORMAL_FROM, color="#e69f00", alpha=0.12, linewidth=0)
    figure.log_axis(axes)
    axes.set_yticks([10.0**power for power in range(-3, 3)])
    axes.set_ylim(0.001, 1500)
    for place, text in ((ZERO_AT - 0.3, "zero\nin fp16"), (NORMAL_FROM - 0.3, "subnormal\nin fp16")):
        _note(axes, place, text)
    ticks = [exponent for exponent in range(low, high + 1) if exponent % 10 == 0]
    axes.set_xticks([zero, *ticks], ["zero", *map(_power, ticks)])
    axes.set_xlim(left, high + 1.5)
    axes.set_xlabel("magnitude")


def _note(axes: Axes, place: float, text: str, **style: Any) -> None:
    """Write to the left of a place on x, at the top."""
    axes.text(place, 0.985, text, transform=axes.get_xaxis_transform(), fontsize=7.5, ha="right", va="top", **style)


def _power(exponent: float) -> str:
    return f"2^{exponent:g}".replace("-", "−")


def _gradients(rows: pd.DataFrame, *, name: str, subject: str, folder: Path) -> Plot:
    """Draw the gradients' magnitudes in the first step and in the last steps."""
    found = rows[(rows["kind"] == "gradient") & (rows["layer"] == "")]
    scales = rows.loc[(rows["kind"] == "step") & (rows["name"] == "loss_scale"), "value"]
    scale = float(scales.max()) if len(scales) else None
    exponents = _bins(found, FEWEST_BINS[0] if scale is None else ZERO_AT - math.ceil(math.log2(scale)) - 3)
    panels: list[Panel] = [
        partial(_histogram, rows=found, title=title, last=last, exponents=exponents, scale=scale)
        for title, last in (("First step", False), ("Last steps", True))
    ]
    name, caption = f"{name}-gradients", f"{subject}: magnitudes of gradients"
    return figure.save([panels], name=name, caption=caption, folder=folder, panel_inches=(5.0, 3.7), share_y=True)


def _histogram(
    axes: Axes, *, rows: pd.DataFrame, title: str, last: bool, exponents: np.ndarray, scale: float | None
) -> None:
    """Draw shares of all values: a line over powers of two, and at the left the share of zeros."""
    arms = figure.arms(rows)
    zero = int(exponents[0]) - 3 - len(arms)
    for index, (name, arm) in enumerate(arms):
        seen = last_steps(arm) if last else arm[arm["step"] == 0]
        counts = seen.groupby("name")["value"].sum()
        shares = 100 * counts / counts.sum()
        style = figure.look(name)
        heights = _heights(shares, exponents)
        axes.plot(exponents + 0.5, heights, **style, markevery=(index % 4, 4), label=name)
        axes.plot(zero + index, shares.get("zero", math.nan), **style, linestyle="none")
    _magnitude_axis(axes, exponents, zero + (len(arms) - 1) / 2, zero - 1.5)
    if scale is not None:
        moved = ZERO_AT - math.log2(scale)
        axes.axvline(moved, color=figure.INK, linewidth=1, linestyle=":")
        _note(axes, moved - 0.2, f"zero at a scale of 2^{math.log2(scale):g}", rotation=90)
    axes.set_ylabel("share of all values (%)" if not last else "")
    axes.set_title(title)


def _course(rows: pd.DataFrame, *, name: str, subject: str, folder: Path) -> Plot:
    """Draw the loss of the first steps, and the loss scale where there is one."""
    steps = rows[rows["kind"] == "step"]
    panels: list[Panel] = [partial(_loss, steps=steps)]
    panels += [partial(_loss_scale, steps=steps)] if _scaled(steps) else []
    handles: list[Artist] = [figure.handle(arm, **figure.look(arm)) for arm, _ in figure.arms(steps)]
    if _failed(steps).any():
        handles.append(figure.handle("not finite after this", **CROSS, color=figure.INK, linestyle="none"))
    skipped = (steps["name"] == "skipped") & (steps["value"] > 0)
    if len(panels) > 1 and steps[skipped]["precision"].isin(_scaled(steps)).any():
        handles.append(figure.handle("step skipped", marker="|", markersize=9, color=figure.INK, linestyle="none"))
    name, caption = f"{name}-loss-scale", f"{subject}: the first {steps['step'].max() + 1:.0f} steps"
    inches = (5.0, 3.4)
    return figure.save([panels], name=name, caption=caption, folder=folder, panel_inches=inches, legend=handles)


def _scaled(steps: pd.DataFrame) -> set[str]:
    return set(steps.loc[steps["name"] == "loss_scale", "precision"])


def _failed(steps: pd.DataFrame) -> pd.Series:
    """Return whether each row is of a precision's last step and shows that its training failed there."""
    ended = steps.groupby("precision")["step"].transform("max")
    infinite = (steps["name"] == "finite") & (steps["value"] == 0)
    no_loss = (steps["name"] == "loss") & ~np.isfinite(steps["value"])
    fatal = ~steps["precision"].isin(_scaled(steps)) | (ended < steps["step"].max())
    return pd.Series((steps["step"] == ended) & (no_loss | (infinite & fatal)))


def _loss(axes: Axes, steps: pd.DataFrame) -> None:
    losses = steps[steps["name"] == "loss"]
    failed = set(steps.loc[_failed(steps), "precision"])
    for index, (name, arm) in enumerate(figure.arms(losses, "step")):
        finite = arm[np.isfinite(arm["value"])]
        every = max(1, math.ceil(len(finite) / 8))
        marks = (index * every // 4 % every, every)
        axes.plot(finite["step"] + 1, finite["value"], **figure.look(name), markevery=marks)
        if name in failed and len(finite):
            end = finite.iloc[-1]
            axes.plot(end["step"] + 1, end["value"], **CROSS, color=figure.colour(name), linestyle="none")
    if falls_far(losses["value"].to_numpy()):
        axes.set_yscale("log")
    axes.set_ylabel("training loss")
    axes.set_title("Loss")
    _step_axis(axes)


def _loss_scale(axes: Axes, steps: pd.DataFrame) -> None:
    for index, (name, scales) in enumerate(figure.arms(steps[steps["name"] == "loss_scale"], "step")):
        style = {**figure.look(name), "drawstyle": "steps-post", "markevery": (3 * index, 10)}
        axes.plot(scales["step"] + 1, np.log2(scales["value"]), **style)
        skipped = steps[(steps["precision"] == name) & (steps["name"] == "skipped") & (steps["value"] > 0)]["step"]
        at = scales[scales["step"].isin(skipped)]
        axes.plot(at["step"] + 1, np.log2(at["value"]), marker="|", markersize=11, color=figure.INK, linestyle="none")
    low, high = axes.get_ylim()
    axes.set_ylim(low - 1, high + 1)
    axes.locator_params(axis="y", nbins=6, integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: _power(value))
    axes.set_ylabel("loss scale")
    axes.set_title("Loss scale")
    _step_axis(axes)


def _step_axis(axes: Axes) -> None:
    axes.locator_params(axis="x", nbins=8, integer=True)
    axes.set_xlabel("step")
