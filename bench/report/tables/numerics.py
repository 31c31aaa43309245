"""Tables of the numerics phase: gradients in 16 bits, a step's errors against float64, and the formats of numbers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from bench.report.format import UNKNOWN, known, number
from bench.report.reading.load import CELL
from bench.report.tables.table import ARM, Table, figures, optional, table, whole, words
from bench.spec.precisions import precision_rank

FP16_LARGEST = 65504.0
LAST = 5
"""Steps at the end of the phase whose gradients are counted together."""
FORMATS = {
    "fp32": (8, 23),
    "tf32": (8, 10),
    "fp16": (5, 10),
    "bf16": (8, 7),
    "fp8 e4m3": (4, 3),
    "fp8 e5m2": (5, 2),
}
"""Bits of exponent and of mantissa; one more is the sign."""
FINITE_ONLY = ("fp8 e4m3",)
"""Formats without infinities, which use the highest exponent for numbers too, all but its last, a NaN.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, section 3.
"""


def numerics(rows: pd.DataFrame) -> list[Table | None]:
    """Return the tables of one workload; none where its numerics phase did not run.

    Args:
        rows: rows of ``Runs.numerics`` with ``where``.
    """
    arms = sorted((arm for _, arm in first_seed(rows).groupby([*CELL, "precision"], sort=False)), key=_where)
    return [_gradients(arms), _errors(arms)]


def first_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the lowest seed of each arm: one training is shown, not a mean of several."""
    return rows[rows["seed"] == rows.groupby([*CELL, "precision"])["seed"].transform("min")]


def last_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the figures of the last recorded steps: five consecutive ones, or the one that failed."""
    steps = sorted(rows["step"].unique(), reverse=True)
    together = [step for index, step in enumerate(steps) if steps[0] - step == index]
    return rows[rows["step"].isin(together[:LAST] if len(together) >= LAST else together[:1])]


def float16_pct(arm: pd.DataFrame, kind: str) -> dict[str, float]:
    """Return the per cent of the last steps' nonzero gradients that are zero, subnormal or infinite in float16."""
    found = last_steps(arm[(arm["kind"] == kind) & (arm["layer"] == "")])
    counts = found.groupby("name")["value"].sum()
    nonzero = counts.get("nonzero", 0.0)
    return {name: 100 * counts[name] / nonzero for name in ("zero", "subnormal", "overflow")} if nonzero else {}


def _where(arm: pd.DataFrame) -> tuple[Any, ...]:
    first = arm.iloc[0]
    return first["where"], first["batch_size"], precision_rank(first["precision"])


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
        "five steps. Zero: the share that is zero already; where fp32 has less, most of it underflowed. The other "
        "gradients are counted as if rounded to fp16: below 2^-14 a number is subnormal and loses digits, at 2^-25 and "
        "below it becomes zero. Scaled: the same, multiplied by the loss scale, or by 2^16, GradScaler's initial "
        "scale, where there is none. The largest fp16 number is 65,504."
    )
    rows = [_named(arm) | _course(arm) | _shares(arm) | _activation(arm) for arm in arms]
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
    """Return the shares, in per cent, of gradients that are zero, and that fp16 would lose."""
    counts = last_steps(arm[(arm["kind"] == "gradient") & (arm["layer"] == "")]).groupby("name")["value"].sum()
    shares: dict[str, Any] = dict.fromkeys(
        f"{kind}_{name}" for kind in ("float16", "float16_scaled") for name in ("zero", "subnormal", "overflow")
    )
    shares["zero"] = 100 * counts.get("zero", 0.0) / counts.sum() if counts.sum() else None
    for kind in ("float16", "float16_scaled"):
        shares |= {f"{kind}_{name}": share for name, share in float16_pct(arm, kind).items()}
    return shares


def _activation(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the largest activation with its layer, and its size where it is a number."""
    found = arm[arm["kind"] == "activation"]
    if found.empty:
        return {"activation": None, "activation_share": None}
    lost = found[found["value"].isna()]
    if len(lost):
        return {"activation": f"NaN ({lost.iloc[0]['layer']})", "activation_share": None}
    row = found.sort_values("value").iloc[-1]
    return {"activation": f"{number(row['value'])} ({row['layer']})", "activation_share": row["value"]}


def _errors(arms: list[pd.DataFrame]) -> Table | None:
    columns = [
        *ARM,
        *optional(
            figures("loss, first step", "first_loss", error),
            figures("gradients, first step", "first_gradient", error),
            figures("loss, last step", "last_loss", error),
            figures("gradients, last step", "last_gradient", error),
            figures("worst layer at the last", "worst"),
        ),
    ]
    about = (
        "Relative errors of one step against float64 on the same batch with the same weights: of the loss, and of all "
        "gradients together in the Euclidean norm. At an error of 1 nothing is left of a gradient."
    )
    rows = []
    for arm in arms:
        found = arm[arm["kind"] == "error"]
        steps = sorted(found["step"].unique())
        first, last = (found[found["step"] == step] for step in (steps if len(steps) == 2 else [*steps, -1][:2]))
        row = _named(arm) | {"worst": _worst(last)}
        for end, rows_of_step in (("first", first), ("last", last)):
            whole_model = rows_of_step[rows_of_step["layer"] == ""].set_index("name")["value"]
            row |= {f"{end}_{name}": whole_model.get(name) for name in ("loss", "gradient")}
        rows.append(row)
    return table("Numerics: errors against float64", rows, columns, about)


def _worst(rows: pd.DataFrame) -> str:
    layers = rows[(rows["layer"] != "") & rows["value"].notna()]
    if layers.empty:
        return UNKNOWN
    row = layers.sort_values("value").iloc[-1]
    return f"{error(row['value'])} ({row['layer']})"


def error(value: float) -> str:
    """Write a relative error with two digits: 1.5e−7 or 0.069."""
    if not known(value):
        return UNKNOWN
    return (f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.2g}").replace("e-0", "e-").replace("-", "−")


def extremes(exponent: int, mantissa: int, *, finite_only: bool = False) -> dict[str, float]:
    """Return a binary floating-point format's largest, smallest normal and smallest subnormal number, and epsilon.

    Source: IEEE 754-2008, section 3.3; without infinities as in ``FINITE_ONLY``.
    """
    bias = 2 ** (exponent - 1) - 1
    epsilon = 2.0**-mantissa
    largest = (2 - 2 * epsilon) * 2.0 ** (bias + 1) if finite_only else (2 - epsilon) * 2.0**bias
    smallest = 2.0 ** (1 - bias)
    return {"largest": largest, "normal": smallest, "subnormal": smallest * epsilon, "epsilon": epsilon}


def formats() -> Table | None:
    """Return the formats that precisions compute in."""
    columns = [
        words("precision", "name"),
        figures("exponent (bits)", "exponent", whole),
        figures("mantissa (bits)", "mantissa", whole),
        figures("largest", "largest", _size),
        figures("smallest normal", "normal", _size),
        figures("smallest subnormal", "subnormal", _size),
        figures("epsilon", "epsilon", _size),
    ]
    about = "Epsilon is the gap from 1 to the next number. TF32 is what products round fp32 to; it is stored as fp32."
    rows = [
        {"name": name, "exponent": exponent, "mantissa": mantissa}
        | extremes(exponent, mantissa, finite_only=name in FINITE_ONLY)
        for name, (exponent, mantissa) in FORMATS.items()
    ]
    return table("", rows, columns, about)


def _size(value: float) -> str:
    return (f"{value:,.10g}" if 1e-3 < value < 1e6 else f"{value:.4g}").replace("e+", "e").replace("-", "−")
