"""The figures of speed that follow from the timed blocks.

They are those of one trial for the display, and of all for a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.results.csv_file import PAIR
from bench.stats import rounds_estimates

SPEEDUP = ["log_speedup", "log_speedup_error"]
ROUND = [*PAIR, "round"]


def derive(
    rows: pd.DataFrame, details: Mapping[str, pd.DataFrame], label: str = ""
) -> pd.DataFrame:
    """Return rows with the figures of their blocks (``Phase.derive``), of a phase of rounds.

    A script's process is timed step by step; its steps that count are a block.

    Args:
        rows: of the phase.
        details: with blocks.csv.
        label: what the names of the rows' arms have behind them in blocks.csv.
    """
    blocks = details["blocks.csv"]
    # The file has the blocks of all phases of rounds.
    is_of_phase = blocks["trial"].isin(rows["trial"])
    blocks = blocks[is_of_phase]
    counted = blocks[blocks["discarded"] == ""]
    turns = _grouped(counted, [*ROUND, "position"])[["time_ms", "steps"]].sum()
    turns["step_ms"] = turns["time_ms"] / turns["steps"]
    # In a round that has lost blocks, drift does not cancel.
    in_round = _grouped(turns["steps"], ROUND).transform("size")
    in_whole_round = _grouped(in_round, PAIR).transform("max")
    turns = turns[in_round == in_whole_round]
    of_arms = _grouped(turns, PAIR)
    logs = _grouped(np.log(turns["step_ms"]), ROUND).mean()
    figures = pd.DataFrame(
        {
            "step_ms": of_arms["step_ms"].median(),
            "block_steps": of_arms["steps"].sum() // of_arms.size(),
            "rounds": _grouped(logs, PAIR).size(),
            "skipped_steps": _grouped(blocks, PAIR)["skipped_steps"].sum(),
        }
    )
    figures[SPEEDUP] = np.nan
    _add_speedups(figures, logs, rows["reference"].iloc[0])
    arms = pd.MultiIndex.from_arrays([rows["trial"], rows["precision"] + label])
    of_rows = figures.reindex(arms).set_index(rows.index)
    # Arms that failed may have blocks, too.
    is_measured = rows["steady"] != ""
    of_rows = of_rows.where(is_measured)
    samples_per_s = 1e3 * rows["samples_per_step"] / of_rows["step_ms"]
    return rows.assign(
        **of_rows,
        samples_per_s=samples_per_s,
        tokens_per_s=rows["tokens_per_sample"] * samples_per_s,
        tflops=rows["flops_per_step"] / of_rows["step_ms"] / 1e9,
    )


def _grouped(frame: Any, keys: list[str]) -> Any:
    return frame.groupby(keys, observed=True, sort=False)


def _add_speedups(figures: pd.DataFrame, logs: Any, reference: str) -> None:
    """Add the log-speedup of each arm in its process, and its error over the rounds.

    Args:
        figures: by trial and arm.
        logs: a Series of each arm's time of a step, by trial, arm and round.
        reference: the arm that the others are compared with.
    """
    times = logs.unstack("precision")
    if reference not in times:
        return
    others = times.drop(columns=reference)
    gains = others.rsub(times[reference], axis=0).stack().dropna()
    gains = gains.reorder_levels(ROUND).sort_index()
    rounds = gains.groupby(PAIR, observed=True).transform("size")
    # Arms with as many rounds are estimated at once: one by one, thousands take seconds.
    for count in rounds.unique().tolist():
        alike = gains[rounds == count]
        by_arm = alike.to_numpy().reshape(-1, count)
        centers, errors = rounds_estimates(by_arm)
        if count == 1:  # a single round tells nothing of its error
            errors[:] = np.nan
        arms = alike.index.droplevel("round")[::count]
        figures.loc[arms, SPEEDUP] = np.stack([centers, errors], axis=-1)
