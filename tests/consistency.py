"""The figures of a run that follow from its blocks and epochs, computed again in another way."""

from pathlib import Path

import numpy as np
import pandas as pd

from bench.report.reading.trials import read_details, read_trials
from bench.results.csv_file import PAIR
from bench.results.records import MEASURED
from bench.results.run_json import read_run
from bench.stats import rounds_interval

EXACT = 1e-9
ROUGHLY = {"total_s": 1e-3}
"""Of the training's own clock, which runs between epochs too."""
KINDS_OF_MEMORY = ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "temporary_bytes"]


def timed_figures(trial: str, precision: str, blocks: pd.DataFrame) -> dict[str, float]:
    """Compute the figures of an arm from the blocks of the rounds that count."""
    counted = blocks[(blocks["trial"] == trial) & (blocks["discarded"] == "")]
    own = counted[counted["precision"] == precision]
    step_ms = own["time_ms"] / own["steps"]
    figures = {"step_ms": step_ms.median(), "rounds": own["round"].nunique(), "block_steps": own["steps"].max()}
    if precision != "fp32" and "fp32" in set(counted["precision"]):
        logs = np.log(counted["time_ms"] / counted["steps"]).groupby([counted["precision"], counted["round"]]).mean()
        gain = rounds_interval((logs["fp32"] - logs[precision]).to_numpy())
        figures |= {"log_speedup": gain.center, "log_speedup_error": gain.error if gain.n > 1 else np.nan}
    return figures


def trained_figures(trial: str, precision: str, epochs: pd.DataFrame) -> dict[str, float]:
    """Compute the figures of a training from its epochs; its time per epoch without the first."""
    own = epochs[(epochs["trial"] == trial) & (epochs["precision"] == precision)].sort_values("epoch")
    last, train_s = own.iloc[-1], own["train_s"].sum()
    return {
        **last[["train_loss", "test_loss", "test_accuracy_pct"]].to_dict(),
        "epochs": len(own),
        "time_per_epoch_s": (own["train_s"] if len(own) == 1 else own["train_s"].iloc[1:]).median(),
        "total_s": train_s + own["test_s"].sum(),
        "train_samples_per_s": own["samples"].sum() / train_s,
        "data_wait_pct": 100 * own["data_wait_s"].sum() / train_s,
    }


def assert_consistent(folder: Path) -> int:
    """Compare a run's rows with its blocks and epochs; return how many rows have either."""
    details = read_details(folder)
    trials = read_trials(folder, read_run(folder), details)
    measured = trials[trials["status"].isin(MEASURED)]
    kinds = measured[measured["tracked_peak_bytes"].notna()]
    np.testing.assert_array_equal(kinds["tracked_peak_bytes"], kinds[KINDS_OF_MEMORY].sum(axis=1))
    checked = 0
    for phase, name, figures_of in (("speed", "blocks.csv", timed_figures), ("train", "epochs.csv", trained_figures)):
        rows = measured[measured["phase"] == phase]
        for (trial, precision), (_, row) in zip(rows[PAIR].itertuples(index=False), rows.iterrows(), strict=True):
            for figure, expected in figures_of(trial, precision, details[name]).items():
                np.testing.assert_allclose(row[figure], expected, rtol=ROUGHLY.get(figure, EXACT), err_msg=figure)
        checked += len(rows)
    return checked
