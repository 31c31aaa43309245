"""Numerics of the first steps of a training: tables, and histograms of gradients.

Of several seeds the lowest is shown: one training, not a mean of several.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Curve, Mark, Panel, Rule
from bench.report.format import error, known, number
from bench.report.parts import PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import (
    ARM_COLUMNS,
    EACH_RECIPE,
    Entry,
    Material,
    Table,
    make_table,
    number_column,
    optional_columns,
    text_column,
    whole,
)

FP16_LARGEST = 65504.0
# Powers of two below which float16 is subnormal, below which it rounds to zero, and from which on
# it is infinite.
FP16_NORMAL = -14
FP16_ZERO = -25
FP16_INFINITE = 16
# GradScaler's first scale, which stands for scaling where a precision has none.
FIRST_SCALE = 2.0**16
# For each kind of gradient, the tensors that the loss is differentiated by, as the table names
# them.
GRADIENTS = {"gradient": "parameters", "output_gradient": "layers' outputs"}
BELOW = -1e3
ABOVE = 1e3
# The powers of two of bins that are not called by theirs; what is not finite lies in no range.
POWERS = {
    "zero": -math.inf,
    "below": BELOW,
    "above": ABOVE,
    "nonfinite": math.nan,
}


def _decibels(value: float) -> str:
    if value == 0:
        return "∞"
    decibels = -20 * math.log10(value)
    return f"{decibels:.1f}"


STEP_COLUMNS = (
    *ARM_COLUMNS,
    *optional_columns(
        number_column("steps", "steps", whole),
        number_column("skipped", "skipped", 1),
        number_column("first loss", "first_loss"),
        number_column("last loss", "last_loss"),
        number_column("loss scale at the end", "loss_scale"),
        number_column("updates lost (%)", "lost_updates", 2, per=0.01),
        number_column("largest activation (layer)", "activation"),
        number_column("of fp16's largest (%)", "activation_share", 2, per=FP16_LARGEST / 100),
        number_column("error of the loss", "last_loss_error", error),
        number_column("of the gradients, first step", "first_gradient_error", error),
        number_column("of the gradients, last step", "last_gradient_error", error),
        number_column("output: SQNR (dB)", "last_output_error", _decibels),
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
    *ARM_COLUMNS,
    text_column("gradients of", "of"),
    number_column("zero (%)", "zero", 3),
    number_column("in fp16: zero (%)", "lost", 3),
    number_column("subnormal (%)", "subnormal", 3),
    number_column("loss scale S", "scale"),
    number_column("S brings into range (%)", "saved", 3),
    number_column("overflow at S (%)", "overflow", 3),
)
ABOUT_GRADIENTS = (
    "Gradients of the loss, unscaled, with respect to parameters, and to the outputs of layers, "
    "in the last step; shares of all values. Zero: already; where fp32 has less, most of it "
    "underflowed. In fp16: below 2^-25 float16 has only zero, below 2^-14 only subnormal numbers. "
    "S is the loss scale, or 2^16, GradScaler's initial scale, where there is none; it brings "
    "into range what is zero without it."
)


def recorded(material: Material) -> pd.DataFrame:
    """Return the figures of the lowest seed of each arm, in the order of the material's rows."""
    rows = material.named(material.runs.details["numerics_figures"])
    rows = rows[rows["kind"] != "module"]  # those are another phase's
    lowest = rows.groupby(KEY)["seed"].transform("min")
    return rows[rows["seed"] == lowest]


def numerics(rows: pd.DataFrame) -> list[Table | None]:
    """Return the tables of one recipe, of rows of ``recorded``."""
    arms = [arm for _, arm in rows.groupby(KEY, sort=False)]
    steps = [defaultdict(str, _course(arm)) for arm in arms]
    gradients = []
    for kind, of in GRADIENTS.items():
        for arm in arms:
            of_kind = arm[arm["kind"] == kind]
            if of_kind.empty:
                continue
            line: dict[Any, Any] = of_kind.iloc[0].to_dict()
            scale = _scale(arm)
            line["of"] = of
            line |= _float16_shares(of_kind, scale)
            gradients.append(line)
    return [
        make_table("Numerics: the first steps", steps, STEP_COLUMNS, ABOUT_STEPS),
        make_table("Numerics: gradients", gradients, GRADIENT_COLUMNS, ABOUT_GRADIENTS),
    ]


def _scale(rows: pd.DataFrame) -> float:
    """Return the loss scale of the last step."""
    scales = rows[rows["name"] == "loss_scale"]
    if scales.empty:
        return FIRST_SCALE
    ordered = scales.sort_values("step")
    return float(ordered["value"].iloc[-1])


def _course(arm: pd.DataFrame) -> dict[Any, Any]:
    """Return how an arm's steps began and ended, as far as the file has it."""
    line: dict[Any, Any] = arm.iloc[0].to_dict()
    arm = arm.sort_values("step")
    of_steps = arm[arm["kind"] == "step"]
    values_of = dict(list(of_steps.groupby("name")["value"]))
    if "loss" in values_of:
        losses = values_of["loss"].to_list()
        last = losses[-1]
        line["steps"] = len(losses)
        line["first_loss"] = losses[0]
        line["last_loss"] = last if known(last) else "not finite"
    if "lost_updates" in values_of:
        line["lost_updates"] = values_of["lost_updates"].min()
    if "loss_scale" in values_of:
        line["loss_scale"] = _scale(arm)
        skipped = arm[arm["name"] == "skipped"]
        line["skipped"] = skipped["value"].sum()
    activations = arm[arm["kind"] == "activation"]
    if not activations.empty:
        # A NaN is sorted behind all numbers.
        largest = activations.sort_values("value").iloc[-1]
        value = largest["value"]
        text = number(value) if known(value) else "NaN"
        line["activation"] = f"{text} ({largest['layer']})"
        line["activation_share"] = value
    errors = arm[arm["kind"] == "error"]
    for name, values in errors.groupby("name")["value"]:
        line[f"first_{name}_error"] = values.iloc[0]
        line[f"last_{name}_error"] = values.iloc[-1]
    return line


def _float16_shares(rows: pd.DataFrame, scale: float) -> dict[str, float]:
    """Return the shares of gradients that float16 loses, with a loss scale and without, in %."""
    last_step = rows["step"].max()
    rows = rows[rows["step"] == last_step]
    # The names of most bins are powers of two.
    numbers = pd.to_numeric(rows["name"], errors="coerce")
    powers = rows["name"].map(POWERS).fillna(numbers)
    percent = 100 * rows["value"] / rows["value"].sum()
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
        is_within = (powers >= low) & (powers < high)
        shares[name] = percent[is_within].sum()
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
    groups = recorded(material).groupby(names, sort=False)
    for (workload, where, slug, batch), rows in groups:
        scale = max(_scale(arm) for _, arm in chart.arms(rows))
        for kind, of in GRADIENTS.items():
            of_model = rows[rows["kind"] == kind]
            if of_model.empty:
                continue
            last_steps = of_model.groupby("precision")["step"].transform("max")
            in_last_step = of_model[of_model["step"] == last_steps]
            ending = kind.replace("_", "-")
            exponent = math.log2(scale)
            histogram = Chart(
                name=f"{slug}-b{batch:.0f}-{ending}s",
                caption=(
                    f"{workload} on {where} at batch size {batch:.0f}: gradients of {of} by "
                    "magnitude"
                ),
                about="The share of all values at each power of two, and of zeros, in the last "
                "step. Dashed: values left of it are zero in fp16 even at a loss scale of "
                f"2^{exponent:g}.",
                panels=[_histogram(in_last_step, scale)],
                legend=[*chart.legend(of_model), *LEGEND],
            )
            yield str(workload), histogram


def _histogram(rows: pd.DataFrame, scale: float) -> Panel:
    """Return a panel over powers of two; zeros stand to the left, a dot for each precision.

    Where float16 has only zero, or subnormal numbers, it is shaded.
    """
    arms = chart.arms(rows)
    numbers = pd.to_numeric(rows["name"], errors="coerce")
    named = numbers.dropna().astype(int)
    # The axis goes to 2^0 at least; where all values are zero there are no powers.
    highest = max([0, *named])
    powers = range(LOWEST, highest + 1)
    zero = LOWEST - 3 - len(arms)
    low, high = SHARES
    marks: list[Mark] = [
        Bar(
            x=(LOWEST - 1, FP16_ZERO),
            low=low,
            high=high,
            tint=chart.LOST,
            faint=True,
        ),
        Bar(
            x=(FP16_ZERO, FP16_NORMAL),
            low=low,
            high=high,
            tint=chart.COARSE,
            faint=True,
        ),
        Rule(at=FP16_ZERO - math.log2(scale), axis="x"),
    ]
    for place, (name, arm) in enumerate(arms):
        counts = arm.groupby("name")["value"].sum()
        percent = 100 * counts / counts.sum()
        # What is less stands on the axis, which is logarithmic.
        shares = percent.clip(lower=low)
        line = []
        for power in powers:
            # A bin without any values interrupts the line.
            share = shares.get(str(power), math.nan)
            line.append((power + 0.5, share))
        dot = (zero + place, shares.get("zero", math.nan))
        marks.append(Curve(points=line, tint=name))
        marks.append(Curve(points=[dot], tint=name))
    middle = zero + (len(arms) - 1) / 2
    ticks = [(middle, "zero")]
    for power in range(-40, powers.stop, 10):
        ticks.append((power, f"2^{power}".replace("-", "−")))
    percents = []
    for power in range(-3, 3):
        value = 10.0**power
        percents.append((value, f"{value:g}"))
    return Panel(
        title="",
        x=Axis(
            label="magnitude",
            ticks=ticks,
            low=zero - 1.5,
            high=powers.stop + 0.5,
        ),
        y=Axis(
            label="share of all values (%)",
            scale="log",
            ticks=percents,
            low=low,
            high=high,
        ),
        marks=marks,
    )


REPORT = PhaseReport(
    tables=(Entry(60, EACH_RECIPE, lambda material: numerics(recorded(material))),),
    charts=charts,
    has_details=True,
)
