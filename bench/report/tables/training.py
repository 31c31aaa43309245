"""Tables of training: what was learned, and what it took."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.training import MIN_SEEDS, PARITY_MARGIN_POINTS
from bench.report.tables.format import MIB, UNKNOWN, known, number, ratio, records, signed, source
from bench.report.tables.tables import Table, decimals, table, told, without_empty, word
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE, precision_rank

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
            PLACES.get(row["data_storage"], UNKNOWN),
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


# What a framework costs: the same recipe trained by Lightning's Trainer and by the plain loop.

LIGHTNING, PLAIN = "trainer=lightning", "trainer=plain"
PLACE = ["run", "suite", "techniques", "data", "architecture", "device", "placement", "batch_size"]


def against_plain(trials: pd.DataFrame, workload: pd.DataFrame) -> Table | None:
    """Set the times per epoch of Lightning's trainings beside those of the plain loop.

    Args:
        trials: all rows of ``Runs.trials``.
        workload: rows of the summary of one workload, with ``where``.

    Returns:
        A row for each device, batch size and precision that both trained; None where the workload is not
        Lightning's, or the plain loop did not run beside it.
    """
    parameters = str(workload["parameters"].iloc[0])
    if LIGHTNING not in parameters.split():
        return None
    done = trials[(trials["phase"] == "train") & trials["status"].isin(MEASURED) & trials["time_per_epoch_s"].gt(0)]
    ours = done[done["parameters"] == parameters].merge(workload[[*PLACE, "where"]].drop_duplicates())
    theirs = done[done["parameters"].map(_is_plain(parameters))]
    kept = [*PLACE, "precision", "seed", "time_per_epoch_s"]
    pairs = ours.merge(theirs[kept], on=kept[:-1], suffixes=("", "_plain"))
    if pairs.empty:
        return None
    pairs["log_ratio"] = np.log(pairs["time_per_epoch_s"] / pairs["time_per_epoch_s_plain"])
    arms = sorted(
        pairs.groupby([*PLACE, "precision"], sort=False),
        key=lambda arm: precision_rank(str(arm[1]["precision"].iloc[0])),
    )
    body = [_row(rows) for _, rows in arms]
    about = (
        "Time per epoch by Lightning's Trainer over that of the plain loop, seed by seed: above 1 is what the "
        "framework costs, below 1 what its further devices gain. The interval is Student's over the seeds."
    )
    headers = ["device", "batch size", "precision", "seeds", "plain (s/epoch)", "Lightning (s/epoch)", "ratio"]
    return table("Lightning beside the plain loop", headers, body, about=about)


def _is_plain(parameters: str) -> Callable[[str], bool]:
    """Return whether other parameters are the same but for the trainer and its devices."""

    def rest(text: str) -> set[str]:
        return {word for word in text.split() if not word.startswith(("trainer=", "devices="))}

    wanted = rest(parameters)
    return lambda text: PLAIN in text.split() and rest(text) == wanted


def _row(rows: pd.DataFrame) -> list[str]:
    first = rows.iloc[0]
    found = stats.student_interval(rows["log_ratio"].to_numpy(dtype=np.float64)).exp()
    return [
        str(first["where"]),
        f"{first['batch_size']:.0f}",
        str(first["precision"]),
        str(len(rows)),
        number(rows["time_per_epoch_s_plain"].median()),
        number(rows["time_per_epoch_s"].median()),
        ratio(found.center, found.low, found.high),
    ]
