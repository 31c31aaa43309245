"""Tables of training: what was learned, what it cost, and what Lightning's Trainer adds."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.judge import MIN_SEEDS, judged_by
from bench.report.format import MIB, UNKNOWN, estimate, known, number, records, source, written
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
    margin = metric.margin
    worse, better = ("−", "+") if metric.better == "more" else ("+", "−")
    below, above = ("below", "above") if metric.better == "more" else ("above", "below")
    return (
        f"Parity of {metric.label} is judged from {MIN_SEEDS} seeds on, at a margin of ±{margin} {metric.unit} that "
        f"was fixed beforehand. EQUIVALENT: the interval lies within ±{margin}. NON-INFERIOR: it lies {above} "
        f"{worse}{margin} but reaches beyond {better}{margin}. WORSE: it lies {below} {worse}{margin}. INCONCLUSIVE: "
        f"it holds {worse}{margin}."
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
    done = trials[(trials["phase"] == "train") & trials["status"].isin(MEASURED) & trials["time_per_epoch_s"].gt(0)]
    ours = done[done["parameters"] == first["parameters"]].merge(workload[[*TRAINER_KEY, "where"]].drop_duplicates())
    theirs = done[[_is_plain(json.loads(cell), parameters) for cell in done["parameters_json"]]]
    kept = [*TRAINER_KEY, "precision", "seed", "time_per_epoch_s"]
    pairs = ours.merge(theirs[kept], on=kept[:-1], suffixes=("", "_plain"))
    pairs["log_ratio"] = np.log(pairs["time_per_epoch_s"] / pairs["time_per_epoch_s_plain"])
    arms = [arm for _, arm in pairs.groupby([*TRAINER_KEY, "precision"], sort=False)]
    arms.sort(key=lambda arm: precision_rank(str(arm["precision"].iloc[0])))
    about = (
        "Time per epoch by Lightning's Trainer divided by that of the plain loop, seed by seed: above 1 is the "
        "framework's overhead; with more devices than the plain loop had, below 1 is what they gain. The interval is "
        "Student's over the seeds."
    )
    columns = [
        *ARM,
        figures("seeds", "seeds", whole),
        figures("plain (s/epoch)", "plain"),
        figures("Lightning (s/epoch)", "lightning"),
        figures("ratio", "ratio"),
    ]
    return table("Lightning beside the plain loop", map(_trainers, arms), columns, about)


def _is_plain(others: dict[str, Any], parameters: dict[str, Any]) -> bool:
    """Say whether other parameters are the plain loop's, with the rest the same."""
    free = dict.fromkeys(("trainer", "devices"))
    return others.get("trainer") == PLAIN and others | free == parameters | free


def _trainers(rows: pd.DataFrame) -> Row:
    interval = stats.student_interval(rows["log_ratio"].to_numpy(dtype=np.float64)).exp()
    return {
        **{name: rows.iloc[0][name] for name in ("where", "batch_size", "precision")},
        "seeds": len(rows),
        "plain": rows["time_per_epoch_s_plain"].median(),
        "lightning": rows["time_per_epoch_s"].median(),
        "ratio": estimate(interval),
    }


TABLES = (
    Entry(53, RECIPE, lambda material: training(material.rows)),
    Entry(63, RECIPE, lambda material: [against_plain(material.runs.trials, material.rows)]),
)
