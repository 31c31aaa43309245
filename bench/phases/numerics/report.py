"""Numerics of the first steps of a training: tables of each precision, and histograms of its gradients.

Of several seeds the lowest is shown: one training, not a mean of several.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Line, Mark, Panel, Rule
from bench.report.format import error, known, number
from bench.report.parts import PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import (
    ARM,
    RECIPE,
    Entry,
    Material,
    Table,
    figures,
    optional,
    table,
    whole,
    words,
)

FP16_LARGEST = 65504.0
# Powers of two below which float16 is subnormal, below which it rounds to zero, and from which on
# it is infinite.
FP16_NORMAL, FP16_ZERO, FP16_INFINITE = -14, -25, 16
# GradScaler's first scale, which stands for scaling where a precision has none.
FIRST_SCALE = 2.0**16
# For each kind of gradient, the tensors that the loss is differentiated by, as the table names
# them.
GRADIENTS = {"gradient": "parameters", "output_gradient": "layers' outputs"}
BELOW, ABOVE = -1e3, 1e3
# The powers of two of bins that are not called by theirs; what is not finite lies in no range.
POWERS = {"zero": -math.inf, "below": BELOW, "above": ABOVE, "nonfinite": math.nan}


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
        figures("updates lost (%)", "lost_updates", 2, per=0.01),
        figures("largest activation (layer)", "activation"),
        figures("of fp16's largest (%)", "activation_share", 2, per=FP16_LARGEST / 100),
        figures("error of the loss", "last_loss_error", error),
        figures("of the gradients, first step", "first_gradient_error", error),
        figures("of the gradients, last step", "last_gradient_error", error),
        figures("output: SQNR (dB)", "last_output_error", _decibels),
    ),
)
ABOUT_STEPS = (
    "Updates lost: the share of the weights with a gradient that a step left as they were, "
    "because the update was too small for their type; the least of the first step and the last "
    "five. Errors are those of one step relative to float64, on the same batch with the same "
    "weights: of the loss, and of all gradients together in the Euclidean norm. At an error of 1 "
    "nothing is left of a gradient. SQNR is the ratio of signal to quantisation noise, 20 log10 "
    "of 1 over the relative error: 20 dB are an error of a tenth."
)
GRADIENT_COLUMNS = (
    *ARM,
    words("gradients of", "of"),
    figures("zero (%)", "zero", 3),
    figures("in fp16: zero (%)", "lost", 3),
    figures("subnormal (%)", "subnormal", 3),
    figures("loss scale S", "scale"),
    figures("S brings into range (%)", "saved", 3),
    figures("overflow at S (%)", "overflow", 3),
)
ABOUT_GRADIENTS = (
    "Gradients of the loss, unscaled, with respect to parameters, and to the outputs of layers, "
    "in the last step; shares of all values. Zero: already; where fp32 has less, most of it "
    "underflowed. In fp16: below 2^-25 float16 has only zero, below 2^-14 only subnormal numbers. "
    "S is the loss scale, or 2^16, GradScaler's initial scale, where there is none; it brings "
    "into range what is zero without it."
)


def recorded(material: Material) -> pd.DataFrame:
    """Return the figures of the phase, of the lowest seed of each arm, in the order of the material's rows."""
    rows = material.named(material.runs.details["numerics_figures"])
    rows = rows[rows["kind"] != "module"]  # those are another phase's
    return rows[rows["seed"] == rows.groupby(KEY)["seed"].transform("min")]


def numerics(rows: pd.DataFrame) -> list[Table | None]:
    """Return the tables of one recipe, of rows of ``recorded``."""
    steps = []
    gradients: dict[str, list[Any]] = {kind: [] for kind in GRADIENTS}
    for _, arm in rows.groupby(KEY, sort=False):
        named = {name: arm.iloc[0][name] for name in ("where", "batch_size", "precision")}
        steps.append(defaultdict(str, named | _course(arm)))
        for kind, of in GRADIENTS.items():
            shares = _float16_shares(arm, kind)
            if shares:
                gradients[kind].append(named | {"of": of} | shares)
    lines = [line for of_kind in gradients.values() for line in of_kind]
    return [
        table("Numerics: the first steps", steps, STEP_COLUMNS, ABOUT_STEPS),
        table("Numerics: gradients", lines, GRADIENT_COLUMNS, ABOUT_GRADIENTS),
    ]


def _steps(rows: pd.DataFrame, name: str) -> list[float]:
    """Return a figure of all steps, in their order."""
    of_steps = rows[(rows["kind"] == "step") & (rows["name"] == name)]
    return of_steps.sort_values("step")["value"].tolist()


def _scale(rows: pd.DataFrame) -> float:
    scales = _steps(rows, "loss_scale")
    return scales[-1] if scales else FIRST_SCALE


def _course(arm: pd.DataFrame) -> dict[str, Any]:
    """Return how an arm's steps began and ended, as far as the file has it."""
    line: dict[str, Any] = {}
    losses, scales, lost = (
        _steps(arm, "loss"),
        _steps(arm, "loss_scale"),
        _steps(arm, "lost_updates"),
    )
    if losses:
        last = losses[-1] if known(losses[-1]) else "not finite"
        line |= {"steps": len(losses), "first_loss": losses[0], "last_loss": last}
    if lost:
        line |= {"lost_updates": min(lost)}
    if scales:
        line |= {"skipped": sum(_steps(arm, "skipped")), "loss_scale": scales[-1]}
    activations = arm[arm["kind"] == "activation"].sort_values("value", na_position="last")
    if len(activations):
        largest = activations.iloc[-1]
        text = number(largest["value"]) if known(largest["value"]) else "NaN"
        line |= {"activation": f"{text} ({largest['layer']})", "activation_share": largest["value"]}
    errors = arm[arm["kind"] == "error"].sort_values("step")
    for name, values in errors.groupby("name")["value"]:
        line |= {f"first_{name}_error": values.iloc[0], f"last_{name}_error": values.iloc[-1]}
    return line


def _float16_shares(arm: pd.DataFrame, kind: str) -> dict[str, float]:
    """Return the shares of an arm's gradients that float16 loses, with its loss scale and without, in per cent."""
    rows = arm[arm["kind"] == kind]
    if rows.empty:
        return {}
    rows = rows[rows["step"] == rows["step"].max()]
    powers = rows["name"].map(POWERS).fillna(pd.to_numeric(rows["name"], errors="coerce"))
    percent = 100 * rows["value"] / rows["value"].sum()
    scale = _scale(arm)
    shift = math.log2(scale)
    ranges = {
        "zero": (-math.inf, BELOW),
        "lost": (BELOW, FP16_ZERO),
        "subnormal": (FP16_ZERO, FP16_NORMAL),
        "saved": (FP16_ZERO - shift, FP16_ZERO),
        "overflow": (FP16_INFINITE - shift, math.inf),
    }
    shares = {"scale": scale}
    for name, (low, high) in ranges.items():
        shares[name] = percent[(powers >= low) & (powers < high)].sum()
    return shares


# The histograms.

# The ends of the axis of shares, in per cent.
SHARES = (0.001, 100.0)
LEGEND = (("zero in fp16", chart.LOST), ("subnormal in fp16", chart.COARSE))
# The least power of two that is shown: the phase counts what is below 2^-48 together.
LOWEST = -50


def charts(material: Material) -> Iterator[tuple[str, Chart]]:
    """Describe the histograms of each recipe, device and batch size."""
    names = ["workload", "where", "slug", "batch_size"]
    for (workload, where, slug, batch), rows in recorded(material).groupby(names, sort=False):
        scale = max(_scale(arm) for _, arm in chart.arms(rows))
        for kind, of in GRADIENTS.items():
            of_model = rows[rows["kind"] == kind]
            if of_model.empty:
                continue
            last = of_model.groupby("precision")["step"].transform("max")
            histogram = Chart(
                name=f"{slug}-b{batch:.0f}-{kind.replace('_', '-')}s",
                caption=(
                    f"{workload} on {where} at batch size {batch:.0f}: gradients of {of} by "
                    "magnitude"
                ),
                about="The share of all values at each power of two, and of zeros, in the last "
                "step. Dashed: values left of it are zero in fp16 even at a loss scale of "
                f"2^{math.log2(scale):g}.",
                panels=[_histogram(of_model[of_model["step"] == last], scale)],
                legend=[*chart.legend(of_model), *LEGEND],
            )
            yield str(workload), histogram


def _histogram(rows: pd.DataFrame, scale: float) -> Panel:
    """Return a panel over powers of two; float16's zeros and subnormals are shaded, and zeros stand to the left."""
    arms = chart.arms(rows)
    powers = pd.to_numeric(
        rows["name"], errors="coerce"
    ).dropna()  # where all are zero there are none
    highest = max([0, *powers.astype(int)])
    zero = LOWEST - 3 - len(arms)
    low, high = SHARES
    marks: list[Mark] = [
        Bar(x=(LOWEST - 1, FP16_ZERO), low=low, high=high, tint=chart.LOST, faint=True),
        Bar(x=(FP16_ZERO, FP16_NORMAL), low=low, high=high, tint=chart.COARSE, faint=True),
        Rule(at=FP16_ZERO - math.log2(scale), axis="x"),
    ]
    for place, (name, arm) in enumerate(arms):
        counts = arm.groupby("name")["value"].sum()
        shares = (100 * counts / counts.sum()).clip(lower=low)
        # a bin without any values interrupts the line
        line = [
            (power + 0.5, shares.get(str(power), math.nan)) for power in range(LOWEST, highest + 1)
        ]
        marks.append(Line(points=line, tint=name))
        marks.append(Line(points=[(zero + place, shares.get("zero", math.nan))], tint=name))
    ticks = [(zero + (len(arms) - 1) / 2, "zero")]
    ticks += [(power, f"2^{power}".replace("-", "−")) for power in range(-40, highest + 1, 10)]
    percents = [(10.0**power, f"{10.0**power:g}") for power in range(-3, 3)]
    return Panel(
        title="",
        x=Axis(label="magnitude", ticks=ticks, low=zero - 1.5, high=highest + 1.5),
        y=Axis(label="share of all values (%)", scale="log", ticks=percents, low=low, high=high),
        marks=marks,
    )


REPORT = PhaseReport(
    tables=(Entry(60, RECIPE, lambda material: numerics(recorded(material))),),
    charts=charts,
    has_details=True,
)
