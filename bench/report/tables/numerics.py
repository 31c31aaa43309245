"""Tables of the numerics phase: gradients in 16 bits, a step's errors against float64, and the formats of numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pandas as pd

from bench.report.format import UNKNOWN, known, number
from bench.report.reading.load import KEY
from bench.report.tables.table import ARM, RECIPE, Entry, Table, figures, optional, table, whole

FP16_LARGEST = 65504.0
LAST = 5
"""Steps at the end of the phase whose gradients are counted together."""


def numerics(rows: pd.DataFrame) -> list[Table | None]:
    """Return the tables of one workload, of rows of ``Runs.numerics`` in the summary's order with its ``where``."""
    arms = [arm for _, arm in first_seed(rows).groupby(KEY, sort=False)]
    return [_gradients(arms), _errors(arms)]


def first_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the lowest seed of each arm: one training is shown, not a mean of several."""
    return rows[rows["seed"] == rows.groupby(KEY)["seed"].transform("min")]


def last_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the figures of the last recorded steps: five consecutive ones, or the one that failed."""
    steps = sorted(rows["step"].unique(), reverse=True)
    together = [step for index, step in enumerate(steps) if steps[0] - step == index]
    return rows[rows["step"].isin(together[:LAST] if len(together) >= LAST else together[:1])]


def _steps(arm: pd.DataFrame, name: str) -> pd.Series:
    return arm[(arm["kind"] == "step") & (arm["name"] == name)].sort_values("step")["value"]


def _gradients(arms: list[pd.DataFrame]) -> Table | None:
    columns = [
        *ARM,
        *optional(
            figures("steps", "steps", whole),
            figures("skipped", "skipped", 1),
            figures("first loss", "first_loss"),
            figures("last loss", "last_loss"),
            figures("loss scale at the end", "loss_scale"),
            figures("zero (%)", "zero", 3),
            figures("of the rest, in fp16: zero (%)", "float16_zero", 3),
            figures("subnormal (%)", "float16_subnormal", 3),
            figures("scaled: zero (%)", "float16_scaled_zero", 3),
            figures("subnormal (%)", "float16_scaled_subnormal", 3),
            figures("overflow (%)", "float16_scaled_overflow", 3),
            figures("largest activation (layer)", "activation"),
            figures("of fp16's largest (%)", "activation_share", 2, per=FP16_LARGEST / 100),
        ),
    ]
    about = (
        "The first steps of training. Gradients are those of the parameters, divided by the loss scale, in the last "
        "five steps. Zero: the share that is zero already; where fp32 has less, most of it underflowed. The others "
        "are counted as if rounded to fp16: subnormal below 2^-14, zero at 2^-25 and below. Scaled: the same, "
        "multiplied by the loss scale, or by 2^16, GradScaler's initial scale, where there is none."
    )
    rows = [defaultdict(str, _named(arm) | _course(arm) | _shares(arm) | _activation(arm)) for arm in arms]
    return table("Numerics: gradients and activations", rows, columns, about)


def _named(arm: pd.DataFrame) -> dict[str, Any]:
    return {name: arm.iloc[0][name] for name in ("where", "batch_size", "precision")}


def _course(arm: pd.DataFrame) -> dict[str, Any]:
    """Return how an arm's steps began and ended."""
    losses, scales = _steps(arm, "loss"), _steps(arm, "loss_scale")
    last = losses.iloc[-1]
    failed = not known(last) or (scales.empty and not _steps(arm, "finite").tail(1).any())
    return {
        "steps": len(losses),
        "skipped": _steps(arm, "skipped").sum() if len(scales) else None,
        "first_loss": losses.iloc[0],
        "last_loss": "not finite" if failed else last,
        "loss_scale": scales.iloc[-1] if len(scales) else None,
    }


def _shares(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the shares, in per cent, of gradients in the last steps that are zero, and that fp16 would lose."""

    def counts(kind: str) -> pd.Series:
        return last_steps(arm[(arm["kind"] == kind) & (arm["layer"] == "")]).groupby("name")["value"].sum()

    gradients = counts("gradient")
    shares = {"zero": 100 * gradients.get("zero", 0.0) / gradients.sum()} if gradients.sum() else {}
    for kind in ("float16", "float16_scaled"):
        rounded = counts(kind)
        if rounded.get("nonzero"):
            names = ("zero", "subnormal", "overflow")
            shares |= {f"{kind}_{name}": 100 * rounded[name] / rounded["nonzero"] for name in names}
    return shares


def _activation(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the largest activation with its layer, and its size where it is a number."""
    found = arm[arm["kind"] == "activation"]
    if found.empty:
        return {}
    lost = found[found["value"].isna()]
    row = found.sort_values("value").iloc[-1] if lost.empty else lost.iloc[0]
    text = number(row["value"]) if lost.empty else "NaN"
    return {"activation": f"{text} ({row['layer']})", "activation_share": row["value"]}


def _errors(arms: list[pd.DataFrame]) -> Table | None:
    columns = [
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
    ]
    about = (
        "Relative errors of one step against float64 on the same batch with the same weights: of the loss, and of all "
        "gradients together in the Euclidean norm. At an error of 1 nothing is left of a gradient."
    )
    if any("output" in set(arm["name"][arm["kind"] == "error"]) for arm in arms):
        about += (
            " SQNR is the ratio of signal to quantisation noise, 20 log10 of 1 over the relative error: 20 dB are an "
            "error of a tenth."
        )
    rows = [_named(arm) | _error(arm) for arm in arms]
    return table("Numerics: errors against float64", rows, columns, about)


def _error(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the errors of an arm in the first and the last step of those in which they were taken."""
    found = arm[arm["kind"] == "error"].sort_values("value")
    steps = [*sorted(found["step"].unique()), None, None][:2]
    errors = {"worst": UNKNOWN}
    for end, step in zip(("first", "last"), steps, strict=True):
        rows = found[found["step"] == step]
        whole_model = rows[rows["layer"] == ""].set_index("name")["value"]
        errors |= {f"{end}_{name}": whole_model.get(name) for name in ("loss", "gradient", "output")}
    layers = rows[(rows["layer"] != "") & rows["value"].notna()]
    if len(layers):
        errors["worst"] = f"{error(layers.iloc[-1]['value'])} ({layers.iloc[-1]['layer']})"
    return errors


def _decibels(value: float) -> str:
    return f"{-20 * math.log10(value):.1f}" if value > 0 else "∞"


def error(value: float) -> str:
    """Write a relative error with two digits: 1.5e−7 or 0.069."""
    if not known(value):
        return UNKNOWN
    return (f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.2g}").replace("e-0", "e-").replace("-", "−")


TABLES = (Entry(60, RECIPE, lambda material: numerics(material.numerics)),)
