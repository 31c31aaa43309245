"""Tables of the numerics phase: what 16 bits do to gradients, how far a step is from float64's, and the formats."""

from __future__ import annotations

import pandas as pd

from bench.report.reading.load import CELL
from bench.report.tables.format import UNKNOWN, known, number
from bench.report.tables.tables import Table, table, without_empty
from bench.spec.precisions import precision_rank

FP16_LARGEST = 65504.0
LAST = 5
"""Steps at the end of the phase whose gradients are taken together."""
ARM = ["device", "batch size", "precision"]
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


def numerics(rows: pd.DataFrame) -> list[Table]:
    """Return the tables of one workload; none where its numerics were not looked at.

    Args:
        rows: rows of ``Runs.numerics`` with ``where``.
    """
    rows = first_seed(rows)
    if rows.empty:
        return []
    arms = [arm for _, arm in rows.groupby([*CELL, "precision"], sort=False)]
    arms.sort(key=lambda arm: (arm["where"].iloc[0], arm["batch_size"].iloc[0], precision_rank(_precision(arm))))
    return [_gradients(arms), _errors(arms)]


def first_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the lowest seed of each arm: one training is looked at closely, and not a mean of several."""
    return rows[rows["seed"] == rows.groupby([*CELL, "precision"])["seed"].transform("min")]


def last_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the figures of the last steps that were looked at: five next to each other, or the one that failed."""
    steps = sorted(rows["step"].unique(), reverse=True)
    together = [step for index, step in enumerate(steps) if steps[0] - step == index]
    return rows[rows["step"].isin(together[:LAST] if len(together) >= LAST else together[:1])]


def float16_pct(arm: pd.DataFrame, kind: str) -> dict[str, float]:
    """Return how many of the nonzero gradients of the last steps float16 would make zero, subnormal or infinite."""
    found = last_steps(arm[(arm["kind"] == kind) & (arm["layer"] == "")])
    counts = found.groupby("name")["value"].sum()
    nonzero = counts.get("nonzero", 0.0)
    return {name: 100 * counts[name] / nonzero for name in ("zero", "subnormal", "overflow")} if nonzero else {}


def _precision(arm: pd.DataFrame) -> str:
    return str(arm["precision"].iloc[0])


def _arm(arm: pd.DataFrame) -> list[str]:
    return [str(arm["where"].iloc[0]), f"{arm['batch_size'].iloc[0]:.0f}", _precision(arm)]


def _steps(arm: pd.DataFrame, name: str) -> pd.Series:
    return arm[(arm["kind"] == "step") & (arm["name"] == name)].sort_values("step")["value"]


def _gradients(arms: list[pd.DataFrame]) -> Table:
    headers = [*ARM, "steps", "skipped", "first loss", "last loss", "loss scale at the end", "zero (%)"]
    headers += ["of the rest, in fp16: zero (%)", "subnormal (%)", "scaled: zero (%)", "subnormal (%)", "overflow (%)"]
    headers += ["largest activation (layer)", "of fp16's largest (%)"]
    body = [[*_arm(arm), *_course(arm), *_shares(arm), *_activation(arm)] for arm in arms]
    about = (
        "The first steps of training, and the parameters' gradients, divided by the loss scale, in the last five. "
        "Zero is what they are already, most of it lost on the way where fp32 has less. The rest is as if rounded to "
        "fp16: below 2^-14 it is subnormal and loses digits, at 2^-25 and below it becomes zero; then the same "
        "multiplied by the loss scale, or by 2^16, GradScaler's first, where there is none. fp16 ends at 65,504."
    )
    return without_empty(table("Numerics: gradients and activations", headers, body, about=about), len(ARM))


def _course(arm: pd.DataFrame) -> list[str]:
    losses, scales = _steps(arm, "loss"), _steps(arm, "loss_scale")
    skipped = _steps(arm, "skipped").sum() if len(scales) else float("nan")
    last = "not finite" if not _steps(arm, "finite").tail(1).any() and not len(scales) else number(losses.iloc[-1])
    return [
        f"{len(losses)}",
        number(skipped, 1),
        number(losses.iloc[0]),
        last if known(losses.iloc[-1]) else "not finite",
        number(scales.iloc[-1]) if len(scales) else UNKNOWN,
    ]


def _shares(arm: pd.DataFrame) -> list[str]:
    counts = last_steps(arm[(arm["kind"] == "gradient") & (arm["layer"] == "")]).groupby("name")["value"].sum()
    zero = 100 * counts.get("zero", 0.0) / counts.sum() if counts.sum() else float("nan")
    plain, scaled = float16_pct(arm, "float16"), float16_pct(arm, "float16_scaled")
    names = [(plain, "zero"), (plain, "subnormal"), (scaled, "zero"), (scaled, "subnormal"), (scaled, "overflow")]
    return [number(zero, 3), *(number(found.get(name, float("nan")), 3) for found, name in names)]


def _activation(arm: pd.DataFrame) -> list[str]:
    found = arm[arm["kind"] == "activation"]
    if found.empty:
        return [UNKNOWN, UNKNOWN]
    if found["value"].isna().any():
        layers = found.loc[found["value"].isna(), "layer"]
        return [f"NaN ({layers.iloc[0]})", UNKNOWN]
    row = found.sort_values("value").iloc[-1]
    return [f"{number(row['value'])} ({row['layer']})", number(100 * row["value"] / FP16_LARGEST, 2)]


def _errors(arms: list[pd.DataFrame]) -> Table:
    headers = [*ARM, "loss, first step", "gradients, first step", "loss, last step", "gradients, last step"]
    headers += ["worst layer at the last"]
    body = []
    for arm in arms:
        found = arm[arm["kind"] == "error"]
        steps = sorted(found["step"].unique())
        ends = [found[found["step"] == step] for step in (steps if len(steps) == 2 else [*steps, -1][:2])]
        body.append([*_arm(arm), *(cell for end in ends for cell in _end(end)), _worst(ends[-1])])
    about = (
        "Relative errors of one step against float64 on the same batch with the same weights: of the loss, and of all "
        "gradients together in the Euclidean norm. 1 means that nothing is left of a gradient."
    )
    return without_empty(table("Numerics: errors against float64", headers, body, about=about), len(ARM))


def _end(rows: pd.DataFrame) -> list[str]:
    whole = rows[rows["layer"] == ""].set_index("name")["value"]
    return [error(whole.get(name, float("nan"))) for name in ("loss", "gradient")]


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


def formats() -> Table:
    """Return the formats that precisions compute in."""
    headers = ["precision", "exponent (bits)", "mantissa (bits)", "largest", "smallest normal", "smallest subnormal"]
    headers += ["epsilon"]
    body = []
    for name, (exponent, mantissa) in FORMATS.items():
        found = extremes(exponent, mantissa, finite_only=name in FINITE_ONLY)
        body.append([name, str(exponent), str(mantissa), *(_size(value) for value in found.values())])
    about = "Epsilon is the gap from 1 to the next number. TF32 is what products round fp32 to; it is stored as fp32."
    return Table(headers=headers, rows=body, about=about)


def _size(value: float) -> str:
    return (f"{value:,.10g}" if 1e-3 < value < 1e6 else f"{value:.4g}").replace("e+", "e").replace("-", "−")
