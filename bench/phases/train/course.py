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

LOSS = "loss"
ACCURACY = "accuracy"
# The columns of each row of panels, and whether they are dashed: test data are.
COLUMNS = {
    LOSS: {"train_loss": False, "test_loss": True},
    ACCURACY: {"test_accuracy_pct": True},
}
# A loss that falls by more than this factor is drawn on a logarithmic axis: on a linear one its
# last epochs, in which precisions differ, would be a flat line.
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
            panels.append(panel(epochs, what, "epoch"))
            panels.append(panel(epochs, what, "elapsed_s"))
    if not panels:
        return None
    return Chart(
        name=name,
        caption=caption,
        about=ABOUT,
        panels=panels,
        legend=legend(epochs),
    )


def _finite(rows: pd.DataFrame, column: str) -> bool:
    if column not in rows:
        return False
    is_finite = np.isfinite(rows[column])
    return bool(is_finite.any())


def panel(rows: pd.DataFrame, what: str, x: str) -> Panel:
    """Describe ``loss`` or ``accuracy`` against ``epoch`` or ``elapsed_s``."""
    if x == "epoch":
        title = "epochs"
        against = Axis(label="epoch", whole=True)
    else:
        unit, size = chart.time_unit(rows["elapsed_s"].max())
        title = "training time"
        against = Axis(label=f"training time ({unit})", low=0.0)
        rows = rows.assign(elapsed_s=rows["elapsed_s"] / size)
    marks = []
    for column, dashed in COLUMNS[what].items():
        # Rows of suites without a test set have no column of it.
        if column in rows:
            for name, arm in chart.arms(rows):
                marks += _line(arm, x, column, dashed=dashed, precision=name)
    y = Axis(label="accuracy (%)")
    if what == LOSS:
        losses = rows[list(COLUMNS[LOSS])]
        y = Axis(label=LOSS, scale="log" if _falls_far(losses) else "linear")
    return Panel(
        title=f"{what.capitalize()} against {title}",
        x=against,
        y=y,
        marks=marks,
    )


def _falls_far(losses: pd.DataFrame) -> bool:
    """Return whether losses are to be drawn on a logarithmic axis."""
    finite = losses.replace(np.inf, np.nan).stack()
    if finite.empty:
        return False
    least = finite.min()
    most = finite.max()
    # A loss of 0 or below, such as a log-likelihood's, has no logarithm.
    return bool(least > 0 and most > LOG_FROM * least)


def _line(
    arm: pd.DataFrame,
    x: str,
    y: str,
    *,
    dashed: bool,
    precision: str,
) -> list[Mark]:
    """Describe one precision: mean and range over its seeds, and a cross where a seed diverged."""
    diverged = _diverged(arm)
    # NaN weights have an accuracy, which means nothing.
    finite = arm[np.isfinite(arm[y]) & ~diverged]
    if finite.empty:
        return []
    epochs = finite.groupby("epoch")
    at = epochs[x].mean()
    values = epochs[y]
    low = values.min()
    high = values.max()
    marks: list[Mark] = []
    # A single seed has no range.
    if (high > low).any():
        marks.append(
            Bar(
                x=at,
                low=low,
                high=high,
                tint=precision,
                faint=True,
            )
        )
    points = list(zip(at, values.mean(), strict=True))
    marks.append(Curve(points=points, tint=precision, dashed=dashed))
    # The cross stands at the last epoch that can be drawn.
    last_epochs = finite.sort_values("epoch").groupby("seed").tail(1)
    lost_seeds = arm.loc[diverged, "seed"]
    ended = last_epochs[last_epochs["seed"].isin(lost_seeds)]
    for place, last in zip(ended[x], ended[y], strict=True):
        marks.append(
            Text(
                x=place,
                y=last,
                text="✕",
                tint=precision,
            )
        )
    return marks


def _diverged(rows: pd.DataFrame) -> pd.Series:
    """Return which epochs had a training loss that is not finite; training ends with such a one."""
    is_finite = np.isfinite(rows["train_loss"])
    return pd.Series(~is_finite, index=rows.index)


def legend(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the legend: the precisions, and the lines, bands and crosses that are drawn."""
    entries = chart.legend(rows)
    if _finite(rows, "train_loss"):
        entries.append(("training data", SOLID))
    if _finite(rows, "test_loss") or _finite(rows, "test_accuracy_pct"):
        entries.append(("test data", DASHED))
    seeds = rows.groupby("precision")["seed"].nunique()
    fewest = seeds.min()
    most = seeds.max()
    if most > 1:
        count = f"{most}"
        if fewest < most:
            count = f"{fewest} to {most}"
        entries.append((f"range of {count} seeds (line: mean)", BAND))
    if _diverged(rows).any():
        entries.append(("a seed diverged after this", CROSS))
    return entries
