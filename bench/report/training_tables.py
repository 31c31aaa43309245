"""Tables of training: what was learned, and what it took."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.report.format import MIB, UNKNOWN, known, number, ratio, signed, source
from bench.report.rows import records
from bench.report.tables import Table, decimals, table, told, without_empty, word
from bench.report.training import MIN_SEEDS, PARITY_MARGIN_POINTS
from bench.spec import BASELINE

Row = Mapping[Hashable, Any]
PLACES = {"device": "device", "host": "host memory", "file": "disk"}
ARM = ["device", "data", "batch size", "precision", "seeds", "epochs"]


def training(rows: pd.DataFrame) -> list[Table]:
    """Return what training came to, and its cost; nothing where nothing was trained.

    Args:
        rows: rows of the summary, of one workload.
    """
    trained = records(rows[rows["train_status"].notna()])
    return [_learned(trained), _cost(trained)] if trained else []


def _arm(row: Row) -> list[str]:
    where, data = str(row["where"]), source(str(row["data"]))
    return [
        where,
        data,
        f"{row['batch_size']:.0f}",
        row["precision"],
        number(row["seeds"], 1),
        number(row["epochs"], 1),
    ]


def _learned(rows: list[dict[Hashable, Any]]) -> Table:
    headers = [*ARM, "train loss", "test loss", "test accuracy (%) ± sd", "evaluated in fp32 (%)"]
    headers += ["difference (points) [90 % interval]", "parity"]
    body = [
        [
            *_arm(row),
            told(row["train_status"], number(row["train_loss"])),
            number(row["test_loss"]),
            told(row["train_status"], _accuracy(row), row["lost_train"]),
            decimals(row["accuracy_fp32_pct"]),
            "baseline" if row["precision"] == BASELINE else _delta(row),
            word(row["parity"]),
        ]
        for row in rows
    ]
    margin = PARITY_MARGIN_POINTS
    about = (
        "Means over seeds, after the last epoch. The difference is arm − fp32, seed by seed; parity is judged at a "
        f"margin of ±{margin} points, which was fixed beforehand, from {MIN_SEEDS} seeds on. EQUIVALENT: the interval "
        f"lies within ±{margin}. NON-INFERIOR: it lies above −{margin} but reaches beyond +{margin}: at most that much "
        f"worse, perhaps better. WORSE: it lies below −{margin}. INCONCLUSIVE: it reaches below −{margin} and above."
    )
    return without_empty(table("Training", headers, body, about=about), len(ARM))


def _accuracy(row: Row) -> str:
    spread = f" ± {decimals(row['accuracy_sd'])}" if known(row["accuracy_sd"]) else ""
    return f"{decimals(row['accuracy_pct'])}{spread}"


def _delta(row: Row) -> str:
    interval = f" [{signed(row['delta_low'])}, {signed(row['delta_high'])}]" if known(row["delta_low"]) else ""
    return f"{signed(row['delta_points'])}{interval}"


def _cost(rows: list[dict[Hashable, Any]]) -> Table:
    headers = [*ARM, "time/epoch (s)", "epoch speedup [95 % interval]", "step speedup [95 % interval]"]
    headers += ["data from", "waiting for data (%)", "total time (s)", "time to accuracy (s)"]
    headers += ["checkpoint (MiB)", "checkpoint in 16 bit (MiB)", "energy (kJ)"]
    body = [
        [
            *_arm(row),
            told(row["train_status"], number(row["time_per_epoch_s"]), row["lost_train"]),
            _speedup(row, "epoch_speedup", "epoch_low", "epoch_high"),
            _speedup(row, "speedup", "low", "high"),
            PLACES.get(row["data_place"], UNKNOWN),
            number(row["data_wait_pct"], 2),
            number(row["total_s"]),
            _time_to_accuracy(row),
            number(row["checkpoint_bytes"] / MIB),
            number(row["checkpoint_16bit_bytes"] / MIB),
            number(row["train_energy_j"] / 1000),
        ]
        for row in rows
    ]
    about = (
        "Time per epoch is training alone, loading included; the total includes evaluation. The epoch speedup is "
        "fp32's time per epoch over the arm's, seed by seed, with Student's interval over the seeds; the step speedup "
        "is the one above, on data already on the device. A checkpoint is the model's weights."
    )
    return without_empty(table("Training: time, storage and energy", headers, body, about=about), len(ARM))


def _speedup(row: Row, center: str, low: str, high: str) -> str:
    return "baseline" if row["precision"] == BASELINE else ratio(row[center], row[low], row[high])


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
