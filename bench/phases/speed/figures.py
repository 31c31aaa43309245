"""The figures of speed that follow from the timed blocks: of one trial for the display, of all for a report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from bench.results.csv_file import PAIR
from bench.stats import rounds_estimates

SPEEDUP = ["log_speedup", "log_speedup_error"]


def derive(
    rows: pd.DataFrame, details: Mapping[str, pd.DataFrame], label: str = ""
) -> pd.DataFrame:
    """Return rows of a phase that times arms in rounds with the figures of their blocks (``Phase.derive``).

    A script's process is timed step by step; its steps that count are a block.

    Args:
        rows: of the phase.
        details: with blocks.csv.
        label: what the names of the rows' arms have behind them in blocks.csv.
    """
    blocks = details["blocks.csv"]
    blocks = blocks[blocks["trial"].isin(rows["trial"])]
    counted = blocks[blocks["discarded"] == ""]
    turns = counted.groupby([*PAIR, "round", "position"], observed=True, sort=False)[
        ["time_ms", "steps"]
    ].sum()
    turns["step_ms"] = turns["time_ms"] / turns["steps"]
    # in a round that has lost blocks, drift does not cancel
    in_round = turns.groupby([*PAIR, "round"], observed=True, sort=False)["steps"].transform("size")
    turns = turns[in_round == in_round.groupby(PAIR, observed=True, sort=False).transform("max")]
    of_arms = turns.groupby(PAIR, observed=True, sort=False)
    logs = np.log(turns["step_ms"]).groupby([*PAIR, "round"], observed=True, sort=False).mean()
    figures = pd.DataFrame(
        {
            "step_ms": of_arms["step_ms"].median(),
            "block_steps": of_arms["steps"].sum() // of_arms.size(),
            "rounds": logs.groupby(PAIR, observed=True, sort=False).size(),
            "skipped_steps": blocks.groupby(PAIR, observed=True, sort=False)["skipped_steps"].sum(),
        }
    )
    figures[SPEEDUP] = np.nan
    times, reference = logs.unstack("precision"), rows["reference"].iloc[0]
    if reference in times:
        gains = times.rsub(times[reference], axis=0).drop(columns=reference).stack().dropna()
        gains = gains.reorder_levels([*PAIR, "round"]).sort_index()
        rounds = gains.groupby(PAIR, observed=True).transform("size")
        for count in rounds.unique().tolist():
            alike = gains[rounds == count]
            paired = alike.index.droplevel("round")[::count]
            estimates = rounds_estimates(alike.to_numpy().reshape(-1, count))
            figures.loc[paired, SPEEDUP] = np.stack(estimates, axis=-1)
        figures.loc[figures["rounds"] < 2, "log_speedup_error"] = np.nan
    measured = rows["steady"] != ""  # arms that failed may have blocks, too
    arms = pd.MultiIndex.from_arrays([rows["trial"], rows["precision"] + label])
    of_rows = figures.reindex(arms).set_index(rows.index).where(measured)
    samples_per_s = 1e3 * rows["samples_per_step"] / of_rows["step_ms"]
    return rows.assign(
        **of_rows,
        samples_per_s=samples_per_s,
        tokens_per_s=rows["tokens_per_sample"] * samples_per_s,
        tflops=rows["flops_per_step"] / of_rows["step_ms"] / 1e9,
    )
