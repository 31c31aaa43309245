"""The course of training: loss and accuracy against epochs and time, seeds as a band."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import (
    BAND,
    CROSS,
    DASHED,
    SOLID,
    Axis,
    Bar,
    Chart,
    Curve,
    Mark,
    Panel,
    Text,
)

LOSS, ACCURACY = "loss", "accuracy"
# The columns of each row of panels, and whether they are dashed: test data are.
COLUMNS = {
    LOSS: {"train_loss": False, "test_loss": True},
    ACCURACY: {"test_accuracy_pct": True},
}
# A loss that falls by more than this factor is drawn on a logarithmic axis.
LOG_FROM = 30
ABOUT = (
    "Solid is training data, dashed is test data; a line is the mean over seeds, at the mean of "
    "their times."
)


def course(epochs: pd.DataFrame, *, name: str, caption: str) -> Chart | None:
    """Describe the training of one subject at one batch size; None where no loss is finite.

    There is a row of panels for the loss, and one for accuracy where there is any. A line is the
    mean over seeds, at the mean of their times; a band reaches from the lowest seed to the highest.
    """
    panels = []
    for what, columns in COLUMNS.items():
        if any(_finite(epochs, column) for column in columns):
            panels += [panel(epochs, what, "epoch"), panel(epochs, what, "elapsed_s")]
    if not panels:
        return None
    return Chart(name=name, caption=caption, about=ABOUT, panels=panels, legend=legend(epochs))


def _finite(rows: pd.DataFrame, column: str) -> bool:
    return column in rows and bool(np.isfinite(rows[column]).any())


def panel(rows: pd.DataFrame, what: str, x: str) -> Panel:
    """Describe ``loss`` or ``accuracy`` against ``epoch`` or ``elapsed_s``."""
    if x == "epoch":
        title, against = "epochs", Axis(label="epoch", whole=True)
    else:
        unit, size = chart.time_unit(rows["elapsed_s"].max())
        title, against = "training time", Axis(label=f"training time ({unit})", low=0.0)
        rows = rows.assign(elapsed_s=rows["elapsed_s"] / size)
    marks: list[Mark] = []
    for column, dashed in COLUMNS[what].items():
        if column in rows:
            for name, arm in chart.arms(rows):
                marks += _line(arm, x, column, dashed=dashed, precision=name)
    y = Axis(label="accuracy (%)")
    if what == LOSS:
        y = Axis(label=LOSS, scale="log" if _falls_far(rows[list(COLUMNS[LOSS])]) else "linear")
    return Panel(title=f"{what.capitalize()} against {title}", x=against, y=y, marks=marks)


def _falls_far(losses: pd.DataFrame) -> bool:
    """Return whether losses are to be drawn on a logarithmic axis."""
    finite = losses.replace(np.inf, np.nan).stack()
    return bool(len(finite) and finite.min() > 0 and finite.max() > LOG_FROM * finite.min())


def _line(arm: pd.DataFrame, x: str, y: str, *, dashed: bool, precision: str) -> list[Mark]:
    """Describe one precision: mean and range over its seeds, and a cross where a seed diverged."""
    diverged = _diverged(arm)
    # NaN weights have an accuracy, which means nothing.
    finite = arm[np.isfinite(arm[y]) & ~diverged]
    if finite.empty:
        return []
    epochs = finite.groupby("epoch")
    at, values = epochs[x].mean(), epochs[y]
    low, high = values.min(), values.max()
    marks: list[Mark] = []
    if (high > low).any():
        marks.append(Bar(x=at, low=low, high=high, tint=precision, faint=True))
    points = list(zip(at, values.mean(), strict=True))
    marks.append(Curve(points=points, tint=precision, dashed=dashed))
    ended = finite.sort_values("epoch").groupby("seed").tail(1)
    ended = ended[ended["seed"].isin(arm.loc[diverged, "seed"])]
    for place, last in zip(ended[x], ended[y], strict=True):
        marks.append(Text(x=place, y=last, text="✕", tint=precision))
    return marks


def _diverged(rows: pd.DataFrame) -> pd.Series:
    """Return which epochs had a training loss that is not finite; training ends with such a one."""
    return pd.Series(~np.isfinite(rows["train_loss"]), index=rows.index)


def legend(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the legend: the precisions, and the lines, bands and crosses that are drawn."""
    entries = chart.legend(rows)
    if _finite(rows, "train_loss"):
        entries.append(("training data", SOLID))
    if _finite(rows, "test_loss") or _finite(rows, "test_accuracy_pct"):
        entries.append(("test data", DASHED))
    seeds = rows.groupby("precision")["seed"].nunique()
    if seeds.max() > 1:
        count = f"{seeds.max()}" if seeds.nunique() == 1 else f"{seeds.min()} to {seeds.max()}"
        entries.append((f"range of {count} seeds (line: mean)", BAND))
    if _diverged(rows).any():
        entries.append(("a seed diverged after this", CROSS))
    return entries
