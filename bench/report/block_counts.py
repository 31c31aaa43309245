"""Whether blocks.csv holds the blocks that trials.csv was made from."""

from __future__ import annotations

import pandas as pd

from bench.records import MEASURED
from bench.report.rows import records
from bench.report.sanity import DISAGREE

BLOCKS_A_QUAD = 2
"""Blocks of each arm in a quad, which is palindromic."""
PAIR = ["trial", "precision"]


def remarks(trials: pd.DataFrame, blocks: pd.DataFrame) -> list[str]:
    """Say, in one sentence, of which speeds the blocks are not those that were timed: lines lost, added or edited.

    Args:
        trials: a run's rows of trials.csv, each trial and precision once.
        blocks: its rows of blocks.csv, each block once, words as categories.
    """
    timed = trials[trials["phase"].isin(("speed", "ladder")) & trials["status"].isin(MEASURED)]
    timed = timed[timed["quads"].gt(0) & timed["step_ms"].notna()]
    counts = blocks["invalid"].eq("").to_numpy()
    steps_ms = (blocks["time_ms"] / blocks["steps"]).where(counts)
    keys = [blocks[name] for name in PAIR]
    found = steps_ms.groupby(keys, observed=True, sort=False).agg(["size", "count", "median"])
    held = timed.set_index(PAIR)[["quads", "invalid_quads", "step_ms"]].join(found.rename_axis(PAIR))
    held = held.fillna({"size": 0, "count": 0, "invalid_quads": 0})
    every = BLOCKS_A_QUAD * (held["quads"] + held["invalid_quads"])
    unlike = (held["size"] != every) | (held["count"] != BLOCKS_A_QUAD * held["quads"])
    unlike |= (held["median"] / held["step_ms"] - 1).abs() > DISAGREE
    if not unlike.any():
        return []
    first = records(held[unlike].reset_index())[0]
    quads, void = first["quads"], first["invalid_quads"]
    asked = f"{BLOCKS_A_QUAD * quads:.0f} blocks that count and {BLOCKS_A_QUAD * void:.0f} that do not"
    here = f"{first['count']:.0f} and {first['size'] - first['count']:.0f}"
    if (first["count"], first["size"]) == (BLOCKS_A_QUAD * quads, BLOCKS_A_QUAD * (quads + void)):
        asked, here = f"a step of {first['step_ms']:.4g} ms", f"a median of {first['median']:.4g} ms"
    others = unlike.sum() - 1
    more = f", and {others} more {'row is' if others == 1 else 'rows are'} like it" if others else ""
    return [
        f"blocks.csv is not what trials.csv was made from: of {first['trial']} in {first['precision']} trials.csv "
        f"tells of {asked}, blocks.csv has {here}{more}. Lines of one of the two were lost, added or edited."
    ]
