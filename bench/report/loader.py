"""Where the loader, not arithmetic, is what training waits for: in words."""

from __future__ import annotations

import pandas as pd

from bench.report.format import known, number

WAITING_PCT = 10.0
"""Share of training time spent waiting for batches from which the loader may be what limits."""
OF_THE_STEP = 0.9
"""But not where training reaches this share of the step's own throughput: then the GPU had work meanwhile."""


def remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each arm of each cell whose training the loader limits.

    Args:
        rows: rows of the summary, of one workload.
    """
    waiting = rows[rows["data_wait_pct"] >= WAITING_PCT]
    return [_remark(arm) for _, arm in waiting.iterrows() if not _as_fast_as_the_step(arm)]


def _as_fast_as_the_step(arm: pd.Series) -> bool:
    pace, alone = arm["train_samples_per_s"], arm["samples_per_s"]
    return known(pace) and known(alone) and pace >= OF_THE_STEP * alone


def _remark(arm: pd.Series) -> str:
    share, busy = arm["train_samples_per_s"] / arm["samples_per_s"], 1 - arm["data_wait_pct"] / 100
    alone = known(share) and share < OF_THE_STEP * busy
    what = "the loader is a part of the limit" if alone else "the loader, not arithmetic, is the limit"
    said = (
        f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}: {what}. Training waited for batches "
        f"{number(arm['data_wait_pct'], 2)} % of its time"
    )
    if known(share):
        said += f" and reached {number(100 * share, 2)} % of the throughput of its steps on data already on the device"
    if alone:
        said += f"; without waiting it would have reached {number(100 * share / busy, 2)} %"
    places = {
        "host": "the images came from host memory",
        "file": "the images came from the disk, for they do not fit into memory",
    }
    place = places.get(str(arm["data_place"]), "")
    return f"{said}; {place}." if place else f"{said}."
