"""Telemetry by arm: the readings of each GPU while the steps of a cell ran, from telemetry.csv.

Samples are 0.2 s apart. Arms that take turns in milliseconds share a row; where a process has one precision, as in
energy and train, the row is that precision's.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from bench.report.reading.load import CELL, Runs
from bench.results.columns import listed

ARM = [*CELL, "phase", "precision", "gpu"]
"""The columns that identify a row."""
RESTING = {"none", "idle"}
"""Words of ``throttle_reasons`` that hold no clock down."""
TRIAL, BOARD = ["run", "trial"], ["run", "gpu"]
WORDS: Any = dict.fromkeys([*BOARD, "throttle_reasons"], object)
"""Types in which words of both CSVs agree."""


def telemetry(runs: Runs) -> pd.DataFrame:
    """Return the samples of all trials of an arm on each GPU, summed up; the columns are ``ARM`` and the figures."""
    samples = runs.telemetry.rename(columns={"placement": "gpu"}).astype(WORDS)
    stretches = spans(runs)
    rows = pd.merge_asof(
        samples.sort_values("time_s"), stretches.sort_values("from_s"), left_on="time_s", right_on="from_s", by=BOARD
    )
    rows = rows[rows["time_s"] <= rows["to_s"]]
    held = {word: 100.0 * bool(_holding(word)) for word in rows["throttle_reasons"].unique() if word}
    arms = rows.assign(throttled_pct=rows["throttle_reasons"].map(held).astype(float)).groupby(ARM, sort=False)
    return arms.agg(
        samples=("time_s", "size"),
        utilization_pct=("utilization_pct", "mean"),
        power_w=("power_w", "mean"),
        temperature_c=("temperature_c", "mean"),
        highest_temperature_c=("temperature_c", "max"),
        sm_clock_mhz=("sm_clock_mhz", "mean"),
        highest_sm_clock_mhz=("sm_clock_mhz", "max"),
        throttled_pct=("throttled_pct", "mean"),
        throttle_reasons=("throttle_reasons", _shares),
        memory_used_bytes=("memory_used_bytes", "max"),
    ).reset_index()


def spans(runs: Runs) -> pd.DataFrame:
    """Return when steps ran on each GPU of each trial: ``ARM``, ``trial``, and ``from_s`` to ``to_s`` since 1970.

    These are a trial's blocks from the first to the last, its window of energy, and each of its epochs.
    """
    blocks = runs.details["blocks"][[*TRIAL, "start_s", "time_ms"]]
    trials = runs.tried()
    ended = blocks.assign(to_s=blocks["start_s"] + blocks["time_ms"] / 1e3).groupby(TRIAL, observed=True)
    parts = [
        ended.agg(from_s=("start_s", "min"), to_s=("to_s", "max")).reset_index(),
        _lasting(runs.details["epochs"], "start_s", "train_s"),
    ]
    if "energy_start_s" in trials:  # not without its phase
        parts.append(_lasting(trials, "energy_start_s", "energy_window_s"))
    names = trials.groupby(TRIAL, sort=False)["precision"].agg(lambda names: ", ".join(dict.fromkeys(names)))
    arms = trials.drop_duplicates(TRIAL)[[*CELL, "phase", "trial", "members"]].merge(names, on=TRIAL)
    arms["gpu"] = arms.pop("members").map(listed)
    stretches = pd.concat(parts, ignore_index=True).dropna().merge(arms, on=TRIAL)
    return stretches.explode("gpu").astype(dict.fromkeys(BOARD, object))


def _lasting(rows: pd.DataFrame, start: str, seconds: str) -> pd.DataFrame:
    return rows[TRIAL].assign(from_s=rows[start], to_s=rows[start] + rows[seconds])


def _holding(word: str) -> set[str]:
    return set(listed(word)) - RESTING


def _shares(words: pd.Series) -> str:
    """Return each reason with the share of the samples in which it held the clocks down, the largest first."""
    known = words[words != ""]
    counts = known.map(lambda word: list(_holding(word))).explode().value_counts()
    return " ".join(f"{reason}:{100 * count / len(known):.0f}%" for reason, count in counts.items())
