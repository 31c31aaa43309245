"""What the speed phase adds to the summary: the speedups that count, their verdicts, and the A/A noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pandas as pd

from bench import stats
from bench.report.analysis.changes import Contrast, intervals
from bench.report.analysis.frame import ARM, PRECISION, arms
from bench.report.analysis.judge import IN_TURNS, judge_speedups, judged_alone
from bench.report.format import processes
from bench.report.reading.load import CELL
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import SPEED


def add(
    table: pd.DataFrame, trials: pd.DataFrame, changes: Mapping[Metric, Mapping[int, Contrast]]
) -> pd.DataFrame:
    """Add the columns of ``_speeds`` to the summary, by the arms' numbers.

    Of several processes an arm is unconverged where the interval over them is wider than the run
    asked for.
    """
    alone = next(
        (of_metric for metric, of_metric in changes.items() if metric.instead_of == SPEED.name), {}
    )
    table = table.join(_speeds(trials, changes[SPEED], alone))
    asked = trials.groupby(ARM, sort=False)["target_ci"].max()
    is_wide = (table["speedup_high"] / table["speedup_low"]) ** 0.5 - 1 > asked
    table["speed_status"] = table["speed_status"].mask(
        is_wide & table["speed_status"].isin(MEASURED), "unconverged"
    )
    is_script = table["data"] == "script"
    table.loc[is_script, "samples_per_s"] = None  # a script's batch size is its own
    table["skipped_steps"] = trials.groupby(ARM, sort=False)["skipped_steps"].sum().where(is_script)
    return table


def _speeds(
    trials: pd.DataFrame, changes: Mapping[int, Contrast], alone: Mapping[int, Contrast]
) -> pd.DataFrame:
    """Return one row for each arm whose speed was tried, by its number.

    ``speedup`` has the interval of its contrast with fp32, ``speed_verdict`` its word, and
    ``measured_in`` says over which processes, ``disturbed`` whether all of these were.
    ``noise_ratio`` is that of ``noises``, empty where it was not measured, and ``power_capped``
    whether the power limit held the clock down, which the precisions then shared. Where the speedup
    alone counts (``judged_alone``), these are of it, and ``IN_TURNS`` is filled; without one,
    FASTER at the power limit needs an interval beyond ``judge.SHARED_CLOCK``.

    Args:
        trials: rows from ``numbered``.
        changes: each precision's step time against fp32's, by the arm's number.
        alone: its throughput alone against fp32's.
    """
    rows = trials[trials["phase"] == SPEED.phase]
    noise = noises(trials)
    cells = rows.drop_duplicates(ARM).set_index(ARM)[CELL]
    of_arms = {number: noise.get(tuple(cell)) for number, *cell in cells.itertuples(name=None)}
    capped = rows["power_capped"].eq("yes").groupby(rows[ARM], sort=False).any()
    table = pd.DataFrame({"noise_ratio": pd.Series(of_arms, dtype=float), "power_capped": capped})
    turns, counting, judged = {}, {}, []
    for arm, contrast in changes.items():
        in_turns = replace(contrast, noise=of_arms[arm], shares_clock=bool(capped[arm]))
        instead = judged_alone(in_turns, alone.get(arm))
        if instead:
            turns[arm] = in_turns
        counting[arm] = alone[arm] if instead else in_turns
        judged.append(instead or in_turns)
    table = table.join(intervals(counting, SPEED.changes, attrgetter("gain")))
    table = table.join(intervals(turns, IN_TURNS, attrgetter("gain")))
    words = {
        "speed_verdict": dict(zip(counting, judge_speedups(judged), strict=True)),
        "measured_in": {number: measured_in(contrast) for number, contrast in counting.items()},
        "disturbed": {number: contrast.is_disturbed for number, contrast in changes.items()},
    }
    for name, of_arm in words.items():
        table[name] = pd.Series(of_arm, dtype=object)
    table["timed_processes"] = rows[rows["status"].isin(MEASURED)].groupby(ARM).size()
    return table


def measured_in(contrast: Contrast) -> str:
    """Say over which processes a contrast is, and how many of them count."""
    count, counted = contrast.replicates, contrast.change.n
    if contrast.pairing == "unpaired":
        return f"{processes(count)} {'alone' if contrast.metric.instead_of else 'apart'}"
    return f"{counted} of {count} processes" if counted < count else processes(count)


def noises(trials: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return the A/A noise of each cell of which it is known, by the cell's columns (``stats.aa_noise``)."""
    shares = {}
    for arm in arms(trials, replace(SPEED, phase="floor")).values():
        is_disturbed = [process in arm.disturbed for process in arm.gains]
        share = stats.aa_noise([*arm.gains.values()], is_disturbed)
        if share is not None:
            shares[arm.key[:PRECISION]] = share
    return shares
