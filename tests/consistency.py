"""The figures of a run's phases, computed again from the blocks and epochs that the harness stored with them."""

from pathlib import Path

import numpy as np
import pandas as pd

from bench.report.reading.trials import read_trials
from bench.results.csv_file import PAIR, read
from bench.results.records import MEASURED
from bench.results.run_json import read_run
from bench.stats import rounds_interval

EXACT = 1e-9
ROUGHLY = {"total_s": 1e-3}
"""Of the training's own clock, which runs between epochs too."""
KINDS_OF_MEMORY = ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "temporary_bytes"]


def timed_figures(trials: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """Compute each arm's figures from the blocks of the rounds that count."""
    counted = blocks[blocks["discarded"] == ""]
    counted = counted.assign(step_ms=counted["time_ms"] / counted["steps"])
    arms = counted.groupby(PAIR, sort=False)
    figures = pd.DataFrame({"step_ms": arms["step_ms"].median(), "rounds": arms["round"].nunique()})
    figures["block_steps"] = blocks.groupby(PAIR)["steps"].max()
    figures["skipped_steps"] = blocks.groupby(PAIR)["skipped_steps"].sum()
    logs = np.log(counted["step_ms"]).groupby([counted[name] for name in [*PAIR, "round"]]).mean()
    for trial, precision in trials.loc[trials["speedup"].notna(), PAIR].itertuples(index=False):
        speedup = rounds_interval((logs[trial, "fp32"] - logs[trial, precision]).to_numpy()).exp()
        names = ["speedup", "speedup_low", "speedup_high"]
        figures.loc[(trial, precision), names] = [speedup.center, speedup.low, speedup.high]
    return figures


def trained_figures(epochs: pd.DataFrame) -> pd.DataFrame:
    """Compute each training's figures from its epochs; its time per epoch without the first."""
    courses = epochs.sort_values("epoch").groupby(PAIR, sort=False)
    sums = courses[["train_s", "test_s", "samples", "data_wait_s"]].sum()
    last = courses[["train_loss", "test_loss", "test_accuracy_pct"]].last()
    return last.assign(
        epochs=courses.size(),
        time_per_epoch_s=courses["train_s"].agg(
            lambda seconds: (seconds if len(seconds) == 1 else seconds.iloc[1:]).median()
        ),
        total_s=sums["train_s"] + sums["test_s"],
        train_samples_per_s=sums["samples"] / sums["train_s"],
        data_wait_pct=100 * sums["data_wait_s"] / sums["train_s"],
    )


def assert_consistent(folder: Path) -> int:
    """Compare a run's rows with its blocks and epochs; return how many rows have either."""
    trials = read_trials(folder, read_run(folder))
    blocks, epochs = (read(folder / name) for name in ("blocks.csv", "epochs.csv"))
    measured = trials[trials["status"].isin(MEASURED)]
    kinds = measured[measured["tracked_peak_bytes"].notna()]
    np.testing.assert_array_equal(kinds["tracked_peak_bytes"], kinds[KINDS_OF_MEMORY].sum(axis=1))
    checked = 0
    for phases, figures in (
        (("speed",), timed_figures(measured, blocks)),
        (("train",), trained_figures(epochs)),
    ):
        rows = measured[measured["phase"].isin(phases)].set_index(PAIR)
        assert set(rows.index) <= set(figures.index)
        for name in figures:
            expected = figures.loc[rows.index, name].to_numpy(dtype=float)
            np.testing.assert_allclose(rows[name], expected, rtol=ROUGHLY.get(name, EXACT), err_msg=name)
        checked += len(rows)
    timed = measured[measured["step_ms"].notna() & measured["samples_per_s"].notna()]
    np.testing.assert_allclose(timed["samples_per_s"], 1000 * timed["batch_size"] / timed["step_ms"], rtol=EXACT)
    return checked
