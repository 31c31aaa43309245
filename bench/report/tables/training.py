"""Tables of training: what was learned, what it cost, what Lightning's Trainer adds, and the numerics phase."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.judge import MIN_SEEDS, judged_by
from bench.report.format import MIB, UNKNOWN, error, estimate, known, number, records, source, written
from bench.report.reading.load import KEY
from bench.report.tables.table import (
    ARM,
    BATCH,
    DEVICE,
    PRECISION,
    RECIPE,
    Entry,
    Row,
    Table,
    decimals,
    figures,
    optional,
    over_fp32,
    table,
    whole,
    words,
)
from bench.results.records import MEASURED
from bench.spec.metrics import LOSS, Metric, learned
from bench.spec.precisions import BASELINE, precision_rank

LIGHTNING, PLAIN = "lightning", "plain"
TRAINER_KEY = ["run", "suite", "techniques", "data", "architecture", "device", "placement", "batch_size"]
"""Columns in which trainings by the two trainers agree, beside precision and seed."""
FP16_LARGEST = 65504.0
LAST = 5
"""Steps at the end of the phase whose gradients are counted together."""
STORAGE = {"device": "device", "host": "host memory", "file": "disk"}
TRAINED = (
    DEVICE,
    words("data", lambda row: source(str(row["data"]))),
    BATCH,
    PRECISION,
    figures("seeds", "seeds", 1),
    figures("epochs", "epochs", 1),
)
"""The columns that name what was trained."""


def training(rows: pd.DataFrame) -> list[Table | None]:
    """Return what training learned and what it cost; nothing where nothing was trained."""
    trained = records(rows[rows["train_status"].notna()])
    return [_learned(trained), _cost(trained)]


def _learned(rows: list[Row]) -> Table | None:
    columns = [
        *TRAINED,
        *optional(
            figures("train loss", "train_loss", status="train_status"),
            figures("test loss", "test_loss"),
            figures("above the entropy (nats) [95 % interval]", _above_entropy),
            figures("perplexity", "perplexity"),
            figures("test accuracy (%) ± sd", _accuracy, status="train_status", lost="lost_train"),
            figures("evaluated in fp32 (%)", "accuracy_fp32_pct", decimals),
            *(figures(f"difference ({one.unit}) [90 % interval]", partial(_difference, one)) for one in learned()),
            words("parity", "parity"),
        ),
    ]
    about = "Means over seeds, after the last epoch. The difference is precision − fp32, seed by seed."
    found = [judged_by(row) for row in rows]
    about += " ".join(["", *(_how_judged(one) for one in learned() if one in found)])
    if any(known(row["entropy_nats"]) for row in rows):
        about += (
            " Of the data called markov the entropy rate is known, the least test loss that can be expected: how far "
            "above it the loss lies is averaged over seeds, each with sequences of its own."
        )
    return table("Training", rows, columns, about)


def _how_judged(metric: Metric) -> str:
    margin = f"{metric.margin} {metric.unit}"
    return (
        f"Parity of {metric.label} is judged from {MIN_SEEDS} seeds on, at a margin of {margin} that was fixed "
        f"beforehand. EQUIVALENT: the interval lies within ±{margin}. NON-INFERIOR: it may be better, but not worse, "
        "by more. WORSE: all of it is worse by more. INCONCLUSIVE: it holds the margin on the worse side."
    )


def _above_entropy(row: Row) -> str:
    return written(LOSS, [row[f"above_entropy{end}"] for end in ("", "_low", "_high")])


def _accuracy(row: Row) -> str:
    spread = f" ± {decimals(row['accuracy_sd'])}" if known(row["accuracy_sd"]) else ""
    return f"{decimals(row['accuracy_pct'])}{spread}"


def _difference(metric: Metric, row: Row) -> str:
    return "baseline" if row["precision"] == BASELINE else written(metric, [row[name] for name in metric.changes])


def _cost(rows: list[Row]) -> Table | None:
    columns = [
        *TRAINED,
        *optional(
            figures("time/epoch (s)", "time_per_epoch_s", status="train_status", lost="lost_train"),
            figures(
                "epoch speedup [95 % interval]", lambda row: over_fp32(row, "epoch_speedup", "epoch_low", "epoch_high")
            ),
            figures("step speedup [95 % interval]", over_fp32),
            words("data from", lambda row: STORAGE.get(row["data_storage"])),
            figures("waiting for data (%)", "data_wait_pct", 2),
            figures("total time (s)", "total_s"),
            figures("time to accuracy (s)", _time_to_accuracy),
            figures("checkpoint (MiB)", "checkpoint_bytes", per=MIB),
            figures("checkpoint in 16 bit (MiB)", "checkpoint_16bit_bytes", per=MIB),
            figures("energy (kJ)", "train_energy_j", per=1000),
        ),
    ]
    about = (
        "Time per epoch is training alone, loading included; the total includes evaluation. The epoch speedup is "
        "fp32's time per epoch divided by the precision's, seed by seed, with Student's interval over the seeds; the "
        "step speedup is that of the tables above, on data already on the device. A checkpoint is the model's weights."
    )
    return table("Training: time, storage and energy", rows, columns, about)


def _time_to_accuracy(row: Row) -> str:
    """Write the mean time of the seeds that reached the target, and how many they are where not all did."""
    target = row["target_accuracy_pct"]
    if not known(target):
        return UNKNOWN
    if not row["reached"]:
        return f"{target:g} % not reached"
    some = row["reached"] < row["seeds"]
    of_seeds = f", {row['reached']:.0f} of {row['seeds']:.0f} seeds" if some else ""
    return f"{number(row['time_to_accuracy_s'])} (to {target:g} %{of_seeds})"


def against_plain(trials: pd.DataFrame, workload: pd.DataFrame) -> Table | None:
    """Compare the times per epoch of Lightning's trainings with those of the plain loop, where both trained.

    Args:
        trials: all rows of ``Runs.trials``.
        workload: rows of the summary, of one workload; None is returned where it is not Lightning's.
    """
    first = workload.iloc[0]
    parameters = json.loads(first["parameters_json"])
    if parameters.get("trainer") != LIGHTNING:
        return None
    plain = parameters | {"trainer": PLAIN, "devices": None}
    is_plain = trials["parameters_json"].map(lambda cell: json.loads(cell) | {"devices": None} == plain).astype(bool)
    done = (trials["phase"] == "train") & trials["status"].isin(MEASURED) & trials["time_per_epoch_s"].gt(0)
    ours = trials[done & (trials["parameters"] == first["parameters"])]
    ours = ours.merge(workload[[*TRAINER_KEY, "where"]].drop_duplicates())
    kept = [*TRAINER_KEY, "precision", "seed", "time_per_epoch_s"]
    pairs = ours.merge(trials.loc[done & is_plain, kept], on=kept[:-1], suffixes=("", "_plain"))
    pairs["log_ratio"] = np.log(pairs["time_per_epoch_s"] / pairs["time_per_epoch_s_plain"])
    arms = [arm for _, arm in pairs.groupby([*TRAINER_KEY, "precision"], sort=False)]
    arms.sort(key=lambda arm: precision_rank(str(arm["precision"].iloc[0])))
    about = (
        "Time per epoch by Lightning's Trainer divided by that of the plain loop, seed by seed: above 1 is the "
        "framework's overhead; with more devices than the plain loop had, below 1 is what they gain. The interval is "
        "Student's over the seeds."
    )
    rows = [
        {
            **{name: arm.iloc[0][name] for name in ("where", "batch_size", "precision")},
            "seeds": len(arm),
            "plain": arm["time_per_epoch_s_plain"].median(),
            "lightning": arm["time_per_epoch_s"].median(),
            "ratio": estimate(stats.student_interval(arm["log_ratio"].to_numpy(dtype=np.float64)).exp()),
        }
        for arm in arms
    ]
    columns = [
        *ARM,
        figures("seeds", "seeds", whole),
        figures("plain (s/epoch)", "plain"),
        figures("Lightning (s/epoch)", "lightning"),
        figures("ratio", "ratio"),
    ]
    return table("Lightning compared with the plain loop", rows, columns, about)


# The numerics phase.


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


TABLES = (
    Entry(53, RECIPE, lambda material: training(material.rows)),
    Entry(60, RECIPE, lambda material: numerics(material.numerics)),
    Entry(63, RECIPE, lambda material: [against_plain(material.runs.trials, material.rows)]),
)
