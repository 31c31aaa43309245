"""One figure for all devices of a recipe: a line for each device, a mark for each precision."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from bench.report.analysis.batches import reference_batch
from bench.report.figures import axes as house
from bench.report.figures.axes import Panel, Plot
from bench.report.format import memory_unit
from bench.report.reading.load import SUBJECT
from bench.spec.precisions import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Figure(NamedTuple):
    """What a panel shows: columns of the summary, and words."""

    column: str
    title: str
    unit: str
    low: str = ""
    high: str = ""


SPEEDUP = Figure("speedup", "Speedup over fp32", "speedup (×), 95 % interval", "low", "high")
ACCURACY = Figure("accuracy_pct", "Test accuracy", "%, ± one standard deviation", "accuracy_low", "accuracy_high")
FIGURES = (
    SPEEDUP,
    Figure("samples_per_s", "Throughput", "samples/s"),
    Figure("memory_bytes", "Peak memory", ""),
    Figure("time_per_epoch_s", "Time per epoch", "s"),
    ACCURACY,
)


def at_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep each subject's rows at the batch size of its verdict, and number the subjects from the top.

    Args:
        rows: rows of the summary, of one workload.

    Returns:
        The rows with ``line``, ``label``, and ``accuracy_low`` and ``accuracy_high``, one standard deviation over
        seeds from the mean. Labels have the batch size where it is not the same for all.
    """
    kept = [group[group["batch_size"] == reference_batch(group)] for _, group in rows.groupby(SUBJECT, sort=False)]
    found = pd.concat([group.assign(line=line) for line, group in enumerate(kept)], ignore_index=True)
    sizes = found["batch_size"].map("{:.0f}".format)
    found["label"] = found["where"] + (", batch " + sizes if sizes.nunique() > 1 else "")
    spread = found["accuracy_sd"].fillna(0)
    return found.assign(accuracy_low=found["accuracy_pct"] - spread, accuracy_high=found["accuracy_pct"] + spread)


def draw_overview(rows: pd.DataFrame, *, name: str, workload: str, folder: Path) -> Plot | None:
    """Draw all devices of one workload; None where nothing was measured that could be drawn.

    Args:
        rows: rows of the summary, of one workload.
        name: name of the files, without suffix.
        workload: the recipe's name, for the title.
        folder: where the files go.
    """
    found = at_verdicts(rows)
    panels: list[Panel] = [
        functools.partial(_panel, figure=figure) for figure in FIGURES if np.isfinite(found[figure.column]).any()
    ]
    if not panels:
        return None
    sizes = found["batch_size"].unique()
    caption = f"{workload} on {found['line'].nunique()} devices"
    caption += f" at batch size {sizes[0]:.0f}" if len(sizes) == 1 else ", each at the batch size of its verdict"
    inches = (2.5, 0.9 + 0.34 * found["line"].nunique())
    return house.save([panels], found, name=name, caption=caption, folder=folder, panel_inches=inches, share_y=True)


def _panel(axes: Axes, rows: pd.DataFrame, *, figure: Figure) -> None:
    """Draw one figure: precisions lie a little below each other, so that none hides another."""
    unit, size, _ = memory_unit(rows["memory_bytes"].max()) if figure.column == "memory_bytes" else (figure.unit, 1, 0)
    arms = house.arms(rows)
    if figure is SPEEDUP:
        axes.axvline(1.0, color=house.colour(BASELINE), linewidth=1.4, linestyle="--")
    for index, (name, arm) in enumerate(arms):
        drawn = arm[np.isfinite(arm[figure.column])]
        center = drawn[figure.column] / size
        lines = drawn["line"] + 0.16 * (index - (len(arms) - 1) / 2)
        spread = house.errors(center, drawn[figure.low], drawn[figure.high]) if figure.low else None
        axes.errorbar(
            center.to_numpy(), lines.to_numpy(), xerr=spread, linestyle="none", label=name, **house.look(name)
        )
    labels = rows.drop_duplicates("line")["label"].tolist()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(house.in_full())
    if figure is not ACCURACY:
        axes.set_xlim(left=0)
    axes.set_title(figure.title)
    axes.set_xlabel(unit)
