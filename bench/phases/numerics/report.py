"""Numerics of the first steps of a training: tables of each precision, and histograms of its gradients.

Of several seeds the lowest is shown: one training, not a mean of several.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Line, Mark, Panel, Rule, Text
from bench.report.format import UNKNOWN, error, known, number
from bench.report.parts import PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import ARM, RECIPE, Entry, Material, Table, figures, optional, table, whole, words

FP16_LARGEST = 65504.0
FP16_NORMAL, FP16_ZERO, FP16_INFINITE = -14, -25, 16
"""Powers of two below which float16 is subnormal, below which it rounds to zero, and from which on it is infinite."""
FIRST_SCALE = 2.0**16
"""GradScaler's first scale, which stands for scaling where a precision has none."""
GRADIENTS = {"gradient": "parameters", "output_gradient": "layers' outputs"}
"""For each kind of gradient, the tensors that the loss is differentiated by, as the table names them."""
POWERS = {"zero": -math.inf, "below": -1e3, "above": 1e3, "nonfinite": math.nan}
"""The powers of two of bins that are not called by theirs; what is not finite lies in no range."""
LAST = 5
"""Steps at the end of the phase whose gradients are counted together."""
PARTS = ("output", "loss", "gradients", "weights", "master copy", "optimizer states")
"""The parts of a step whose types the table shows, in its order."""


def _decibels(value: float) -> str:
    return f"{-20 * math.log10(value):.1f}" if value > 0 else "∞"


STEP_COLUMNS = (
    *ARM,
    *optional(
        figures("steps", "steps", whole),
        figures("skipped", "skipped", 1),
        figures("first loss", "first_loss"),
        figures("last loss", "last_loss"),
        figures("loss scale at the end", "loss_scale"),
        figures("largest activation (layer)", "activation"),
        figures("of fp16's largest (%)", "activation_share", 2, per=FP16_LARGEST / 100),
    ),
)
GRADIENT_COLUMNS = (
    *ARM,
    words("gradients of", "of"),
    figures("zero (%)", "zero", 3),
    figures("in fp16: zero (%)", "lost", 3),
    figures("subnormal (%)", "subnormal", 3),
    words("most in fp16 zero (layer)", "worst"),
    figures("loss scale S", "scale"),
    figures("S brings into range (%)", "saved", 3),
    figures("overflow at S (%)", "overflow", 3),
)
ABOUT_GRADIENTS = (
    "Gradients of the loss, unscaled, with respect to parameters, and to the outputs of layers, in the last five "
    "steps; shares of all values. Zero: already; where fp32 has less, most of it underflowed. In fp16: below "
    "2^-25 float16 has only zero, below 2^-14 only subnormal numbers. S is the loss scale, or 2^16, GradScaler's "
    "initial scale, where there is none; it brings into range what is zero without it."
)
ERROR_COLUMNS = (
    *ARM,
    *optional(
        figures("loss, first step", "first_loss", error),
        figures("gradients, first step", "first_gradient", error),
        figures("loss, last step", "last_loss", error),
        figures("gradients, last step", "last_gradient", error),
        figures("worst layer at the last", "worst"),
        figures("output, first step: SQNR (dB)", "first_output", _decibels),
        figures("output, last step: SQNR (dB)", "last_output", _decibels),
    ),
)
ABOUT_ERRORS = (
    "Relative errors of one step against float64 on the same batch with the same weights: of the loss, and of all "
    "gradients together in the Euclidean norm. At an error of 1 nothing is left of a gradient. SQNR is the ratio of "
    "signal to quantisation noise, 20 log10 of 1 over the relative error: 20 dB are an error of a tenth."
)
TYPE_COLUMNS = (*ARM, *optional(*(words(part, part) for part in PARTS)))
ABOUT_TYPES = (
    "Types as a training step had them, with their shares of the numbers where there are several. The output is "
    "what the loss is computed of; gradients are those of the weights, as the backward pass computes them."
)


def recorded(material: Material) -> pd.DataFrame:
    """Return the figures of the phase, of the lowest seed of each arm, in the order of the material's rows."""
    rows = material.named(material.runs.details["numerics_figures"])
    rows = rows[rows["kind"] != "module"]  # those are another phase's
    return rows[rows["seed"] == rows.groupby(KEY)["seed"].transform("min")]


def numerics(rows: pd.DataFrame) -> list[Table | None]:
    """Return the tables of one recipe, of rows of ``recorded``."""
    steps, gradients, errors, types = [], [], [], []
    for _, arm in rows.groupby(KEY, sort=False):
        named = {name: arm.iloc[0][name] for name in ("where", "batch_size", "precision")}
        steps.append(defaultdict(str, named | _course(arm) | _largest_activation(arm)))
        errors.append(named | _errors(arm))
        if of_parts := _types(arm):
            types.append(defaultdict(str, named | of_parts))
        for kind, of in GRADIENTS.items():
            if (arm["kind"] == kind).any():
                gradients.append(named | {"of": of} | _float16_shares(arm, kind))
    gradients.sort(key=lambda line: line["of"] != GRADIENTS["gradient"])  # those of parameters first
    return [
        table("Numerics: the first steps", steps, STEP_COLUMNS),
        table("Numerics: gradients", gradients, GRADIENT_COLUMNS, ABOUT_GRADIENTS),
        table("Numerics: errors against float64", errors, ERROR_COLUMNS, ABOUT_ERRORS),
        table("Types", types, TYPE_COLUMNS, ABOUT_TYPES),
    ]


def _steps(arm: pd.DataFrame, name: str) -> pd.Series:
    return arm[(arm["kind"] == "step") & (arm["name"] == name)].sort_values("step")["value"]


def _course(arm: pd.DataFrame) -> dict[str, Any]:
    """Return how an arm's steps began and ended; nothing where none is in the file."""
    losses, scales = _steps(arm, "loss"), _steps(arm, "loss_scale")
    if losses.empty:
        return {}
    last = losses.iloc[-1]
    # Without loss scaling, which skips a step whose gradients are not finite, such gradients are the end.
    has_failed = not known(last) or (scales.empty and (_steps(arm, "finite").tail(1) == 0).any())
    return {
        "steps": len(losses),
        "skipped": _steps(arm, "skipped").sum() if len(scales) else None,
        "first_loss": losses.iloc[0],
        "last_loss": "not finite" if has_failed else last,
        "loss_scale": scales.iloc[-1] if len(scales) else None,
    }


def _largest_activation(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the largest activation with its layer, NaN before any number, and its size where it is a number."""
    activations = arm[arm["kind"] == "activation"].sort_values("value", na_position="last")
    if activations.empty:
        return {}
    largest = activations.iloc[-1]
    text = number(largest["value"]) if known(largest["value"]) else "NaN"
    return {"activation": f"{text} ({largest['layer']})", "activation_share": largest["value"]}


def last_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the figures of the last recorded steps: five consecutive ones, or the one that failed."""
    end = float(rows["step"].max())
    together: pd.DataFrame = rows[rows["step"] > end - LAST]
    is_whole = together["step"].nunique() == LAST
    return together if is_whole else rows[rows["step"] == end]


def _float16_shares(arm: pd.DataFrame, kind: str) -> dict[str, Any]:
    """Return the shares of an arm's gradients that float16 loses, with its loss scale and without, in per cent."""
    rows, scales = arm[arm["kind"] == kind], _steps(arm, "loss_scale")
    scale = scales.iloc[-1] if len(scales) else FIRST_SCALE
    counts = last_steps(rows).pivot_table(index="layer", columns="name", values="value", aggfunc="sum", fill_value=0.0)
    counts = counts.loc[[layer for layer in rows["layer"].unique() if layer in counts.index]]  # in the model's order
    shares = 100 * counts.div(counts.sum(axis=1), axis=0)
    powers = np.array([POWERS[name] if name in POWERS else float(name) for name in shares.columns])

    def between(low: float, high: float) -> pd.Series:
        return shares.loc[:, (powers >= low) & (powers < high)].sum(axis=1)

    shift = math.log2(scale)
    lost = between(POWERS["below"], FP16_ZERO)
    of_all = {
        "zero": between(-math.inf, POWERS["below"]),
        "lost": lost,
        "subnormal": between(FP16_ZERO, FP16_NORMAL),
        "saved": between(FP16_ZERO - shift, FP16_ZERO),
        "overflow": between(FP16_INFINITE - shift, math.inf),
    }
    whole_model: dict[str, Any] = {name: part.get("") for name, part in of_all.items()}
    by_layer = lost[lost.index != ""]
    worst = f"{number(by_layer.max(), 3)} % ({by_layer.idxmax()})" if len(by_layer) else UNKNOWN
    return whole_model | {"scale": scale, "worst": worst}


def _errors(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the errors of an arm in the first and the last step, in which they were taken."""
    rows = arm[arm["kind"] == "error"].sort_values("value")
    last = rows[rows["step"] == rows.loc[rows["step"] > 0, "step"].max()]
    errors: dict[str, Any] = {"worst": UNKNOWN}
    for end, of_step in (("first", rows[rows["step"] == 0]), ("last", last)):
        of_model = of_step[of_step["layer"] == ""].set_index("name")["value"]
        for name in ("loss", "gradient", "output"):
            errors[f"{end}_{name}"] = of_model.get(name)
    of_layers = last[(last["layer"] != "") & last["value"].notna()]
    if len(of_layers):
        worst = of_layers.iloc[-1]
        errors["worst"] = f"{error(worst['value'])} ({worst['layer']})"
    return errors


def _types(arm: pd.DataFrame) -> dict[str, str]:
    """Return the types of each part of a step, the most frequent first."""
    types = {}
    for part, rows in arm[arm["kind"] == "type"].groupby("layer", sort=False):
        shares = 100 * rows.groupby("name", sort=False)["value"].sum() / rows["value"].sum()
        shares = shares.sort_values(ascending=False)
        named = [f"{name} {number(share, 3)} %" for name, share in shares.items()]
        types[str(part)] = ", ".join(named) if len(named) > 1 else str(shares.index[0])
    return types


# The histograms.

SHARES = (0.001, 1500.0)
"""The ends of the axis of shares, in per cent; above 100 there is room for words."""
LEGEND = (("zero in fp16", chart.LOST), ("subnormal in fp16", chart.COARSE))
LOWEST = -50
"""The least power of two that is shown: the phase counts what is below 2^-48 together."""


def charts(material: Material) -> Iterator[tuple[str, Chart]]:
    """Describe the histograms of each recipe, device and batch size."""
    names = ["workload", "where", "slug", "batch_size"]
    for (workload, where, slug, batch), rows in recorded(material).groupby(names, sort=False):
        for kind, of in GRADIENTS.items():
            of_model = rows[(rows["kind"] == kind) & (rows["layer"] == "")]
            if of_model.empty:
                continue
            scales = rows.loc[(rows["kind"] == "step") & (rows["name"] == "loss_scale"), "value"]
            scale = float(scales.max()) if len(scales) else FIRST_SCALE
            last = [last_steps(arm) for _, arm in chart.arms(of_model)]
            histogram = Chart(
                name=f"{slug}-b{batch:.0f}-{kind.replace('_', '-')}s",
                caption=f"{workload} on {where} at batch size {batch:.0f}: gradients of {of} by magnitude",
                about="The share of all values at each power of two, and of zeros. The arrow: where a loss scale moves "
                "them.",
                panels=[
                    _histogram("First step", of_model[of_model["step"] == 0], scale),
                    _histogram("Last steps", pd.concat(last), scale),
                ],
                legend=[*chart.legend(of_model), *LEGEND],
            )
            yield str(workload), histogram


def _histogram(title: str, rows: pd.DataFrame, scale: float) -> Panel:
    """Return a panel over powers of two; float16's zeros and subnormals are shaded, and zeros stand to the left."""
    arms = chart.arms(rows)
    powers = pd.to_numeric(rows["name"], errors="coerce")
    exponents = range(LOWEST, int(max(0, powers.max())) + 1)
    zero = LOWEST - 3 - len(arms)
    marks: list[Mark] = [
        Bar(x=(LOWEST - 1, FP16_ZERO), low=SHARES[0], high=SHARES[1], tint=chart.LOST, faint=True),
        Bar(x=(FP16_ZERO, FP16_NORMAL), low=SHARES[0], high=SHARES[1], tint=chart.COARSE, faint=True),
    ]
    lines, dots = [], []
    for place, (name, of_arm) in enumerate(arms):
        counts = of_arm.groupby("name")["value"].sum()
        shares = 100 * counts / counts.sum()
        zeros = shares.get("zero", 0.0)
        says = f"{name}, {zeros:.3g} % zeros"
        line = _line(shares.reindex([str(power) for power in exponents], fill_value=0.0))
        lines.append(Line(points=line, tint=name, says=says))
        dots.append(Line(points=[(zero + place, zeros or math.nan)], tint=name, says=says))
    marks += [*lines, *dots]
    # Where a loss scale moves what float16 makes zero.
    power = math.log2(scale)
    moved = FP16_ZERO - power
    text = f"zero at a scale of 2^{power:g}"
    top, below = SHARES[1] / 2, SHARES[1] / 4
    marks.append(Rule(at=moved, axis="x"))
    marks.append(Text(x=moved + 0.4, y=top, text=text, align="left"))
    marks.append(Line(points=[(moved, below), (FP16_ZERO, below)], tint=chart.PLAIN, dots=False))
    marks.append(Text(x=FP16_ZERO, y=below, text="▶"))
    middle = zero + (len(arms) - 1) / 2
    ticks = [(middle, "zero"), *((float(at), f"2^{at}".replace("-", "−")) for at in range(-40, exponents[-1] + 1, 10))]
    percents = [(10.0**power, f"{10.0**power:g}") for power in range(-3, 3)]
    return Panel(
        title=title,
        x=Axis(label="magnitude", ticks=ticks, low=zero - 1.5, high=exponents[-1] + 1.5),
        y=Axis(label="share of all values (%)", scale="log", ticks=percents, low=SHARES[0], high=SHARES[1]),
        marks=marks,
    )


def _line(shares: pd.Series) -> list[tuple[float, float]]:
    """Return a line over powers of two, which falls to the axis next to filled bins, and is interrupted elsewhere."""
    beside = shares.shift(-1, fill_value=0.0) + shares + shares.shift(1, fill_value=0.0)
    heights = shares.where(beside > 0)
    return [(int(str(power)) + 0.5, height) for power, height in heights.items()]


REPORT = PhaseReport(
    tables=(Entry(60, RECIPE, lambda material: numerics(recorded(material))),), charts=charts, has_details=True
)
