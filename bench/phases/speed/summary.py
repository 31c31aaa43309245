"""Columns of the summary from speed: speedups that count, their verdicts, and the A/A noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pandas as pd

from bench import stats
from bench.report.analysis.arms import ARM_NUMBER, PRECISION, arms
from bench.report.analysis.changes import Contrast, intervals
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
    alone: Mapping[int, Contrast] = {}
    for metric, of_metric in changes.items():
        if metric.instead_of == SPEED.name:
            alone = of_metric
    table = table.join(_speeds(trials, changes[SPEED], alone))
    of_arms = trials.groupby(ARM_NUMBER, sort=False)
    # The interval is symmetric in the logarithm, so that its half-width is the root of the ratio.
    half_width = (table["speedup_high"] / table["speedup_low"]) ** 0.5 - 1
    is_wide = half_width > of_arms["target_ci"].max()
    is_measured = table["speed_status"].isin(MEASURED)
    table["speed_status"] = table["speed_status"].mask(is_wide & is_measured, "unconverged")
    is_script = table["data"] == "script"
    table.loc[is_script, "samples_per_s"] = None  # a script's batch size is its own
    table["skipped_steps"] = of_arms["skipped_steps"].sum().where(is_script)
    return table


def _speeds(
    trials: pd.DataFrame, changes: Mapping[int, Contrast], alone: Mapping[int, Contrast]
) -> pd.DataFrame:
    """Return one row for each arm whose speed was tried, by its number.

    ``speedup`` has the interval of its contrast with fp32, ``speed_verdict`` its word,
    ``one_of_many`` whether the word were another if it were the only speedup, and ``measured_in``
    says over which processes, ``disturbed`` whether all of these were.
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
    cells = rows.drop_duplicates(ARM_NUMBER).set_index(ARM_NUMBER)[CELL]
    noise_of_arms = {}
    for arm, *cell in cells.itertuples(name=None):
        noise_of_arms[arm] = noise.get(tuple(cell))
    is_capped = rows["power_capped"] == "yes"
    capped = is_capped.groupby(rows[ARM_NUMBER], sort=False).any()
    noise_ratio = pd.Series(noise_of_arms, dtype=float)
    table = pd.DataFrame({"noise_ratio": noise_ratio, "power_capped": capped})
    turns = {}
    counting = {}
    judged = []
    for arm, contrast in changes.items():
        in_turns = replace(contrast, noise=noise_of_arms[arm], shares_clock=bool(capped[arm]))
        of_alone = judged_alone(in_turns, alone.get(arm))
        if of_alone:
            # The clock that precisions shared when they took turns is not what one gets alone.
            judged.append(of_alone)
            turns[arm] = in_turns
            counting[arm] = alone[arm]
        else:
            judged.append(in_turns)
            counting[arm] = in_turns
    table = table.join(intervals(counting, SPEED.changes, attrgetter("gain")))
    table = table.join(intervals(turns, IN_TURNS, attrgetter("gain")))
    words = {}
    # All verdicts at once: the false discovery rate is over the report.
    for arm, contrast, word in zip(changes, judged, judge_speedups(judged), strict=True):
        is_one_of_many = word != contrast.word and not contrast.shares_clock
        in_words = measured_in(counting[arm])
        words[arm] = (word, is_one_of_many, in_words, changes[arm].is_disturbed)
    columns = ["speed_verdict", "one_of_many", "measured_in", "disturbed"]
    table = table.join(pd.DataFrame.from_dict(words, orient="index", columns=columns, dtype=object))
    is_measured = rows["status"].isin(MEASURED)
    table["timed_processes"] = rows[is_measured].groupby(ARM_NUMBER).size()
    return table


def measured_in(contrast: Contrast) -> str:
    """Return over which processes a contrast is, and how many of them count, in words."""
    count = contrast.replicates
    counted = contrast.change.n
    if contrast.pairing == "unpaired":
        how = "alone" if contrast.metric.instead_of else "apart"
        return f"{processes(count)} {how}"
    return f"{counted} of {count} processes" if counted < count else processes(count)


def noises(trials: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return the A/A noise (``stats.aa_noise``) of cells of which it is known, by their columns."""
    shares = {}
    # The rows of floor are of the same kind: the baseline's second copy is their arm.
    of_floor = replace(SPEED, phase="floor")
    for arm in arms(trials, of_floor).values():
        is_disturbed = [process in arm.disturbed for process in arm.gains]
        share = stats.aa_noise(list(arm.gains.values()), is_disturbed)
        if share is not None:
            shares[arm.key[:PRECISION]] = share
    return shares
