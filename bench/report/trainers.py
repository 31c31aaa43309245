"""What a framework costs: the same recipe trained by Lightning's Trainer and by the plain loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from bench import stats
from bench.records import MEASURED
from bench.report.format import number, ratio
from bench.report.summary import precision_rank
from bench.report.tables import Table, table

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
